// Changes as values: apply one, take it back, make one of two.
import type { Document, Edge, Json, Obj, Patch, Sheet, Step } from "./types";

export const EMPTY: Sheet = { nodes: new Map(), edges: new Map(), trigger: {}, beside: {} };

export function sheetOf(document: Document): Sheet {
  return {
    nodes: new Map(document.nodes.map(({ key, node }) => [key, node])),
    edges: new Map(document.edges.map(({ key, edge }) => [key, edge])),
    trigger: document.trigger,
    beside: document.beside,
  };
}

export function apply(sheet: Sheet, patch: Patch): Sheet {
  let nodes = merged(sheet.nodes, patch.nodes);
  if (patch.order) nodes = sorted(nodes, patch.order);
  return {
    nodes,
    edges: merged(sheet.edges, patch.edges),
    trigger: patch.trigger ?? sheet.trigger,
    beside: patch.beside ? without({ ...sheet.beside, ...patch.beside }) : sheet.beside,
  };
}

/** The change that takes `patch` back where it is applied to `sheet`. */
export function inverse(sheet: Sheet, patch: Patch): Patch {
  const back: Patch = {};
  if (patch.nodes) back.nodes = before(sheet.nodes, patch.nodes);
  if (patch.edges) back.edges = before(sheet.edges, patch.edges);
  if (patch.trigger) back.trigger = sheet.trigger;
  if (patch.order) back.order = [...sheet.nodes.keys()];
  if (patch.beside) {
    back.beside = Object.fromEntries(Object.keys(patch.beside).map((name) => [name, sheet.beside[name] ?? null]));
  }
  return back;
}

/** One change that does what the first and then the second does. */
export function both(first: Patch, second: Patch): Patch {
  const patch: Patch = {};
  if (first.nodes || second.nodes) patch.nodes = { ...first.nodes, ...second.nodes };
  if (first.edges || second.edges) patch.edges = { ...first.edges, ...second.edges };
  if (first.beside || second.beside) patch.beside = { ...first.beside, ...second.beside };
  const trigger = second.trigger ?? first.trigger;
  if (trigger) patch.trigger = trigger;
  const order = second.order ?? first.order;
  if (order) patch.order = order;
  const fresh = [...(first.fresh ?? []), ...(second.fresh ?? [])];
  if (fresh.length) patch.fresh = fresh;
  return patch;
}

function merged<T>(pieces: ReadonlyMap<string, T>, changes?: Record<string, T | null>): ReadonlyMap<string, T> {
  if (!changes) return pieces;
  const result = new Map(pieces);
  for (const [key, piece] of Object.entries(changes)) {
    if (piece === null) result.delete(key);
    else result.set(key, piece);
  }
  return result;
}

function sorted(nodes: ReadonlyMap<string, Step>, order: string[]): ReadonlyMap<string, Step> {
  const rank = new Map(order.map((key, index) => [key, index]));
  const place = (key: string) => rank.get(key) ?? order.length;
  return new Map([...nodes].sort(([one], [other]) => place(one) - place(other)));
}

function before<T extends Step | Edge>(pieces: ReadonlyMap<string, T>, changes: Record<string, T | null>) {
  return Object.fromEntries(Object.keys(changes).map((key) => [key, pieces.get(key) ?? null]));
}

function without(values: Record<string, Json>): Obj {
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value !== null));
}
