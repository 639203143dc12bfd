// Patches: apply, invert, compose.
import type { DraftDocument, Edge, Json, Obj, Patch, Draft, Step } from "./types";

export function draftOf(document: DraftDocument): Draft {
  return {
    nodes: new Map(document.nodes.map(({ key, node }) => [key, node])),
    edges: new Map(document.edges.map(({ key, edge }) => [key, edge])),
    trigger: document.trigger,
    extra: document.extra,
  };
}

export function apply(draft: Draft, patch: Patch): Draft {
  let nodes = merge(draft.nodes, patch.nodes);
  if (patch.order) nodes = sortByOrder(nodes, patch.order);
  return {
    nodes,
    edges: merge(draft.edges, patch.edges),
    trigger: patch.trigger ?? draft.trigger,
    extra: patch.extra ? withoutNulls({ ...draft.extra, ...patch.extra }) : draft.extra,
  };
}

/** The patch that undoes `patch` on `draft`. */
export function inverse(draft: Draft, patch: Patch): Patch {
  const undo: Patch = {};
  if (patch.nodes) undo.nodes = previous(draft.nodes, patch.nodes);
  if (patch.edges) undo.edges = previous(draft.edges, patch.edges);
  if (patch.trigger) undo.trigger = draft.trigger;
  if (patch.order) undo.order = [...draft.nodes.keys()];
  if (patch.extra) {
    undo.extra = Object.fromEntries(Object.keys(patch.extra).map((name) => [name, draft.extra[name] ?? null]));
  }
  return undo;
}

/** The patch that does what the first and then the second does. */
export function compose(first: Patch, second: Patch): Patch {
  const patch: Patch = {};
  if (first.nodes || second.nodes) patch.nodes = { ...first.nodes, ...second.nodes };
  if (first.edges || second.edges) patch.edges = { ...first.edges, ...second.edges };
  if (first.extra || second.extra) patch.extra = { ...first.extra, ...second.extra };
  const trigger = second.trigger ?? first.trigger;
  if (trigger) patch.trigger = trigger;
  const order = second.order ?? first.order;
  if (order) patch.order = order;
  const created = [...(first.created ?? []), ...(second.created ?? [])];
  if (created.length) patch.created = created;
  return patch;
}

function merge<T>(pieces: ReadonlyMap<string, T>, changes?: Record<string, T | null>): ReadonlyMap<string, T> {
  if (!changes) return pieces;
  const result = new Map(pieces);
  for (const [key, piece] of Object.entries(changes)) {
    if (piece === null) result.delete(key);
    else result.set(key, piece);
  }
  return result;
}

function sortByOrder(nodes: ReadonlyMap<string, Step>, order: string[]): ReadonlyMap<string, Step> {
  const rank = new Map(order.map((key, index) => [key, index]));
  const position = (key: string) => rank.get(key) ?? order.length;
  return new Map([...nodes].sort(([a], [b]) => position(a) - position(b)));
}

function previous<T extends Step | Edge>(pieces: ReadonlyMap<string, T>, changes: Record<string, T | null>) {
  return Object.fromEntries(Object.keys(changes).map((key) => [key, pieces.get(key) ?? null]));
}

function withoutNulls(values: Record<string, Json>): Obj {
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value !== null));
}
