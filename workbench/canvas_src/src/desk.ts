// The draft as this view sees it: what Python has, and on top of it what this view has changed and Python has not confirmed yet.
import { EMPTY, apply, both, inverse, sheetOf } from "./patch";
import type { Card, Choices, Counts, Document, Kind, Lane, Model, Patch, Remark, Sheet, Status } from "./types";

const PAUSE = 80; // ms in which changes are gathered into one message
const TICK = 2_500;
const PATIENCE = 7_000; // ms without an answer before we say so
const SAME = 1_200; // ms in which changes of one field are one step back

interface Pending {
  number: number | null; // null: not sent yet
  patch: Patch;
}

interface Change {
  back: Patch;
  forth: Patch;
  tag: string;
  at: number;
}

export interface Notice {
  look: "good" | "bad";
  text: string;
}

export interface View {
  sheet: Sheet;
  cards: Record<string, Card>;
  lanes: Record<string, Lane>;
  remarks: Remark[];
  status: Status;
  counts: Counts;
  kinds: Kind[];
  operators: string[];
  choices: Choices;
  readOnly: boolean;
  alive: boolean;
  unsent: boolean;
  notice: Notice | null;
  canUndo: boolean;
  canRedo: boolean;
}

/** Somebody else has changed the automation on the server. */
class Stale extends Error {}

const NOTHING: Choices = { events: [], paths: {}, builtIns: [], attributes: [], tags: [], segments: [] };

export class Desk {
  private readonly name = crypto.getRandomValues(new Uint32Array(2)).join("-");
  private readonly listeners = new Set<() => void>();
  private readonly waiting = new Map<number, { done: (value: any) => void; failed: (error: Error) => void }>();
  private base: Sheet = EMPTY;
  private pending: Pending[] = [];
  private past: Change[] = [];
  private future: Change[] = [];
  private number = 0;
  private asked = 0;
  private unanswered: number | null = null; // since when
  private flushing: ReturnType<typeof setTimeout> | undefined;
  private ticking: ReturnType<typeof setInterval> | undefined;
  private view: View;

  constructor(private readonly model: Model) {
    this.base = sheetOf(model.get("document"));
    this.view = {
      sheet: this.base,
      cards: model.get("cards"),
      lanes: model.get("lanes"),
      remarks: model.get("remarks"),
      status: model.get("status"),
      counts: model.get("counts"),
      kinds: model.get("kinds"),
      operators: model.get("operators"),
      choices: NOTHING,
      readOnly: model.get("read_only") || model.get("status").archived,
      alive: true,
      unsent: false,
      notice: null,
      canUndo: false,
      canRedo: false,
    };
    model.on("change:document", this.take);
    for (const name of PLAIN) model.on(`change:${name}`, this.copy);
    model.on("msg:custom", this.hear);
    this.ticking = setInterval(this.tick, TICK);
    this.tick();
  }

  close(): void {
    this.model.off("change:document", this.take);
    for (const name of PLAIN) this.model.off(`change:${name}`, this.copy);
    this.model.off("msg:custom", this.hear);
    clearInterval(this.ticking);
    clearTimeout(this.flushing);
    this.flush();
  }

  readonly subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  readonly current = (): View => this.view;

  // Changing

  /** Change the draft. Changes of one `tag` that follow each other closely are one step back. */
  edit(patch: Patch, tag = ""): void {
    if (this.view.readOnly) return;
    const back = inverse(this.view.sheet, patch);
    const last = this.past.at(-1);
    const now = Date.now();
    if (tag && last?.tag === tag && now - last.at < SAME) {
      last.back = both(back, last.back);
      last.forth = both(last.forth, patch);
      last.at = now;
    } else {
      this.past.push({ back, forth: patch, tag, at: now });
    }
    this.future = [];
    this.write(patch);
  }

  undo(): void {
    const change = this.past.pop();
    if (!change || this.view.readOnly) return;
    this.future.push(change);
    this.write(change.back);
  }

  redo(): void {
    const change = this.future.pop();
    if (!change || this.view.readOnly) return;
    this.past.push({ ...change, tag: "" });
    this.write({ ...change.forth, fresh: [] });
  }

  private write(patch: Patch): void {
    this.pending.push({ number: null, patch });
    this.update({ sheet: apply(this.view.sheet, patch) });
    this.flushing ??= setTimeout(this.flush, PAUSE);
  }

