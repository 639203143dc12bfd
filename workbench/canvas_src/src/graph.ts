// Changes to the graph: every function returns a patch.
import { isObject } from "./json";
import type { Card, Edge, Json, Kind, Obj, Patch, Draft, Step } from "./types";

export const CARD_WIDTH = 280;
export const NEW_CARD_HEIGHT = 90; // the most that a new card needs
const COLUMN_WIDTH = 316;
const ROW_GAP = 54;
const ON_CHAIN = "onchain_event";
const STARTS = ["segment_entered", "segment_left", "broadcast", "schedule"];
const TRIGGERS = new Set([ON_CHAIN, ...STARTS, "app_event", "custom_event", "app-event", "custom-event", "appevent"]);

/** An output of a node. */
export interface OutputEnd {
  key: string;
  handle: string | null;
}

export type Cards = (key: string) => Card;

/** The card of a step: the one from Python, or one of its kind until Python has sent it. */
export function cardNow(card: Card | undefined, kinds: Kind[], step: Step | undefined): Card {
  const kind = kinds.find((kind) => kind.kind === step?.type);
  const current = card ?? blankCard(kind, step);
  if (kind?.fork) return { ...current, outputs: isForked(kind, step) ? kind.fork.outputs : [{ handle: null, label: "" }] };
  // The outputs of a split follow its form immediately: the edges of a renamed branch are drawn before Python answers.
  const field = kind?.fields.find((field) => field.control === "branches");
  const listed = field && step?.data?.[field.name];
  const branches = Array.isArray(listed) ? listed.filter(isObject) : [];
  const names = [...new Set(branches.map((branch) => branch.handle))].filter((branch): branch is string => typeof branch === "string" && branch !== "");
  if (!names.length || names.join("\n") === current.outputs.map((output) => output.handle).join("\n")) return current;
  const labels = new Map(current.outputs.map((output) => [output.handle, output.label]));
  return { ...current, outputs: names.map((handle) => ({ handle, label: labels.get(handle) ?? handle })) };
}

function isForked(kind: Kind, step: Step | undefined): boolean {
  return kind.fork !== null && (step?.data?.[kind.fork.field] ?? null) !== null;
}

function blankCard(kind: Kind | undefined, step: Step | undefined): Card {
  const look = { color: kind?.color ?? "#5d6878", icon: kind?.icon ?? "alert" };
  const outputs = kind?.outputs ?? [{ handle: null, label: "" }];
  return { kind: kind?.label ?? step?.type ?? "", title: [step?.id ?? ""], lines: [], ...look, height: 54, outputs, valid: true };
}

export function isTrigger(step: Step | undefined): boolean {
  return step !== undefined && TRIGGERS.has(step.type);
}

/** The kind of the trigger. It follows from the trigger spec; the type of the first node may differ. */
export function triggerKind(draft: Draft): string {
  return [ON_CHAIN, ...STARTS].find((type) => type === draft.trigger.type) ?? "app_event";
}

/** The key of each node by its id; where two nodes share an id, the key of the first. */
export function keysById(draft: Draft): Map<string, string> {
  const keys = new Map<string, string>();
  for (const [key, step] of draft.nodes) if (!keys.has(step.id)) keys.set(step.id, key);
  return keys;
}

export function pointOf(step: Step): { x: number; y: number } {
  const { x, y } = step.position ?? {};
  return { x: Number(x) || 0, y: Number(y) || 0 };
}

/** The edges that leave by an output, in the order of their branches. */
export function edgesFrom(draft: Draft, end: OutputEnd): [string, Edge][] {
  const id = draft.nodes.get(end.key)?.id;
  return [...draft.edges].filter(([, edge]) => edge.source === id && (edge.sourceHandle || null) === end.handle);
}

/** The first edge that leaves by an output. */
export function edgeFrom(draft: Draft, end: OutputEnd): [string, Edge] | undefined {
  return edgesFrom(draft, end)[0];
}

/** The output at which the next step is added: an open one of the selected node, else of the last node with one. */
export function openEnd(draft: Draft, cards: Cards, selected: string | null): OutputEnd | null {
  const candidates = selected !== null && draft.nodes.has(selected) ? [selected] : [...draft.nodes.keys()].reverse();
  for (const key of candidates) {
    for (const { handle } of cards(key).outputs) if (!edgeFrom(draft, { key, handle })) return { key, handle };
  }
  return null;
}

