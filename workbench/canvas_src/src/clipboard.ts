// Steps on the clipboard, as text: they can be pasted into another canvas, and what a stranger's text says is looked at first.
import type { Piece } from "./graph";
import { isObject } from "./exact";
import type { Edge, Json, Step } from "./types";

const MARK = "event-workbench/steps";
const MOST = 200;

export function toText(piece: Piece): string {
  return JSON.stringify({ [MARK]: piece });
}

/** The steps in a text, null when it holds none. */
export function fromText(text: string): Piece | null {
  let value: Json;
  try {
    value = JSON.parse(text) as Json;
  } catch {
    return null;
  }
  const found = isObject(value) ? value[MARK] : null;
  if (!isObject(found) || !Array.isArray(found.steps) || !Array.isArray(found.edges)) return null;
  const steps = found.steps.slice(0, MOST).filter(isStep) as unknown as Step[];
  const ids = new Set(steps.map((step) => step.id));
  const edges = found.edges.slice(0, MOST).filter(isEdge) as unknown as Edge[];
  return { steps, edges: edges.filter((edge) => ids.has(edge.source) && ids.has(edge.target)) };
}

function isStep(value: Json): boolean {
  return (
    isObject(value) &&
    isName(value.id) &&
    typeof value.type === "string" &&
    (value.data === undefined || value.data === null || isObject(value.data))
  );
}

function isEdge(value: Json): boolean {
  return isObject(value) && isName(value.source) && isName(value.target) && !(value.sourceHandle && !isName(value.sourceHandle));
}

function isName(value: Json | undefined): boolean {
  return typeof value === "string" && value.length > 0 && value.length <= 128;
}
