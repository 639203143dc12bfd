// Changes of the graph: each function returns the patch that makes one.
import { isObject } from "./exact";
import type { Card, Edge, Json, Kind, Obj, Patch, Sheet, Step } from "./types";

export const WIDTH = 280;
export const HEIGHT = 90; // what a new card may need
const ACROSS = 316;
const DOWN = 54;
const ON_CHAIN = "onchain_event";
const TRIGGERS = new Set([ON_CHAIN, "app_event", "custom_event", "app-event", "custom-event", "appevent"]);

export interface End {
  key: string;
  handle: string | null;
}

/** The card of a node; of one that Python has not seen yet, the one of its kind. */
export type Cards = (key: string) => Card;

/** The card of a step as it is now: what Python has told of it, or the one of its kind; the ways of a split are those in its form. */
export function cardNow(card: Card | undefined, kinds: Kind[], step: Step | undefined): Card {
  const known = card ?? blankCard(kinds, step);
  const branches = step?.type === "split" && Array.isArray(step.data?.branches) ? step.data.branches.filter(isObject) : [];
  const names = [...new Set(branches.map((each) => each.handle))].filter((each): each is string => typeof each === "string" && each !== "");
  if (!names.length || names.join("\n") === known.ways.map((way) => way.handle).join("\n")) return known;
  const labels = new Map(known.ways.map((way) => [way.handle, way.label]));
  return { ...known, ways: names.map((handle) => ({ handle, label: labels.get(handle) ?? handle })) };
}

function blankCard(kinds: Kind[], step: Step | undefined): Card {
  const kind = kinds.find((each) => each.kind === step?.type);
  const look = { color: kind?.color ?? "#5d6878", icon: kind?.icon ?? "alert" };
  const ways = kind?.ways ?? [{ handle: null, label: "" }];
  return { kind: kind?.label ?? step?.type ?? "", title: [step?.id ?? ""], lines: [], ...look, height: 54, ways, valid: true };
}

export function isTrigger(step: Step | undefined): boolean {
  return step !== undefined && TRIGGERS.has(step.type);
}

/** Which kind of trigger the automation has, whatever stands on its first node. */
export function triggerKind(sheet: Sheet): string {
  return sheet.trigger.type === ON_CHAIN ? ON_CHAIN : "app_event";
}

/** The key of each id: the first, where drafts have two of one. */
export function keysById(sheet: Sheet): Map<string, string> {
  const keys = new Map<string, string>();
  for (const [key, step] of sheet.nodes) if (!keys.has(step.id)) keys.set(step.id, key);
  return keys;
}

export function pointOf(step: Step): { x: number; y: number } {
  const { x, y } = step.position ?? {};
  return { x: Number(x) || 0, y: Number(y) || 0 };
}

/** The edge that leaves by a way out, if one does. */
export function leaving(sheet: Sheet, end: End): [string, Edge] | undefined {
  const id = sheet.nodes.get(end.key)?.id;
  return [...sheet.edges].find(([, edge]) => edge.source === id && (edge.sourceHandle || null) === end.handle);
}

/** Where the next step goes: an open way of the node that is selected, else of the last node that has one. */
export function openEnd(sheet: Sheet, cards: Cards, selected: string | null): End | null {
  const from = selected !== null && sheet.nodes.has(selected) ? [selected] : [...sheet.nodes.keys()].reverse();
  for (const key of from) {
    for (const { handle } of cards(key).ways) if (!leaving(sheet, { key, handle })) return { key, handle };
  }
  return null;
}

/** Whether an edge may lead there: no loops, nothing leads to the trigger. */
export function mayConnect(sheet: Sheet, source: string, target: string): boolean {
  if (source === target || isTrigger(sheet.nodes.get(target))) return false;
  const ids = keysById(sheet);
  const reached = new Set([target]);
  for (const key of reached) {
    const id = sheet.nodes.get(key)?.id;
    for (const edge of sheet.edges.values()) {
      const next = edge.source === id ? ids.get(edge.target) : undefined;
      if (next !== undefined) reached.add(next);
    }
  }
  return !reached.has(source);
}

export function connect(sheet: Sheet, end: End, target: string): Patch {
  const source = sheet.nodes.get(end.key);
  const step = sheet.nodes.get(target);
  if (!source || !step) return {};
  const before = leaving(sheet, end);
  const edge = edgeBetween(source.id, end.handle, step.id);
  return { edges: { ...(before ? { [before[0]]: null } : {}), [freeKey(sheet, edge.id!)]: edge } };
}

function edgeBetween(source: string, handle: string | null, target: string): Edge {
  if (handle === null) return { id: `${source}-${target}`, source, target };
  return { id: `${source}-${handle}-${target}`, source, sourceHandle: handle, target };
}