  private readonly flush = (): void => {
    this.flushing = undefined;
    const unsent = this.pending.filter((each) => each.number === null);
    if (!unsent.length) return;
    const patch = unsent.map((each) => each.patch).reduce(both);
    const number = ++this.number;
    this.pending = [...this.pending.filter((each) => each.number !== null), { number, patch }];
    this.send({ kind: "edit", view: this.name, number, patch });
  };

  // Asking

  /** Ask Python; what this view has changed is there before the question. */
  ask<T>(what: string, more: Record<string, unknown> = {}): Promise<T> {
    clearTimeout(this.flushing);
    this.flush();
    const id = ++this.asked;
    return new Promise<T>((done, failed) => {
      this.waiting.set(id, { done, failed });
      this.send({ ...more, kind: "ask", what, id: `${this.name}/${id}` });
    });
  }

  /** Ask for something to be done, and show what came of it; true when it was done. */
  async do(what: string, more: Record<string, unknown> = {}): Promise<boolean> {
    try {
      this.say("good", await this.ask<string>(what, more));
      if (what === "reload") this.forget();
      return true;
    } catch (error) {
      if (error instanceof Stale) this.hush(); // said where it can be mended
      else this.say("bad", (error as Error).message);
      return false;
    }
  }

  say(look: Notice["look"], text: string): void {
    this.update({ notice: { look, text } });
  }

  hush(): void {
    this.update({ notice: null });
  }

  async choose(): Promise<void> {
    try {
      this.update({ choices: await this.ask<Choices>("choices") });
    } catch {
      this.update({ choices: NOTHING }); // then everything is typed by hand
    }
  }

  private forget(): void {
    this.past = [];
    this.future = [];
    this.update({});
  }

  // Hearing

  private readonly take = (): void => {
    const document: Document = this.model.get("document");
    const known = document.seen[this.name] ?? 0;
    this.pending = this.pending.filter((each) => each.number === null || each.number > known);
    this.base = sheetOf(document);
    const sheet = this.pending.reduce((so, each) => apply(so, each.patch), this.base);
    this.heard();
    this.update({ sheet });
  };

  private readonly copy = (): void => {
    this.heard();
    const model = this.model;
    const shown = Object.fromEntries(SHOWN.map((name) => [name, model.get(name)])) as Pick<View, (typeof SHOWN)[number]>;
    this.update({ ...shown, readOnly: model.get("read_only") || shown.status.archived });
  };

  private readonly hear = (content: any): void => {
    this.heard();
    if (content.kind === "refused" && content.view === this.name) {
      this.past.pop();
      this.say("bad", `This change was rejected: ${content.why}.`);
    }
    if (content.kind !== "answer") return;
    const [view, id] = String(content.id).split("/");
    const question = view === this.name ? this.waiting.get(Number(id)) : undefined;
    if (!question) return;
    this.waiting.delete(Number(id));
    if ("error" in content) question.failed(content.stale ? new Stale(content.error) : new Error(content.error));
    else question.done(content.value);
  };

  private heard(): void {
    this.unanswered = null;
    if (this.view.alive) return;
    this.update({ alive: true });
    for (const { number, patch } of this.pending) {
      if (number !== null) this.send({ kind: "edit", view: this.name, number, patch });
    }
  }

  private readonly tick = (): void => {
    if (document.visibilityState === "hidden") return;
    this.send({ kind: "tick", view: this.name });
    if (this.unanswered !== null && Date.now() - this.unanswered > PATIENCE) this.lose();
  };

  private send(content: unknown): void {
    this.unanswered ??= Date.now();
    try {
      this.model.send(content);
    } catch {
      this.lose();
    }
  }

  /** Nobody answers: say so, and let nobody wait for it. */
  private lose(): void {
    this.update({ alive: false });
    for (const { failed } of this.waiting.values()) failed(new Error("The kernel does not answer"));
    this.waiting.clear();
  }

  private update(change: Partial<View>): void {
    this.view = {
      ...this.view,
      ...change,
      unsent: this.pending.length > 0,
      canUndo: this.past.length > 0,
      canRedo: this.future.length > 0,
    };
    for (const listener of this.listeners) listener();
  }
}

const SHOWN = ["cards", "lanes", "remarks", "status", "counts"] as const;
const PLAIN = [...SHOWN, "read_only"];
