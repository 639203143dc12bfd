/**
 * A client for backends: `track` writes an event into a file, and the client sends the file in the background.
 *
 *     track → Spool.add → (a loop for each lane) Spool.oldest → POST /events/batch → Spool.settle
 */
import { createHash } from "node:crypto";
import { homedir } from "node:os";
import { join } from "node:path";

import { SpoolError, UnavailableError } from "./errors.js";
import { encodeEvent, LANES, sendingKey, type EventFields } from "./event.js";
import type { WaitingEvent } from "./file.js";
import { Loop } from "./loop.js";
import { Service } from "./service.js";
import { Spool } from "./spool.js";

const BATCH_SIZE = 100; // events in one request; the service accepts no more
const MAX_SPOOL_BYTES = 1_073_741_824;
const WAIT_FOR_OTHERS_MS = 100; // before the first event of a request is sent
const TAKE_OVER_INTERVAL_MS = 5_000; // how often a client looks for files of clients that ended
const REJECTED_WARNING_INTERVAL_MS = 60_000;
const EXIT_TIMEOUT_MS = 2_000; // the end of a process waits so long; the file keeps the other events
const WAITING_ERRORS = /^(RATE_LIMITED|INGEST_UNAVAILABLE)/;

export interface ClientOptions {
  /** By default WORKBENCH_URL, or http://127.0.0.1:8000. */
  url?: string;
  /** A live key or a test key; by default WORKBENCH_EVENTS_KEY. */
  key?: string;
  /** The folder that keeps the events; by default one for each URL in ~/.local/state/event-workbench. */
  spool?: string;
  /** The size of its files at which `track` throws SpoolError; 1 GB by default. */
  maxSpoolBytes?: number;
  /** Called with the receipt of each accepted or rejected event. */
  onReceipt?: (receipt: Receipt) => void;
}

/** What the service did with an event. */
export interface Receipt {
  accepted: boolean;
  deduplicated: boolean;
  idempotencyKey: string;
  /** Why an event was rejected. */
  error?: string;
  dryRun?: boolean;
  matchedAutomations?: number;
  warnings?: string[];
}

/** An event that the service rejected, in the JSON format of the API, and its error. */
export interface RejectedEvent {
  error: string;
  event: Record<string, unknown>;
}

/**
 * Sends events in the background.
 *
 *     new Client().track("deposit", { externalId: "user_1", payload: { amountUsd: 120 } });
 *
 * An event that `track` returned from is not lost when the process is killed or the service cannot be reached. It has
 * one idempotency key from the beginning, so the service stores it once, however often it is sent. Events that the
 * service rejects are kept apart, the newest 16 MB of them, and a warning says so.
 */
export class Client {
  readonly url: string;
  readonly #spool: Spool;
  readonly #service: Service;
  readonly #onReceipt: ((receipt: Receipt) => void) | undefined;
  readonly #lanes = Array.from({ length: LANES }, () => new Loop());
  readonly #takingOver = new Loop();
  readonly #loops = [...this.#lanes, this.#takingOver];
  readonly #running: Promise<unknown>;
  readonly #atExit = () => void this.#end(EXIT_TIMEOUT_MS).then(() => this.#spool.close());
  #isClosed = false;
  #tookOver = false;
  #waiters: (() => void)[] = []; // callers of `flush`, which look again after each batch
  #warnedOf: string | undefined; // why events wait
  #rejected = 0; // since the last warning
  #deleted = 0;
  #warnedAt = -Infinity;

