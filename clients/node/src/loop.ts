/** Work that is repeated in the background until it is stopped, with random pauses after failures. */
import { clock } from "./clock.js";
import { UnavailableError } from "./errors.js";

const FIRST_PAUSE_MS = 500; // after failures
const LONGEST_PAUSE_MS = 30_000;
const LONGEST_RETRY_AFTER_MS = 300_000;

export class Loop {
  /** Why the last turn failed; undefined if it succeeded. */
  failure: Error | undefined;
  #pauseMs = FIRST_PAUSE_MS;
  #isStopped = false;
  #isHurried = false; // the next pause is left out
  #endIdleness: (() => void) | undefined;
  #endPause: (() => void) | undefined;
  #endRetryAfter: (() => void) | undefined;

  /** Repeat a turn until `stop`, and call `onTurn` after each. A turn may call `idle`, `pause` and `progress`. */
  async run(turn: () => Promise<void>, onTurn: () => void): Promise<void> {
    await Promise.resolve(); // the constructor of the client returns first
    while (!this.#isStopped) {
      let failure: Error | undefined;
      try {
        await turn();
        this.progress();
      } catch (error) {
        failure = error as Error;
      }
      if (this.#isStopped) break; // its request was aborted
      this.failure = failure;
      onTurn();
      if (failure !== undefined) await this.#pauseAfter(failure);
    }
  }

  /** Let the next pause after a failure be short again. */
  progress(): void {
    this.#pauseMs = FIRST_PAUSE_MS;
  }

  /** Wait for `wake`. */
  async idle(): Promise<void> {
    if (!this.#isHurried) await this.#sleep(Infinity, (end) => (this.#endIdleness = end));
  }

  /** Wait; `hurry` ends it, or leaves it out. */
  async pause(ms: number): Promise<void> {
    if (!this.#isHurried) await this.#sleep(ms, (end) => (this.#endPause = end));
    this.#isHurried = false;
  }

  wake(): void {
    this.#endIdleness?.();
  }

  /** End idleness and pauses. */
  hurry(): void {
    this.#isHurried = true;
    this.wake();
    this.#endPause?.();
  }

  /** Let no further turn begin. */
  stop(): void {
    this.#isStopped = true;
    this.hurry();
    this.#endRetryAfter?.();
  }

  /** Wait as long as the service asks for, which only `stop` ends, and then for a random time. */
  async #pauseAfter(failure: Error): Promise<void> {
    const { retryAfterMs = 0 } = failure as UnavailableError;
    if (retryAfterMs > 0) {
      await this.#sleep(Math.min(retryAfterMs, LONGEST_RETRY_AFTER_MS), (end) => (this.#endRetryAfter = end));
    }
    // Random, so that clients whose requests failed together do not come back together.
    await this.pause(this.#pauseMs * Math.random());
    this.#pauseMs = Math.min(2 * this.#pauseMs, LONGEST_PAUSE_MS);
  }

  async #sleep(ms: number, keep: (end: (() => void) | undefined) => void): Promise<void> {
    if (this.#isStopped) return;
    await new Promise<void>((resolve) => {
      const timer = ms < Infinity ? clock.setTimeout(resolve, ms).unref() : undefined;
      keep(() => {
        clearTimeout(timer);
        resolve();
      });
    });
    keep(undefined);
  }
}
