/** Work that is repeated in the background until it is stopped, with random pauses after failures. */
import { clock } from "./clock.js";
import { UnavailableError } from "./errors.js";

const FIRST_PAUSE_MS = 500; // after failures
const LONGEST_PAUSE_MS = 30_000;
const LONGEST_RETRY_AFTER_MS = 300_000;

type Wait = "idleness" | "pause" | "retry-after";

export class Loop {
  /** Why the last turn failed; undefined if it succeeded. */
  failure: Error | undefined;
  #pauseMs = FIRST_PAUSE_MS;
  #isStopped = false;
  #isHurried = false; // idleness is left out, and then the pause that follows it
  #waiting: { wait: Wait; end: () => void } | undefined;

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
    if (!this.#isHurried) await this.#sleep("idleness", Infinity);
  }

  /** Wait; `hurry` ends it, or leaves it out. */
  async pause(ms: number): Promise<void> {
    if (!this.#isHurried) await this.#sleep("pause", ms);
    this.#isHurried = false;
  }

  /** End idleness. */
  wake(): void {
    this.#end("idleness");
  }

  /** End idleness and pauses. */
  hurry(): void {
    this.#isHurried = true;
    this.#end("idleness", "pause");
  }

  /** Let no further turn begin. */
  stop(): void {
    this.#isStopped = true;
    this.#end("idleness", "pause", "retry-after");
  }

  /** Wait as long as the service asks for, which only `stop` ends, and then for a random time. */
  async #pauseAfter(failure: Error): Promise<void> {
    const { retryAfterMs = 0 } = failure as UnavailableError;
    if (retryAfterMs > 0) {
      await this.#sleep("retry-after", Math.min(retryAfterMs, LONGEST_RETRY_AFTER_MS));
    }
    // Random, so that clients whose requests failed together do not come back together.
    await this.pause(this.#pauseMs * Math.random());
    this.#pauseMs = Math.min(2 * this.#pauseMs, LONGEST_PAUSE_MS);
  }

  async #sleep(wait: Wait, ms: number): Promise<void> {
    if (this.#isStopped) return;
    await new Promise<void>((resolve) => {
      const timer = ms < Infinity ? clock.setTimeout(resolve, ms).unref() : undefined;
      const end = () => {
        clearTimeout(timer);
        resolve();
      };
      this.#waiting = { wait, end };
    });
    this.#waiting = undefined;
  }

  #end(...waits: readonly Wait[]): void {
    if (this.#waiting !== undefined && waits.includes(this.#waiting.wait)) this.#waiting.end();
  }
}
