// What Python sends and takes (workbench/canvas). The browser knows no rule of the language: it shows what it is told.

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

/** A draft in pieces. Keys are ids wherever those are unambiguous. */
export interface Sheet {
  nodes: ReadonlyMap<string, Step>;
  edges: ReadonlyMap<string, Edge>;
  trigger: Obj;
  beside: Obj;
}

/** What changed: pieces by key, null for those that are gone. */
export interface Patch {
  nodes?: Record<string, Step | null>;
  edges?: Record<string, Edge | null>;
  beside?: Record<string, Json>;
  trigger?: Obj;
  order?: string[];
  fresh?: string[];
}

export interface Document {
  nodes: { key: string; node: Step }[];
  edges: { key: string; edge: Edge }[];
  trigger: Obj;
  beside: Obj;
  revision: number;
  seen: Record<string, number>;
}

export interface Way {
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
  ways: Way[];
  valid: boolean;
}

/** What an edge passes on its way down: a middle, and from which height to which it is kept. */
export type Lane = [number, number, number][];

export interface Field {
  name: string;
  control: string;
  label: string;
  hint: string;
}

export interface Kind {
  kind: string;
  label: string;
  group: string;
  about: string;
  color: string;
  icon: string;
  blank: Obj;
  ways: Way[];
  fields: Field[];
}

export interface Remark {
  level: "error" | "warning";
  message: string;
  key: string | null;
  field: string;
}

export interface Status {
  name: string;
  pills: { text: string; look: string }[];
  published: boolean;
  active: boolean;
  paused: boolean;
  archived: boolean;
  connected: boolean;
  stale: string;
}

export interface Count {
  live: number;
  passed: number;
  failed: number;
  outcomes: { says: string; count: number }[];
}

export interface Counts {
  nodes?: Record<string, Count>;
  headline?: string;
  elsewhere?: number;
}

export interface Choices {
  events: { name: string; count: number }[];
  paths: Record<string, { path: string; types: string[]; samples: string[] }[]>;
  builtIns: string[];
  attributes: { name: string; samples: string[] }[];
  tags: string[];
  segments: string[];
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
  asked: string;
  found: string;
}

export interface Message {
  title: string;
  body: string;
  where: string;
  html: boolean;
}

export interface Preview extends Message {
  says: string;
  asked: Verdict[];
  error: string;
  note: string;
}

export type Mark = "done" | "failed" | "waiting" | "skipped" | "goal";

export interface Trial {
  headline: string;
  reason: string;
  note: string;
  state: string;
  look: string;
  marks: Record<string, Mark>;
  ways: { key: string; handle: string | null }[];
  offsets: Record<string, string>;
  messages: Message[];
  whys: { title: string; asked: Verdict[] }[];
  steps: { key: string | null; node: string; says: string; detail: string; offset: string }[];
}

export interface Impact {
  says: string;
  headline: string;
  columns?: string[];
  rows: string[][];
}

/** What anywidget gives a view. */
export interface Model {
  get(name: string): any;
  on(event: string, callback: (...given: any[]) => void): void;
  off(event: string, callback: (...given: any[]) => void): void;
  send(content: unknown): void;
}
