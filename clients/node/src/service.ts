/** Requests to the service. They do not keep the process alive, as those of `fetch` do. */
import { once } from "node:events";
import * as http from "node:http";
import * as https from "node:https";

import { AuthenticationError, UnavailableError } from "./errors.js";

const CONNECT_TIMEOUT_MS = 5_000;
const REQUEST_TIMEOUT_MS = 30_000;
const IDLE_MS = 4_000; // servers close idle connections after five seconds or later

export interface Answer {
  status: number;
  /** Decoded JSON. */
  body: unknown;
  error: string;
}

export class Service {
  readonly #agent: http.Agent;

  constructor(
    readonly url: string,
    private readonly key: string,
  ) {
    const { Agent } = url.startsWith("https:") ? https : http;
    this.#agent = new Agent({ keepAlive: true, timeout: IDLE_MS });
  }

  /** Return an answer of the service: a success, or a refusal of the events (400, 413, 422). Throws for any other. */
  async request(path: string, body?: string): Promise<Answer> {
    let response: http.IncomingMessage, text: string;
    try {
      [response, text] = await this.#exchange(path, body);
    } catch (error) {
      const { message, code } = error as NodeJS.ErrnoException;
      throw new UnavailableError(`no response from ${this.url} (${message || code})`);
    }
    const status = response.statusCode!;
    const answer = parsed(text) as { error?: string; requestId?: string } | undefined;
    const error = answer?.error ?? `the server answered ${status}`;
    if (status === 401 || status === 403) throw new AuthenticationError(`the service refuses the key: ${error}`);
    // Another server, such as a proxy, knows nothing about events; but what is too large for it stays too large.
    const isRefusal = status === 413 || ([400, 422].includes(status) && answer?.requestId !== undefined);
    if (status >= 300 && !isRefusal) {
      const retryAfterS = Number(response.headers["retry-after"] ?? NaN);
      throw new UnavailableError(error, status, retryAfterS >= 0 ? retryAfterS * 1_000 : undefined);
    }
    return { status, body: answer, error };
  }

  notTheService({ status }: Answer): UnavailableError {
    return new UnavailableError(`the answer is not that of an Event Workbench at ${this.url}`, status);
  }

  /** Abort the requests. */
  close(): void {
    this.#agent.destroy();
  }

  async #exchange(path: string, body?: string): Promise<[http.IncomingMessage, string]> {
    const { request } = this.url.startsWith("https:") ? https : http;
    const outgoing = request(`${this.url}/api/v1${path}`, {
      agent: this.#agent,
      method: body === undefined ? "GET" : "POST",
      headers: { Authorization: `Bearer ${this.key}`, Accept: "application/json", "Content-Type": "application/json" },
    });
    const abortAfter = (ms: number, what: string) =>
      setTimeout(() => outgoing.destroy(new Error(`${what} within ${ms} ms`)), ms).unref();
    const timer = abortAfter(REQUEST_TIMEOUT_MS, "no answer");
    outgoing.on("error", () => {}); // after the headers of a response, reading it fails, too
    outgoing.on("socket", (socket) => {
      if (!socket.connecting) return socket.unref();
      // A connection that is being made keeps the process alive.
      const connecting = abortAfter(CONNECT_TIMEOUT_MS, "no connection");
      socket.once("connect", () => {
        socket.unref();
        clearTimeout(connecting);
      });
    });
    outgoing.end(body);
    try {
      const [response] = (await once(outgoing, "response")) as [http.IncomingMessage];
      let text = "";
      for await (const chunk of response.setEncoding("utf8")) text += chunk;
      return [response, text];
    } finally {
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
