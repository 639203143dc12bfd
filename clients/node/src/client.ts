/**
 * A client for backends: `track` writes an event into a file, and the client sends the file in the background.
 *
 *     track → Spool.add → (in the background) Spool.oldest → POST /events/batch, in four lanes → Spool.settle
 */
import { createHash } from "node:crypto";
import { homedir } from "node:os";
import { join } from "node:path";

import { clock } from "./clock.js";
import { AuthenticationError, SpoolError, UnavailableError } from "./errors.js";
import { encodeEvent, LANES, sendingKey, type EventFields } from "./event.js";
import { Spool, type WaitingEvent } from "./spool.js";

const BATCH_SIZE = 100; // events in one request; the service accepts no more
const EVENTS_READ = (LANES * BATCH_SIZE * 5) / 4; // so that nearly every lane has a full batch
const MAX_SPOOL_BYTES = 1_073_741_824;
const WAIT_FOR_OTHERS_MS = 100; // before the first event of a request is sent
const FIRST_PAUSE_MS = 500; // after failures
const LONGEST_PAUSE_MS = 30_000;
const LONGEST_RETRY_AFTER_MS = 300_000;
const TAKE_OVER_INTERVAL_MS = 5_000; // how often a client looks for files of clients that ended
const REJECTED_WARNING_INTERVAL_MS = 60_000;
const REQUEST_TIMEOUT_MS = 30_000;
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
 * service rejects are kept apart, the newest 10,000 of them, and a warning says so.
 */
export class Client {
  readonly url: string;
  /** Why the last request failed; undefined if it succeeded. */
  failure: Error | undefined;

  readonly #key: string;
  readonly #spool: Spool;
  readonly #onReceipt: ((receipt: Receipt) => void) | undefined;
  readonly #stopping = new AbortController();
  readonly #atExit = () => void this.close(EXIT_TIMEOUT_MS);
  #endPause: ((isUrgent: boolean) => unknown) | undefined; // of the sender
  #isUrgent = false; // `flush` was called: the sender leaves out its next pause
  #flushing: (() => void)[] = []; // callers of `flush`, which look again after each round
  #settled = 0;
  #rejected = 0; // since the last warning
  #deleted = 0;
  #warnedAt = -Infinity;
  #tookOver = false;
  #tookOverAt = -Infinity;
  #running: Promise<void>;

