// The state of one view: the draft that Python sent, with the edits of this view on top that Python has not acknowledged yet.
import { apply, compose, draftOf, inverse } from "./patch";
import type { Card, Choices, Counts, Diagnostic, Draft, DraftDocument, Kind, Model, Operator, Patch, Route, Status } from "./types";

const BATCH_MS = 80; // edits within this time are sent as one message
const PING_INTERVAL_MS = 2_500;
const KERNEL_TIMEOUT_MS = 7_000; // without an answer for this long, the kernel counts as lost
const UNDO_GROUP_MS = 1_200; // edits of one field within this time are undone together

interface PendingEdit {
  number: number | null; // null: not sent yet
  patch: Patch;
}

interface HistoryItem {
  undo: Patch;
  redo: Patch;
  tag: string;
  at: number;
}

interface OpenRequest {
  resolve: (value: any) => void;
  reject: (error: Error) => void;
}

export interface Notice {
  look: "good" | "bad";
  text: string;
}

export interface CanvasState {
  draft: Draft;
  cards: Record<string, Card>;
  routes: Record<string, Route>;
  diagnostics: Diagnostic[];
  status: Status;
  counts: Counts;
  kinds: Kind[];
  operators: Operator[];
  choices: Choices;
  readOnly: boolean;
  kernelAlive: boolean;
  unsent: boolean;
  notice: Notice | null;
  canUndo: boolean;
  canRedo: boolean;
}

/** The automation has a newer revision on the server. */
class ConflictError extends Error {}

const NO_CHOICES: Choices = { events: [], paths: {}, builtIns: [], attributes: [], tags: [], segments: [], snippets: [], connections: [], topics: [], channels: [] };

export class CanvasStore {
  private readonly viewId = crypto.getRandomValues(new Uint32Array(2)).join("-");
  private readonly listeners = new Set<() => void>();
  private readonly requests = new Map<number, OpenRequest>();
  private pending: PendingEdit[] = [];
  private past: HistoryItem[] = [];
  private future: HistoryItem[] = [];
  private editNumber = 0;
  private requestNumber = 0;
  private unansweredSince: number | null = null;
  private sendTimer: ReturnType<typeof setTimeout> | undefined;
  private readonly pingTimer: ReturnType<typeof setInterval>;
  private state: CanvasState;

  constructor(private readonly model: Model) {
    this.state = {
      draft: draftOf(model.get("document")),
      cards: model.get("cards"),
      routes: model.get("routes"),
      diagnostics: model.get("diagnostics"),
      status: model.get("status"),
      counts: model.get("counts"),
      ...(model.get("palette") as { kinds: Kind[]; operators: Operator[] }),
      choices: NO_CHOICES,
      readOnly: model.get("read_only") || model.get("status").archived,
      kernelAlive: true,
      unsent: false,
      notice: null,
      canUndo: false,
      canRedo: false,
    };
    model.on("change:document", this.receiveDocument);
    for (const name of OTHER_TRAITS) model.on(`change:${name}`, this.receiveTraits);
    model.on("msg:custom", this.receiveMessage);
    this.pingTimer = setInterval(this.ping, PING_INTERVAL_MS);
    this.ping();
  }

  close(): void {
    this.model.off("change:document", this.receiveDocument);
    for (const name of OTHER_TRAITS) this.model.off(`change:${name}`, this.receiveTraits);
    this.model.off("msg:custom", this.receiveMessage);
    clearInterval(this.pingTimer);
    clearTimeout(this.sendTimer);
    this.sendEdits();
  }

  readonly subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  readonly current = (): CanvasState => this.state;

  // Edits

  /** Change the draft. Edits with the same `tag` that follow each other closely are undone together. */
  edit(patch: Patch, tag = ""): void {
    if (this.state.readOnly) return;
    const undo = inverse(this.state.draft, patch);
    const last = this.past.at(-1);
    const now = Date.now();
    if (tag && last?.tag === tag && now - last.at < UNDO_GROUP_MS) {
      last.undo = compose(undo, last.undo);
      last.redo = compose(last.redo, patch);
      last.at = now;
    } else {
      this.past.push({ undo, redo: patch, tag, at: now });
    }
    this.future = [];
    this.write(patch);
  }

  undo(): void {
    const item = this.past.pop();
    if (!item || this.state.readOnly) return;
    this.future.push(item);
    this.write(item.undo);
  }

  redo(): void {
    const item = this.future.pop();
    if (!item || this.state.readOnly) return;
    this.past.push({ ...item, tag: "" });
    // Without `created`: if undo and redo are sent in one batch, the step exists in Python all the time.
    this.write({ ...item.redo, created: [] });
  }

  private write(patch: Patch): void {
    this.pending.push({ number: null, patch });
    this.update({ draft: apply(this.state.draft, patch) });
    this.sendTimer ??= setTimeout(this.sendEdits, BATCH_MS);
  }