function freeKey(sheet: Sheet, key: string): string {
  let free = key;
  for (let number = 2; sheet.edges.has(free); number++) free = `${key}-${number}`;
  return free;
}

export interface Added {
  patch: Patch;
  key: string;
}

/** A new step, behind an open end if there is one, in between where a way is taken already. */
export function add(sheet: Sheet, kind: Kind, cards: Cards, end: End | null, at?: { x: number; y: number }): Added {
  const id = freeId(sheet, kind.kind);
  const source = end ? sheet.nodes.get(end.key) : undefined;
  const place = at ?? (end && source ? below(sheet, source, cards, end) : free(sheet, cards, { x: 14, y: 14 }));
  const step: Step = { id, type: kind.kind, position: rounded(place), data: structuredClone(kind.blank) };
  const trigger = isTrigger(step);
  const order = trigger ? [id, ...sheet.nodes.keys()] : [...sheet.nodes.keys(), id];
  const patch: Patch = { nodes: { [id]: step }, order, fresh: [id] };
  if (trigger && kind.kind !== triggerKind(sheet)) patch.trigger = { type: kind.kind };
  if (!end || !source || trigger) return { patch, key: id };
  const taken = leaving(sheet, end);
  const edge = edgeBetween(source.id, end.handle, id);
  patch.edges = { [freeKey(sheet, edge.id!)]: edge };
  if (taken) {
    patch.edges[taken[0]] = null;
    const onward = onwardFrom(kind, id, taken[1].target);
    if (onward) patch.edges[freeKey(sheet, onward.id!)] = onward;
  }
  return { patch, key: id };
}

function onwardFrom(kind: Kind, id: string, target: string): Edge | null {
  const first = FIRST_WAY[kind.kind];
  if (first === undefined) return edgeBetween(id, null, target);
  return first === null ? null : edgeBetween(id, first, target);
}

/** By which way the graph goes on when a step is put in between; null: by none. */
const FIRST_WAY: Record<string, string | null> = { condition: "true", wait_for_event: "matched", split: "a", exit: null };

function freeId(sheet: Sheet, stem: string): string {
  const taken = new Set([...sheet.nodes.keys(), ...[...sheet.nodes.values()].map((step) => step.id)]);
  let id = stem;
  for (let number = 2; taken.has(id); number++) id = `${stem}_${number}`;
  return id;
}

function below(sheet: Sheet, source: Step, cards: Cards, end: End): { x: number; y: number } {
  const { x, y } = pointOf(source);
  const { ways, height } = cards(end.key);
  const index = Math.max(ways.findIndex((way) => way.handle === end.handle), 0);
  const aside = (index - (Math.max(ways.length, 1) - 1) / 2) * ACROSS;
  return free(sheet, cards, { x: x + aside, y: y + height + DOWN }, aside < 0 ? -1 : 1);
}

/** The nearest spot beside `wanted` where no other card stands. */
function free(sheet: Sheet, cards: Cards, wanted: { x: number; y: number }, side = 1): { x: number; y: number } {
  const others = [...sheet.nodes].map(([key, step]) => ({ ...pointOf(step), height: cards(key).height }));
  const { y } = wanted;
  let { x } = wanted;
  const meets = () => others.some((each) => Math.abs(each.x - x) < WIDTH && each.y < y + HEIGHT && each.y + each.height > y - DOWN / 2);
  while (meets()) x += side * ACROSS;
  return { x, y };
}

function rounded({ x, y }: { x: number; y: number }): { x: number; y: number } {
  return { x: Math.round(x), y: Math.round(y) };
}

/** Take steps out. Where exactly one way led to a step and one went on, they are joined. */
export function remove(sheet: Sheet, keys: Iterable<string>, edgeKeys: Iterable<string> = []): Patch {
  const gone = new Set(keys);
  const ids = new Set([...gone].map((key) => sheet.nodes.get(key)?.id));
  const edges: Record<string, Edge | null> = Object.fromEntries([...edgeKeys].map((key) => [key, null]));
  const coming: Edge[] = [];
  const going: Edge[] = [];
  for (const [key, edge] of sheet.edges) {
    const [from, to] = [ids.has(edge.source), ids.has(edge.target)];
    if (!from && !to) continue;
    edges[key] = null;
    if (to && !from) coming.push(edge);
    if (from && !to) going.push(edge);
  }
  if (gone.size === 1 && coming.length === 1 && going.length === 1) {
    const joined = edgeBetween(coming[0]!.source, coming[0]!.sourceHandle || null, going[0]!.target);
    edges[freeKey(sheet, joined.id!)] = joined;
  }
  if (!gone.size) return { edges };
  return { nodes: Object.fromEntries([...gone].map((key) => [key, null])), edges, order: [...sheet.nodes.keys()] };
}

