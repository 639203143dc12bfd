// Steps on the clipboard, as JSON text, so that they can be pasted into another canvas.
import type { CopiedSteps } from "./graph";
import { isObject } from "./json";
import type { Edge, Json, Step } from "./types";

const MARK = "event-workbench/steps";
const MAX_STEPS = 200;
const MAX_EDGES = 200;

export function toText(steps: CopiedSteps): string {
  return JSON.stringify({ [MARK]: steps });
}

/** The steps in a text, or null. The clipboard may contain anything, so every part is validated. */
export function fromText(text: string): CopiedSteps | null {
  let value: Json;
  try {
    value = JSON.parse(text) as Json;
  } catch {
    return null;
  }
  const copied = isObject(value) ? value[MARK] : null;
  if (!isObject(copied) || !Array.isArray(copied.steps) || !Array.isArray(copied.edges)) return null;
  const steps = copied.steps.slice(0, MAX_STEPS).filter(isStep) as unknown as Step[];
  const ids = new Set(steps.map((step) => step.id));
  const edges = copied.edges.slice(0, MAX_EDGES).filter(isEdge) as unknown as Edge[];
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