/** Whether an edge may be drawn: it must not close a loop or lead to the trigger. */
export function mayConnect(draft: Draft, source: string, target: string): boolean {
  if (source === target || isTrigger(draft.nodes.get(target))) return false;
  const ids = keysById(draft);
  const reached = new Set([target]);
  for (const key of reached) {
    const id = draft.nodes.get(key)?.id;
    for (const edge of draft.edges.values()) {
      const next = edge.source === id ? ids.get(edge.target) : undefined;
      if (next !== undefined) reached.add(next);
    }
  }
  return !reached.has(source);
}

/** Draw an edge. It replaces the edge that leaves there, unless it is one more branch. */
export function connect(draft: Draft, end: OutputEnd, target: string, isBranch: boolean): Patch {
  const source = draft.nodes.get(end.key);
  const step = draft.nodes.get(target);
  if (!source || !step) return {};
  const present = edgesFrom(draft, end);
  if (isBranch && present.some(([, edge]) => edge.target === step.id)) return {};
  const replaced = isBranch ? undefined : present[0];
  const edge = edgeBetween(source.id, end.handle, step.id);
  return { edges: { ...(replaced ? { [replaced[0]]: null } : {}), [freeKey(draft, edge.id!)]: edge } };
}

function edgeBetween(source: string, handle: string | null, target: string): Edge {
  if (handle === null) return { id: `${source}-${target}`, source, target };
  return { id: `${source}-${handle}-${target}`, source, sourceHandle: handle, target };
}

function freeKey(draft: Draft, key: string): string {
  let free = key;
  for (let number = 2; draft.edges.has(free); number++) free = `${key}-${number}`;
  return free;
}

export interface AddedStep {
  patch: Patch;
  key: string;
}

/** Add a step after `end`. If an edge leaves there, the step is inserted into it. */
export function addStep(draft: Draft, kind: Kind, cards: Cards, end: OutputEnd | null, at?: { x: number; y: number }): AddedStep {
  const id = freeId(draft, kind.kind);
  const source = end ? draft.nodes.get(end.key) : undefined;
  const place = at ?? (end && source ? below(draft, source, cards, end) : freeSpot(draft, cards, { x: 14, y: 14 }));
  const step: Step = { id, type: kind.kind, position: rounded(place), data: structuredClone(kind.blank) };
  const trigger = isTrigger(step);
  const order = trigger ? [id, ...draft.nodes.keys()] : [...draft.nodes.keys(), id];
  const patch: Patch = { nodes: { [id]: step }, order, created: [id] };
  if (trigger && kind.kind !== triggerKind(draft)) patch.trigger = kind.kind === "app_event" ? { type: kind.kind, event: "" } : { type: kind.kind };
  if (!end || !source || trigger) return { patch, key: id };
  const replaced = edgeFrom(draft, end);
  const edge = edgeBetween(source.id, end.handle, id);
  patch.edges = { [freeKey(draft, edge.id!)]: edge };
  if (replaced) {
    patch.edges[replaced[0]] = null;
    const [first] = kind.outputs; // the graph continues there; a kind without outputs ends it
    const onward = first && edgeBetween(id, first.handle, replaced[1].target);
    if (onward) patch.edges[freeKey(draft, onward.id!)] = onward;
  }
  return { patch, key: id };
}

function freeId(draft: Draft, stem: string): string {
  const taken = new Set([...draft.nodes.keys(), ...[...draft.nodes.values()].map((step) => step.id)]);
  let id = stem;
  for (let number = 2; taken.has(id); number++) id = `${stem}_${number}`;
  return id;
}

function below(draft: Draft, source: Step, cards: Cards, end: OutputEnd): { x: number; y: number } {
  const { x, y } = pointOf(source);
  const { outputs, height } = cards(end.key);
  const index = Math.max(outputs.findIndex((output) => output.handle === end.handle), 0);
  const aside = (index - (Math.max(outputs.length, 1) - 1) / 2) * COLUMN_WIDTH;
  return freeSpot(draft, cards, { x: x + aside, y: y + height + ROW_GAP }, aside < 0 ? -1 : 1);
}