export function move(sheet: Sheet, places: Record<string, { x: number; y: number }>): Patch {
  const moved = Object.entries(places).flatMap(([key, place]) => {
    const step = sheet.nodes.get(key);
    return step ? [[key, { ...step, position: rounded(place) }] as const] : [];
  });
  return { nodes: Object.fromEntries(moved) };
}

/** Change one field of a step; undefined takes it out. */
export function setField(sheet: Sheet, key: string, name: string, value: Json | undefined): Patch {
  const step = sheet.nodes.get(key);
  if (!step) return {};
  return { nodes: { [key]: { ...step, data: put(step.data ?? {}, name, value) } } };
}

export function put(data: Obj, name: string, value: Json | undefined): Obj {
  const { [name]: _, ...rest } = data;
  return value === undefined ? rest : { ...data, [name]: value };
}

/** Change the branches of a split; edges follow a way that is renamed, and go with one that is gone. */
export function setBranches(sheet: Sheet, key: string, branches: Obj[], renamed?: { from: string; to: string }): Patch {
  const step = sheet.nodes.get(key);
  const patch = setField(sheet, key, "branches", branches);
  const handles = new Set(branches.map((each) => each.handle));
  for (const [edgeKey, edge] of sheet.edges) {
    if (edge.source !== step?.id || !edge.sourceHandle) continue;
    patch.edges ??= {};
    if (renamed && edge.sourceHandle === renamed.from) patch.edges[edgeKey] = { ...edge, sourceHandle: renamed.to };
    else if (!handles.has(edge.sourceHandle)) patch.edges[edgeKey] = null;
  }
  return patch;
}

/** Name the events that start the automation, in the trigger and in the node that stands for it. */
export function setEvents(sheet: Sheet, names: string[]): Patch {
  const named = (values: Obj): Obj => {
    const { event: _, eventNames: __, ...rest } = values;
    if (!names.length) return rest;
    return names.length === 1 ? { ...rest, event: names[0]! } : { ...rest, eventNames: names };
  };
  const found = [...sheet.nodes].find(([, step]) => isTrigger(step));
  const nodes = found ? { [found[0]]: { ...found[1], data: named(found[1].data ?? {}) } } : {};
  return { trigger: named(sheet.trigger), nodes };
}

/** What starts it, as values are known of it: names of events, or the signature of a contract's. */
export function eventsOf(sheet: Sheet): string[] {
  if (sheet.trigger.type === ON_CHAIN) return typeof sheet.trigger.signature === "string" && sheet.trigger.signature ? [sheet.trigger.signature] : [];
  const { event, eventNames } = sheet.trigger;
  const several = Array.isArray(eventNames) ? eventNames.filter((each) => typeof each === "string") : [];
  return [...new Set([...(typeof event === "string" && event ? [event] : []), ...several])];
}

/** Everything that decides which samples there are, as a text. */
export function sourceOf(sheet: Sheet): string {
  const { filters: _, ...rest } = sheet.trigger;
  return sheet.trigger.type === ON_CHAIN ? JSON.stringify(rest) : eventsOf(sheet).join();
}

/** What is copied: steps with the edges between them. */
export interface Piece {
  steps: Step[];
  edges: Edge[];
}

export function piece(sheet: Sheet, keys: Iterable<string>): Piece {
  const steps = [...keys].flatMap((key) => sheet.nodes.get(key) ?? []).filter((step) => !isTrigger(step));
  const ids = new Set(steps.map((step) => step.id));
  return { steps, edges: [...sheet.edges.values()].filter((edge) => ids.has(edge.source) && ids.has(edge.target)) };
}

/** Steps put in again under free ids, a little aside. */
export function paste(sheet: Sheet, { steps, edges }: Piece): { patch: Patch; keys: string[] } {
  const names = new Map<string, string>();
  let so: Sheet = sheet;
  const nodes: Record<string, Step> = {};
  for (const step of steps) {
    const id = freeId(so, step.id.replace(/_\d+$/, ""));
    const { x, y } = pointOf(step);
    names.set(step.id, id);
    nodes[id] = { ...structuredClone(step), id, position: rounded({ x: x + 40, y: y + 40 }) };
    so = { ...so, nodes: new Map([...so.nodes, [id, nodes[id]!]]) };
  }
  const copied = edges.map((edge) => {
    const ends = { source: names.get(edge.source)!, target: names.get(edge.target)! };
    return { ...edge, ...ends, id: edgeBetween(ends.source, edge.sourceHandle || null, ends.target).id };
  });
  const keys = Object.keys(nodes);
  return {
    patch: {
      nodes,
      edges: Object.fromEntries(copied.map((edge) => [freeKey(sheet, edge.id!), edge])),
      order: [...sheet.nodes.keys(), ...keys],
      fresh: keys,
    },
    keys,
  };
}