  /** Throws AuthenticationError for a key that cannot send events, SpoolError for a folder that cannot be used. */
  constructor(options: ClientOptions = {}) {
    this.url = (options.url ?? (process.env["WORKBENCH_URL"] || "http://127.0.0.1:8000")).trim().replace(/\/+$/, "");
    const key = sendingKey(options.key ?? process.env["WORKBENCH_EVENTS_KEY"]);
    const name = createHash("sha256").update(this.url).digest("hex").slice(0, 16);
    const folder = options.spool ?? join(homedir(), ".local/state/event-workbench", name);
    this.#spool = new Spool(folder, key, options.maxSpoolBytes ?? MAX_SPOOL_BYTES);
    this.#service = new Service(this.url, key);
    this.#onReceipt = options.onReceipt;
    const onTurn = () => {
      this.#report();
      this.#wakeWaiters();
    };
    this.#running = Promise.all([
      this.#takingOver.run(() => this.#takeOver(), onTurn),
      ...this.#lanes.map((loop, lane) => loop.run(() => this.#sendOldest(lane), onTurn)),
    ]);
    process.once("beforeExit", this.#atExit);
  }

  /**
   * Store an event for sending, and return its idempotency key.
   *
   * Throws InvalidArgumentError for values that JSON lacks, SpoolError if the folder is full. Nothing is stored then.
   */
  track(event: string, fields: EventFields): string {
    if (this.#isClosed) throw new SpoolError("the client is closed; the event was not stored");
    const { key, lane, json } = encodeEvent(event, fields);
    this.#spool.add(lane, json);
    this.#lanes[lane]!.wake();
    return key;
  }

  /** Wait until the events that are stored now were accepted or rejected; return how many still wait. */
  async flush(timeoutMs = 30_000): Promise<number> {
    const until = performance.now() + timeoutMs;
    this.#loops.forEach((loop) => loop.hurry());
    await this.#waitFor(() => this.#tookOver, until); // the events of clients that ended count, too
    const backlog = this.#spool.backlog();
    await this.#waitFor(() => backlog.isSettled(), until);
    return backlog.count();
  }

  /**
   * The number of events that were not accepted or rejected yet. The first time, it reads the files of clients that
   * ended.
   */
  get waiting(): number {
    return this.#spool.backlog().count();
  }

  /** Why the last request failed; undefined if it succeeded. */
  get failure(): Error | undefined {
    return this.#loops.find((loop) => loop.failure !== undefined)?.failure;
  }

  /** Return the newest events that the service rejected. The client keeps the newest 16 MB of them. */
  rejected(limit = 1_000): RejectedEvent[] {
    return this.#spool.rejected(limit).map(({ error, json }) => ({ error, event: JSON.parse(json) }));
  }

  /** Let the rejected events wait again, such as after a mistake in the service was mended. */
  retryRejected(): void {
    this.#spool.retryRejected();
    this.#lanes.forEach((loop) => loop.wake());
  }

  /** Delete the rejected events from the folder. */
  discardRejected(): void {
    this.#spool.discardRejected();
  }

  /** Send for up to `timeoutMs`, and return how many events the folder keeps for a later client. */
  async close(timeoutMs = 10_000): Promise<number> {
    if (this.#isClosed) return 0;
    await this.#end(timeoutMs);
    const { waiting } = this;
    this.#spool.close();
    return waiting;
  }

  /** Send for up to `timeoutMs`, and end the background work. */
  async #end(timeoutMs: number): Promise<void> {
    this.#isClosed = true;
    process.off("beforeExit", this.#atExit);
    const backlog = this.#spool.backlog();
    this.#loops.forEach((loop) => loop.hurry());
    await this.#waitFor(() => backlog.isSettled(), performance.now() + timeoutMs);
    this.#loops.forEach((loop) => loop.stop());
    this.#service.close();
    await this.#running;
  }

  /** Take over the files of clients that ended, and wait until it is time to look again. */
  async #takeOver(): Promise<void> {
    // A key that the service refuses never takes files over, which others may be able to send.
    const answer = await this.#service.request("/me");
    const { organization, key } = (answer.body ?? {}) as { organization?: string; key?: { kind: string } };
    if (answer.status !== 200 || organization === undefined || key === undefined) throw this.#service.notTheService(answer);
    const tookAll = await this.#spool.takeOver(organization, key.kind);
    this.#tookOver ||= tookAll;
    this.#lanes.forEach((loop) => loop.wake());
    this.#wakeWaiters();
    await this.#takingOver.pause(tookAll ? TAKE_OVER_INTERVAL_MS : WAIT_FOR_OTHERS_MS); // the others, after some were sent
  }

  /** Send the oldest events of a lane; wait for some if there are few. Throws the reason why events still wait. */
  async #sendOldest(lane: number): Promise<void> {
    let events = this.#spool.oldest(lane, BATCH_SIZE);
    if (events.length === 0) await this.#lanes[lane]!.idle();
    if (events.length < BATCH_SIZE) {
      await this.#lanes[lane]!.pause(WAIT_FOR_OTHERS_MS);
      events = this.#spool.oldest(lane, BATCH_SIZE);
    }
    if (events.length > 0) await this.#sendBatch(lane, events);
  }

  /** Send up to BATCH_SIZE events. Throws the reason why some of them still wait. */
  async #sendBatch(lane: number, events: readonly WaitingEvent[]): Promise<void> {
    const answer = await this.#service.request("/events/batch", `{"events":[${events.map(({ json }) => json)}]}`);
    let results = (answer.body as { results?: Receipt[] } | undefined)?.results;
    if (answer.status >= 400) {
      if (events.length > 1) {
        // The request as a whole was refused, such as one that is too large.
        const middle = events.length >> 1;
        await this.#sendBatch(lane, events.slice(0, middle));
        return this.#sendBatch(lane, events.slice(middle));
      }
      results = [{ accepted: false, deduplicated: false, idempotencyKey: "", error: answer.error }];
    }
    if (!Array.isArray(results) || results.length !== events.length) throw this.#service.notTheService(answer);
    // Events after one that waits are sent again, too, so that the order stays; they are stored once.
    const waits = results.findIndex(({ error }) => WAITING_ERRORS.test(error ?? ""));
    const receipts = waits < 0 ? results : results.slice(0, waits);
    const refused = receipts.findIndex(({ accepted }) => !accepted);
    // Those before the first rejected one go on even if the disk has no room for it.
    const accepted = refused < 0 ? receipts.length : refused;
    this.#settle(lane, events, receipts.slice(0, accepted));
    if (refused >= 0) {
      this.#reject(lane, events, receipts);
      this.#settle(lane, events.slice(accepted), receipts.slice(accepted));
    }
    if (waits >= 0) throw new UnavailableError(results[waits]!.error!);
  }

  /** Note that the first events have these receipts, and hand these over. */
  #settle(lane: number, events: readonly WaitingEvent[], receipts: readonly Receipt[]): void {
    if (receipts.length === 0) return;
    this.#spool.settle(lane, events[receipts.length - 1]!);
    this.#lanes[lane]!.progress();
    this.#wakeWaiters();
    receipts.forEach((receipt, index) => this.#handOver(events[index]!, receipt));
  }

  /** Keep the events that were not accepted, and warn of them once a minute at most. */
  #reject(lane: number, events: readonly WaitingEvent[], receipts: readonly Receipt[]): void {
    const rejections = receipts.flatMap(({ accepted, error }, index) =>
      accepted ? [] : [{ error: String(error), lane, json: events[index]!.json }],
    );
    this.#deleted += this.#spool.reject(rejections);
    this.#rejected += rejections.length;
    if (performance.now() < this.#warnedAt + REJECTED_WARNING_INTERVAL_MS) return;
    this.#warnedAt = performance.now();
    const older = this.#deleted > 0 ? ` (${this.#deleted} older ones were deleted)` : "";
    const text = `rejected events in ${this.#spool.folder}: ${this.#rejected}${older}: ${rejections.at(-1)!.error}`;
    process.emitWarning(text, "EventWorkbench");
    this.#rejected = this.#deleted = 0;
  }

  #handOver(event: WaitingEvent, receipt: Receipt): void {
    if (this.#onReceipt === undefined) return;
    // The service names no key for an event that is not valid.
    const idempotencyKey: string = receipt.idempotencyKey || JSON.parse(event.json).idempotencyKey;
    try {
      this.#onReceipt({ ...receipt, idempotencyKey });
    } catch (error) {
      process.emitWarning(`onReceipt failed for ${idempotencyKey}: ${String(error)}`, "EventWorkbench");
    }
  }

  /** Warn once why events wait. */
  #report(): void {
    const text = this.failure?.message;
    if (text !== undefined && text !== this.#warnedOf) {
      process.emitWarning(`events wait in ${this.#spool.folder}: ${text}`, "EventWorkbench");
    }
    this.#warnedOf = text;
  }

  /** Let `flush` see what has changed. */
  #wakeWaiters(): void {
    for (const resolve of this.#waiters.splice(0)) resolve();
  }

  /** Look after each batch whether something is the case, up to a time. */
  async #waitFor(isDone: () => boolean, until: number): Promise<void> {
    while (!isDone() && performance.now() < until) {
      const timer = setTimeout(() => this.#wakeWaiters(), until - performance.now());
      await new Promise<void>((resolve) => this.#waiters.push(resolve));
      clearTimeout(timer);
    }
  }
}