/** The nearest free spot beside `wanted`. */
function freeSpot(draft: Draft, cards: Cards, wanted: { x: number; y: number }, side = 1): { x: number; y: number } {
  const { y } = wanted;
  let { x } = wanted;
  while (isOccupied(draft, cards, { x, y }, NEW_CARD_HEIGHT)) x += side * COLUMN_WIDTH;
  return { x, y };
}

function isOccupied(draft: Draft, cards: Cards, { x, y }: { x: number; y: number }, height: number): boolean {
  return [...draft.nodes].some(([key, step]) => {
    const card = pointOf(step);
    return Math.abs(card.x - x) < CARD_WIDTH && card.y < y + height && card.y + cards(key).height > y - ROW_GAP / 2;
  });
}

function rounded({ x, y }: { x: number; y: number }): { x: number; y: number } {
  return { x: Math.round(x), y: Math.round(y) };
}

/** Remove steps. If a single step with one incoming and one outgoing edge is removed, its neighbours are connected. */
export function remove(draft: Draft, keys: Iterable<string>, edgeKeys: Iterable<string> = []): Patch {
  const removed = new Set(keys);
  const ids = new Set([...removed].map((key) => draft.nodes.get(key)?.id));
  const edges: Record<string, Edge | null> = Object.fromEntries([...edgeKeys].map((key) => [key, null]));
  const incoming: Edge[] = [];
  const outgoing: Edge[] = [];
  for (const [key, edge] of draft.edges) {
    const [from, to] = [ids.has(edge.source), ids.has(edge.target)];
    if (!from && !to) continue;
    edges[key] = null;
    if (to && !from) incoming.push(edge);
    if (from && !to) outgoing.push(edge);
  }
  if (removed.size === 1 && incoming.length === 1 && outgoing.length === 1) {
    const joined = edgeBetween(incoming[0]!.source, incoming[0]!.sourceHandle || null, outgoing[0]!.target);
    edges[freeKey(draft, joined.id!)] = joined;
  }
  if (!removed.size) return { edges };
  return { nodes: Object.fromEntries([...removed].map((key) => [key, null])), edges, order: [...draft.nodes.keys()] };
}

export function move(draft: Draft, places: Record<string, { x: number; y: number }>): Patch {
  const moved = Object.entries(places).flatMap(([key, place]) => {
    const step = draft.nodes.get(key);
    return step ? [[key, { ...step, position: rounded(place) }] as const] : [];
  });
  return { nodes: Object.fromEntries(moved) };
}

/** Change one field of a step; undefined removes it. */
export function setField(draft: Draft, key: string, name: string, value: Json | undefined): Patch {
  const step = draft.nodes.get(key);
  if (!step) return {};
  return { nodes: { [key]: { ...step, data: withField(step.data ?? {}, name, value) } } };
}

export function withField(data: Obj, name: string, value: Json | undefined): Obj {
  const { [name]: _, ...rest } = data;
  return value === undefined ? rest : { ...data, [name]: value };
}

/** Change the branches of a split. Edges follow a renamed branch and are removed with a removed one. */
export function setBranches(draft: Draft, key: string, name: string, branches: Obj[], renamed?: { from: string; to: string }): Patch {
  const step = draft.nodes.get(key);
  const patch = setField(draft, key, name, branches);
  const handles = new Set(branches.map((branch) => branch.handle));
  for (const [edgeKey, edge] of draft.edges) {
    if (edge.source !== step?.id || !edge.sourceHandle) continue;
    patch.edges ??= {};
    if (renamed && edge.sourceHandle === renamed.from) patch.edges[edgeKey] = { ...edge, sourceHandle: renamed.to };
    else if (!handles.has(edge.sourceHandle)) patch.edges[edgeKey] = null;
  }
  return patch;
}

