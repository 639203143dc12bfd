// The values that Python sends and takes (workbench/canvas). The browser knows no rules of the language.

export type Json = null | boolean | number | string | Json[] | Obj;
export interface Obj {
  [name: string]: Json;
}

export interface Step {
  id: string;
  type: string;
  position?: { x: number; y: number };
  data?: Obj | null;
}

export interface Edge {
  id?: string;
  source: string;
  target: string;
  sourceHandle?: string | null;
}

/** A draft in pieces. The key of a piece is its id, wherever the id is unambiguous. */
export interface Draft {
  nodes: ReadonlyMap<string, Step>;
  edges: ReadonlyMap<string, Edge>;
  trigger: Obj;
  extra: Obj;
}

/** A change: new pieces by key, null for removed ones. */
export interface Patch {
  nodes?: Record<string, Step | null>;
  edges?: Record<string, Edge | null>;
  extra?: Record<string, Json>;
  trigger?: Obj;
  order?: string[];
  created?: string[]; // nodes that must not exist yet
}

/** The draft as Python sends it. */
export interface DraftDocument {
  nodes: { key: string; node: Step }[];
  edges: { key: string; edge: Edge }[];
  trigger: Obj;
  extra: Obj;
  revision: number;
  acknowledged: Record<string, number>; // number of the last edit by view
}

export interface Output {
  handle: string | null;
  label: string;
}

export interface Card {
  kind: string;
  title: string[];
  lines: string[];
  color: string;
  icon: string;
  height: number;
  outputs: Output[];
  valid: boolean;
}

/** Vertical parts of an edge on its output down: x, and the top and bottom between which it keeps this x. */
export type Route = [number, number, number][];

export interface Field {
  name: string;
  control: string;
  label: string;
  hint: string;
  optional: boolean;
}

export interface Kind {
  kind: string;
  label: string;
  group: string;
  about: string;
  color: string;
  icon: string;
  blank: Obj;
  outputs: Output[];
  fork: { field: string; outputs: Output[] } | null; // the outputs of a step that has a value in this field
  fields: Field[];
}

/** An operator of filters, with the shape of the value of its filters. */
export interface Operator {
  name: string;
  label: string;
  operand: "value" | "list" | "nothing";
}

export interface Diagnostic {
  level: "error" | "warning";
  message: string;
  key: string | null;
  field: string;
  consent: "every_event" | "accept_dropped" | null; // what the user must agree to before this is published
}

export interface Status {
  name: string;
  pills: { text: string; look: string }[];
  state: "draft" | "live" | "paused" | "off";
  archived: boolean;
  connected: boolean;
  stale: string;
}

/** Whether everything is stopped, and what that stopped or would stop, in words. */
export interface Stop {
  stopped: boolean;
  text: string;
}

/** How many contacts a broadcast would start, in words; `counted` goes with the broadcast. */
export interface Recipients {
  text: string;
  warnings: string[];
  counted: Obj;
}

export interface Count {
  live: number;
  passed: number;
  failed: number;
  outcomes: { outcome: string; count: number }[];
  figures: [string, number][]; // of the messages of the step, as its card shows them
  messages: [string, number][]; // all figures of these messages
}

export interface Counts {
  nodes?: Record<string, Count>;
  headline?: string;
  atRemovedSteps?: number;
}

export interface Choices {
  events: { name: string; count: number }[];
  paths: Record<string, { path: string; types: string[]; samples: string[] }[]>;
  builtIns: string[];
  attributes: { name: string; samples: string[] }[];
  tags: string[];
  segments: string[];
  snippets: string[];
  connections: { name: string; fields: { name: string; required: boolean }[] }[];
  topics: { name: string; label: string }[];
  channels: { address: string; noun: string }[];
}

export interface Sample {
  label: string;
  event: string;
  payload: string;
  contactId: string;
  contact: string;
}

export interface Verdict {
  passed: boolean;
  condition: string;
  actual: string;
}

export interface Message {
  title: string;
  body: string;
  destination: string;
  html: boolean;
}

export interface Preview extends Message {
  text: string;
  verdicts: Verdict[];
  error: string;
  note: string;
}

export type Mark = "done" | "failed" | "waiting" | "skipped" | "goal";

export interface Simulation {
  headline: string;
  reason: string;
  note: string;
  state: string;
  look: string;
  marks: Record<string, Mark>;
  path: { key: string; handle: string | null }[];
  offsets: Record<string, string>;
  messages: Message[];
  explanations: { title: string; verdicts: Verdict[] }[];
  steps: { key: string | null; node: string; outcome: string; detail: string; offset: string }[];
}

export interface Impact {
  summary: string;
  headline: string;
  columns?: string[];
  rows: string[][];
}

/** What publishing could do with entries of earlier versions. `movable`: how many can continue on the new version. */
export interface Moves {
  movable: number;
  headline: string;
  tables: { title: string; columns: string[]; rows: string[][] }[];
}

/** The model that anywidget passes to a view. */
export interface Model {
  get(name: string): any;
  on(event: string, callback: (...values: any[]) => void): void;
  off(event: string, callback: (...values: any[]) => void): void;
  send(content: unknown): void;
}