  private readonly sendEdits = (): void => {
    this.sendTimer = undefined;
    const unsent = this.pending.filter((edit) => edit.number === null);
    if (!unsent.length) return;
    const patch = unsent.map((edit) => edit.patch).reduce(compose);
    const number = ++this.editNumber;
    this.pending = [...this.pending.filter((edit) => edit.number !== null), { number, patch }];
    this.send({ kind: "edit", view: this.viewId, number, patch });
  };

  // Requests

  /** Send a request to Python. Edits are sent first, so that the answer takes them into account. */
  request<T>(name: string, parameters: Record<string, unknown> = {}): Promise<T> {
    clearTimeout(this.sendTimer);
    this.sendEdits();
    const id = ++this.requestNumber;
    return new Promise<T>((resolve, reject) => {
      this.requests.set(id, { resolve, reject });
      this.send({ ...parameters, kind: "request", name, id: `${this.viewId}/${id}` });
    });
  }

  /** Change the automation on the server, and show the result; true if it succeeded. */
  async change(name: string, parameters: Record<string, unknown> = {}): Promise<boolean> {
    try {
      this.notify("good", await this.request<string>(name, parameters));
      if (name === "reload") this.clearHistory();
      return true;
    } catch (error) {
      // The banner about the newer revision offers a way out, so a notice would only repeat it.
      if (error instanceof ConflictError) this.clearNotice();
      else this.notify("bad", (error as Error).message);
      return false;
    }
  }

  notify(look: Notice["look"], text: string): void {
    this.update({ notice: { look, text } });
  }

  clearNotice(): void {
    this.update({ notice: null });
  }

  async loadChoices(): Promise<void> {
    try {
      this.update({ choices: await this.request<Choices>("choices") });
    } catch {
      this.update({ choices: NO_CHOICES }); // names can still be typed
    }
  }

  private clearHistory(): void {
    this.past = [];
    this.future = [];
    this.update({});
  }

  // Messages from Python

  private readonly receiveDocument = (): void => {
    const document: DraftDocument = this.model.get("document");
    const acknowledged = document.acknowledged[this.viewId] ?? 0;
    this.pending = this.pending.filter((edit) => edit.number === null || edit.number > acknowledged);
    this.markAlive();
    this.update({ draft: this.pending.reduce((draft, edit) => apply(draft, edit.patch), draftOf(document)) });
  };

  private readonly receiveTraits = (): void => {
    this.markAlive();
    const traits = Object.fromEntries(TRAITS.map((name) => [name, this.model.get(name)])) as Pick<CanvasState, (typeof TRAITS)[number]>;
    this.update({ ...traits, readOnly: this.model.get("read_only") || traits.status.archived });
  };

  private readonly receiveMessage = (content: any): void => {
    this.markAlive();
    if (content.kind === "rejected" && content.view === this.viewId) {
      this.past.pop();
      this.notify("bad", `This change was rejected: ${content.reason}.`);
    }
    if (content.kind !== "response") return;
    // All views of a canvas get all messages.
    const [view, id] = String(content.id).split("/");
    const request = view === this.viewId ? this.requests.get(Number(id)) : undefined;
    if (!request) return;
    this.requests.delete(Number(id));
    if ("error" in content) request.reject(content.stale ? new ConflictError(content.error) : new Error(content.error));
    else request.resolve(content.value);
  };

  private markAlive(): void {
    this.unansweredSince = null;
    if (this.state.kernelAlive) return;
    this.update({ kernelAlive: true });
    // Python ignores an edit that it has already applied, so it is safe to send all of them again.
    for (const { number, patch } of this.pending) {
      if (number !== null) this.send({ kind: "edit", view: this.viewId, number, patch });
    }
  }

  private readonly ping = (): void => {
    if (document.visibilityState === "hidden") return;
    this.send({ kind: "ping", view: this.viewId });
    if (this.unansweredSince !== null && Date.now() - this.unansweredSince > KERNEL_TIMEOUT_MS) this.markLost();
  };

  private send(content: unknown): void {
    this.unansweredSince ??= Date.now();
    try {
      this.model.send(content);
    } catch {
      this.markLost(); // the comm of a stopped kernel throws
    }
  }

  private markLost(): void {
    this.update({ kernelAlive: false });
    for (const { reject } of this.requests.values()) reject(new Error("The kernel does not answer"));
    this.requests.clear();
  }

  private update(change: Partial<CanvasState>): void {
    this.state = {
      ...this.state,
      ...change,
      unsent: this.pending.length > 0,
      canUndo: this.past.length > 0,
      canRedo: this.future.length > 0,
    };
    for (const listener of this.listeners) listener();
  }
}

const TRAITS = ["cards", "routes", "diagnostics", "status", "counts"] as const;
const OTHER_TRAITS = [...TRAITS, "read_only"];