  /** Throws AuthenticationError for a key that cannot send events, SpoolError for a folder that cannot be used. */
  constructor(options: ClientOptions = {}) {
    this.url = (options.url ?? (process.env["WORKBENCH_URL"] || "http://127.0.0.1:8000")).trim().replace(/\/+$/, "");
    this.#key = sendingKey(options.key ?? process.env["WORKBENCH_EVENTS_KEY"]);
    const name = createHash("sha256").update(this.url).digest("hex").slice(0, 16);
    const folder = options.spool ?? join(homedir(), ".local/state/event-workbench", name);
    this.#spool = new Spool(folder, this.#key, options.maxSpoolBytes ?? MAX_SPOOL_BYTES);
    this.#onReceipt = options.onReceipt;
    this.#running = this.#run();
    process.once("beforeExit", this.#atExit);
  }

  /**
   * Store an event for sending, and return its idempotency key.
   *
   * Throws InvalidArgumentError for values that JSON lacks, SpoolError if the folder is full. Nothing is stored then.
   */
  track(event: string, fields: EventFields): string {
    if (this.#stopping.signal.aborted) throw new SpoolError("the client is closed; the event was not stored");
    const { key, lane, json } = encodeEvent(event, fields);
    this.#spool.add(lane, json);
    this.#endPause?.(false);
    return key;
  }

  /** Wait until the events that are stored now were accepted or rejected; return how many still wait. */
  async flush(timeoutMs = 30_000): Promise<number> {
    const until = performance.now() + timeoutMs;
    this.#hurry();
    await this.#waitFor(() => this.#tookOver, until); // the events of clients that ended count, too
    const count = this.#spool.counter();
    await this.#waitFor(() => count() === 0, until);
    return count();
  }

  /** The number of events that were not accepted or rejected yet. */
  get waiting(): number {
    return this.#spool.waiting;
  }

  /** Return the newest events that the service rejected. The client keeps the newest 10,000, or 16 MB of them. */
  rejected(limit = 1_000): RejectedEvent[] {
    return this.#spool.rejected(limit).map(({ error, json }) => ({ error, event: JSON.parse(json) }));
  }

  /** Let the rejected events wait again, such as after a mistake in the service was mended. */
  retryRejected(): void {
    this.#spool.retryRejected();
    this.#endPause?.(false);
  }

  /** Delete the rejected events from the folder. */
  discardRejected(): void {
    this.#spool.discardRejected();
  }

  /** Send for up to `timeoutMs`, and return how many events the folder keeps for a later client. */
  async close(timeoutMs = 10_000): Promise<number> {
    if (this.#stopping.signal.aborted) return 0;
    process.off("beforeExit", this.#atExit);
    const count = this.#spool.counter();
    this.#hurry();
    await this.#waitFor(() => count() === 0, performance.now() + timeoutMs);
    this.#stopping.abort();
    this.#hurry();
    await this.#running;
    const waiting = this.waiting;
    this.#spool.close();
    return waiting;
  }

  /** Send until the client is closed. */
  async #run(): Promise<void> {
    let pauseMs = FIRST_PAUSE_MS;
    await Promise.resolve(); // the constructor returns first
    while (!this.#stopping.signal.aborted) {
      const before = this.#settled;
      try {
        await this.#takeOver();
        await this.#sendRound();
        this.#report(undefined);
      } catch (error) {
        if (error instanceof AuthenticationError) this.#tookOverAt = -Infinity;
        this.#report(error as Error);
      }
      this.#endRound();
      if (this.#settled > before || this.failure === undefined) pauseMs = FIRST_PAUSE_MS;
      if (this.failure !== undefined) {
        const { retryAfterMs = 0 } = this.failure as UnavailableError;
        // Random, so that clients whose requests failed together do not come back together.
        await this.#pause(pauseMs * Math.random(), { leastMs: Math.min(retryAfterMs, LONGEST_RETRY_AFTER_MS) });
        pauseMs = Math.min(2 * pauseMs, LONGEST_PAUSE_MS);
      }
    }
  }

  /** Take over the files of clients that ended, now and then. */
  async #takeOver(): Promise<void> {
    if (performance.now() - this.#tookOverAt < TAKE_OVER_INTERVAL_MS) return;
    // A key that the service refuses never takes files over, which others may be able to send.
    const { status, body } = await this.#request("/me");
    const { organization, key } = (body ?? {}) as { organization?: string; key?: { kind: string } };
    if (status !== 200 || organization === undefined || key === undefined) throw this.#strangeAnswer(status);
    if (!(await this.#spool.takeOver(organization, key.kind))) return; // the others, after some were sent
    this.#tookOver = true;
    this.#tookOverAt = performance.now();
    this.#endRound();
  }

  /** Send the oldest events, or wait for some. Throws the reason why events still wait. */
  async #sendRound(): Promise<void> {
    let events = this.#spool.oldest(EVENTS_READ);
    if (events.length === 0) {
      await this.#pause(TAKE_OVER_INTERVAL_MS, { endsWithTrack: true });
      if (this.#spool.waiting === 0) return;
      await this.#pause(WAIT_FOR_OTHERS_MS);
      events = this.#spool.oldest(EVENTS_READ);
    }
    const lanes = Array.from({ length: LANES }, (_, lane) => events.filter((event) => event.lane === lane));
    const sent = await Promise.allSettled(
      lanes.filter((lane) => lane.length > 0).map((lane) => this.#sendBatch(lane.slice(0, BATCH_SIZE))),
    );
    const failures = sent.filter((outcome) => outcome.status === "rejected").map(({ reason }) => reason as Error);
    if (failures.length > 0) throw failures.find((failure) => failure instanceof AuthenticationError) ?? failures[0];
  }

  /** Send up to BATCH_SIZE events. Throws the reason why some of them still wait. */
  async #sendBatch(events: readonly WaitingEvent[]): Promise<void> {
    const { status, body, error } = await this.#request("/events/batch", `{"events":[${events.map(({ json }) => json)}]}`);
    let results = (body as { results?: Receipt[] } | undefined)?.results;
    if (status >= 400) {
      if (events.length > 1) {
        // The request as a whole was refused, such as one that is too large.
        const middle = events.length >> 1;
        await this.#sendBatch(events.slice(0, middle));
        return this.#sendBatch(events.slice(middle));
      }
      results = [{ accepted: false, deduplicated: false, idempotencyKey: "", error }];
    }
    if (!Array.isArray(results) || results.length !== events.length) throw this.#strangeAnswer(status);
    const outcomes = events.map((event, index) => ({ event, receipt: results[index]! }));
    const settled = outcomes.filter(({ receipt }) => !WAITING_ERRORS.test(receipt.error ?? ""));
    const rejected = settled.filter(({ receipt }) => !receipt.accepted);
    const deleted = this.#spool.settle(
      settled.filter(({ receipt }) => receipt.accepted).map(({ event }) => event),
      rejected.map(({ event, receipt }) => [event, String(receipt.error)]),
    );
    if (rejected.length > 0) this.#reportRejected(rejected.length, deleted, String(rejected.at(-1)!.receipt.error));
    this.#settled += settled.length;
    for (const { event, receipt } of settled) this.#handOver(event, receipt);
    const waits = results.find((receipt) => WAITING_ERRORS.test(receipt.error ?? ""));
    if (waits !== undefined) throw new UnavailableError(waits.error!);
  }

  /** Return an answer of the service: a success, or a refusal of the events (400, 413, 422). Throws for any other. */
  async #request(path: string, body?: string): Promise<{ status: number; body: unknown; error: string }> {
    let response: Response, text: string;
    const request = new AbortController();
    const timer = setTimeout(() => request.abort(new Error(`no answer within ${REQUEST_TIMEOUT_MS} ms`)), REQUEST_TIMEOUT_MS);
    const abort = () => request.abort(this.#stopping.signal.reason);
    this.#stopping.signal.addEventListener("abort", abort);
    try {
      response = await fetch(`${this.url}/api/v1${path}`, {
        method: body === undefined ? "GET" : "POST",
        headers: { Authorization: `Bearer ${this.#key}`, Accept: "application/json", "Content-Type": "application/json" },
        redirect: "manual",
        signal: request.signal,
        ...(body === undefined ? {} : { body }),
      });
      text = await response.text();
    } catch (error) {
      const { message, cause } = error as Error;
      throw new UnavailableError(`no response from ${this.url} (${(cause as Error | undefined)?.message || message})`);
    } finally {
      clearTimeout(timer);
      this.#stopping.signal.removeEventListener("abort", abort);
    }
    const { status } = response;
    const answer = parsed(text) as { error?: string; requestId?: string } | undefined;
    const error = answer?.error ?? `the server answered ${status}`;
    if (status === 401 || status === 403) throw new AuthenticationError(`the service refuses the key: ${error}`);
    // Another server, such as a proxy, knows nothing about events; but what is too large for it stays too large.
    const isRefusal = status === 413 || ([400, 422].includes(status) && answer?.requestId !== undefined);
    if (status >= 300 && !isRefusal) {
      const retryAfterS = Number(response.headers.get("retry-after") ?? NaN);
      throw new UnavailableError(error, status, retryAfterS >= 0 ? retryAfterS * 1_000 : undefined);
    }
    return { status, body: answer, error };
  }

  #strangeAnswer(status: number): UnavailableError {
    return new UnavailableError(`the answer is not that of an Event Workbench at ${this.url}`, status);
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

  /** Remember why events wait, and warn once. */
  #report(failure: Error | undefined): void {
    if (this.#stopping.signal.aborted) return; // the request was aborted
    if (failure !== undefined && failure.message !== this.failure?.message) {
      process.emitWarning(`events wait in ${this.#spool.folder}: ${failure.message}`, "EventWorkbench");
    }
    this.failure = failure;
  }

  /** Warn how many events were rejected, at most once a minute. */
  #reportRejected(count: number, deleted: number, error: string): void {
    this.#rejected += count;
    this.#deleted += deleted;
    if (performance.now() < this.#warnedAt + REJECTED_WARNING_INTERVAL_MS) return;
    this.#warnedAt = performance.now();
    const older = this.#deleted > 0 ? ` (${this.#deleted} older ones were deleted)` : "";
    process.emitWarning(`rejected events in ${this.#spool.folder}: ${this.#rejected}${older}: ${error}`, "EventWorkbench");
    this.#rejected = this.#deleted = 0;
  }

  #hurry(): void {
    this.#isUrgent = this.#endPause === undefined;
    this.#endPause?.(true);
  }

  /** Wait for `leastMs`, which only `close` ends, and then for `ms`, which `flush` and, if that is wanted, `track` end. */
  async #pause(ms: number, { endsWithTrack = false, leastMs = 0 } = {}): Promise<void> {
    if (leastMs > 0) await this.#sleep(leastMs, () => this.#stopping.signal.aborted);
    if (!this.#isUrgent && !(endsWithTrack && this.#spool.waiting > 0)) {
      await this.#sleep(ms, (isUrgent) => isUrgent || endsWithTrack);
    }
    this.#isUrgent = false;
  }

  #sleep(ms: number, endsIf: (isUrgent: boolean) => boolean): Promise<void> {
    if (ms <= 0 || this.#stopping.signal.aborted) return Promise.resolve();
    return new Promise((resolve) => {
      const end = () => {
        clearTimeout(timer);
        this.#endPause = undefined;
        resolve();
      };
      const timer = clock.setTimeout(end, ms).unref();
      this.#endPause = (isUrgent) => endsIf(isUrgent) && end();
    });
  }

  /** Let `flush` see what has changed. */
  #endRound(): void {
    for (const resolve of this.#flushing.splice(0)) resolve();
  }

  /** Look after each round whether something is the case, up to a time. */
  async #waitFor(isDone: () => boolean, until: number): Promise<void> {
    for (let rest; !isDone() && (rest = until - performance.now()) > 0; ) {
      const timer = setTimeout(() => this.#endRound(), rest);
      await new Promise<void>((resolve) => this.#flushing.push(resolve));
      clearTimeout(timer);
    }
  }
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined; // the page of a proxy
  }
}