/** Replace a step of a kind that branches only with a value. Edges move to its first output; those of other outputs are removed without it. */
export function setForking(draft: Draft, key: string, kind: Kind, step: Step): Patch {
  const patch: Patch = { nodes: { [key]: step } };
  const first = kind.fork?.outputs[0]?.handle ?? null;
  const forked = isForked(kind, step);
  if (forked === isForked(kind, draft.nodes.get(key))) return patch;
  patch.edges = {};
  for (const [edgeKey, edge] of draft.edges) {
    if (edge.source !== step.id) continue;
    const { sourceHandle, ...rest } = edge;
    if (forked) patch.edges[edgeKey] = { ...rest, sourceHandle: first };
    else patch.edges[edgeKey] = sourceHandle && sourceHandle !== first ? null : rest;
  }
  return patch;
}

/** Set the events that start the automation, in the trigger and in its node. */
export function setEvents(draft: Draft, names: string[]): Patch {
  const named = (values: Obj): Obj => {
    const { event: _, eventNames: __, ...rest } = values;
    // Without names every event starts the automation. An empty name asks the author before publication.
    if (!names.length) return { ...rest, event: "" };
    return names.length === 1 ? { ...rest, event: names[0]! } : { ...rest, eventNames: names };
  };
  const [key, node] = [...draft.nodes].find(([, step]) => isTrigger(step)) ?? [];
  const nodes = key !== undefined && node ? { [key]: { ...node, data: named(node.data ?? {}) } } : {};
  return { trigger: named(draft.trigger), nodes };
}

/** The events that start the automation: names, the signature of a contract event, or a start. Suggestions are listed by these. */
export function eventsOf(draft: Draft): string[] {
  if (STARTS.includes(triggerKind(draft))) return [triggerKind(draft)];
  if (draft.trigger.type === ON_CHAIN) return typeof draft.trigger.signature === "string" && draft.trigger.signature ? [draft.trigger.signature] : [];
  const { event, eventNames } = draft.trigger;
  const names = Array.isArray(eventNames) ? eventNames.filter((name) => typeof name === "string") : [];
  return [...new Set([...(typeof event === "string" && event ? [event] : []), ...names])];
}

/** The locales that a message has texts for. */
export function localesOf(draft: Draft): string[] {
  return [...new Set([...draft.nodes.values()].flatMap((step) => (isObject(step.data?.locales) ? Object.keys(step.data.locales) : [])))].sort();
}

/** Steps with the edges between them. */
export interface CopiedSteps {
  steps: Step[];
  edges: Edge[];
}

export function copySteps(draft: Draft, keys: Iterable<string>): CopiedSteps {
  const steps = [...keys].flatMap((key) => draft.nodes.get(key) ?? []).filter((step) => !isTrigger(step));
  const ids = new Set(steps.map((step) => step.id));
  return { steps, edges: [...draft.edges.values()].filter((edge) => ids.has(edge.source) && ids.has(edge.target)) };
}

/** Insert steps with new ids, beside the originals where no card is. */
export function paste(draft: Draft, cards: Cards, { steps, edges }: CopiedSteps): { patch: Patch; keys: string[] } {
  const names = new Map<string, string>();
  let pasted: Draft = draft; // with the steps so far, so that each gets an id of its own
  const nodes: Record<string, Step> = {};
  let aside = 0;
  while (steps.some((step) => isOccupied(draft, cards, { x: pointOf(step).x + aside, y: pointOf(step).y }, NEW_CARD_HEIGHT))) aside += COLUMN_WIDTH;
  for (const step of steps) {
    const id = freeId(pasted, step.id.replace(/_\d+$/, ""));
    const { x, y } = pointOf(step);
    names.set(step.id, id);
    nodes[id] = { ...structuredClone(step), id, position: rounded({ x: x + aside, y }) };
    pasted = { ...pasted, nodes: new Map([...pasted.nodes, [id, nodes[id]!]]) };
  }
  const copied = edges.map((edge) => {
    const ends = { source: names.get(edge.source)!, target: names.get(edge.target)! };
    return { ...edge, ...ends, id: edgeBetween(ends.source, edge.sourceHandle || null, ends.target).id };
  });
  const keys = Object.keys(nodes);
  return {
    patch: {
      nodes,
      edges: Object.fromEntries(copied.map((edge) => [freeKey(draft, edge.id!), edge])),
      order: [...draft.nodes.keys(), ...keys],
      created: keys,
    },
    keys,
  };
}
