/**
 * In-app messages of Event Workbench in a browser: signs the wallet in, keeps a socket open, and delivers each message once.
 *
 * The wallet signs a text (EIP-4361) through an EIP-1193 provider. The session token is kept in memory only, and the server
 * renews it over the open socket, so a lost connection is restored without asking the wallet again. A message is acknowledged
 * after `onPush` has returned (or its promise is fulfilled), so a message that could not be shown is delivered again over the
 * next connection. Titles and bodies are text, not HTML: put them on the page with `textContent`.
 */

const API = "/api/v1/inapp";
const FIRST_DELAY_MS = 1_000; // doubles with every failure; jitter takes up to nine tenths off
const MAX_DELAY_MS = 30_000;
const STABLE_AFTER_MS = 10_000; // a connection that lasts this long resets the delay
const MAX_SEEN_IDS = 2_000; // of delivered messages
const RETRY_AFTER = /; retry-after=(\d+(?:\.\d+)?)$/; // seconds, at the end of a close reason
const RETRY_AFTER_SPREAD = 1.5; // times the requested delay at most, so that clients do not reconnect all together
const UNAUTHORIZED = 4401; // close code: sign in again
const FORBIDDEN = 4403; // close code: this origin is not allowed
const RETRYABLE_STATUS = new Set([408, 429, 500, 502, 503, 504]);

/** A permanent error: the key or the origin was rejected, or the user refused to sign. */
export class InappError extends Error {
  name = "InappError";
}

/** See client.d.ts. */
export function start({ publishableKey, apiBaseUrl, provider, onPush, onState = () => {} }) {
  const client = new Client(normalizeBase(apiBaseUrl), publishableKey, provider, onPush, onState);
  client.run();
  return { ready: client.ready, stop: () => client.stop() };
}

class Client {
  #base;
  #key;
  #provider;
  #onPush;
  #onState;
  #seen = new Set();
  #stopped = new AbortController();
  #failures = 0;
  #retryAfterMs = 0; // requested by the server
  #socket = null;
  #session = null;
  #resolveReady;
  #rejectReady;

  constructor(base, key, provider, onPush, onState) {
    this.#base = base;
    this.#key = key;
    this.#provider = provider;
    this.#onPush = onPush;
    this.#onState = onState;
    this.ready = new Promise((resolve, reject) => {
      this.#resolveReady = resolve;
      this.#rejectReady = reject;
    });
    this.ready.catch(() => {}); // an app that does not await `ready` gets the error through onState
  }

  async run() {
    this.#provider.on?.("accountsChanged", this.#accountsChanged);
    while (!this.#stopped.signal.aborted) {
      try {
        this.#session ??= await this.#signIn();
        if (!this.#stopped.signal.aborted) await this.#listen(this.#session.token);
      } catch (error) {
        if (error instanceof InappError) return this.#end(error);
      }
      if (!this.#stopped.signal.aborted) await this.#delay();
    }
  }

  stop() {
    this.#end(new InappError("stopped"));
  }

  #end(error) {
    if (this.#stopped.signal.aborted) return;
    this.#stopped.abort();
    this.#provider.removeListener?.("accountsChanged", this.#accountsChanged);
    this.#socket?.close(1000);
    this.#rejectReady(error);
    this.#onState("stopped", error);
  }

  #accountsChanged = (accounts) => {
    if (!accounts.length) return this.#end(new InappError("the wallet was disconnected"));
    if (this.#session && accounts[0].toLowerCase() !== this.#session.walletAddress) {
      this.#session = null; // a session belongs to one wallet: sign the new one in
      this.#socket?.close(1000);
    }
  };

  async #signIn() {
    this.#onState("signing-in");
    const [walletAddress] = await this.#request("eth_requestAccounts");
    if (!walletAddress) throw new InappError("the wallet has no account");
    const chainId = Number(await this.#request("eth_chainId").catch(() => 1)) || 1;
    const { message } = await this.#post("/challenge", { walletAddress, chainId });
    const signature = await this.#request("personal_sign", [hex(message), walletAddress]);
    return this.#post("/session", { message, signature });
  }

  async #request(method, params) {
    try {
      return await this.#provider.request(params ? { method, params } : { method });
    } catch (error) {
      throw new InappError(`the wallet refused ${method}: ${error?.message ?? error}`, { cause: error });
    }
  }

  async #post(path, body) {
    const response = await fetch(this.#base + API + path, {
      method: "POST",
      headers: { authorization: `Bearer ${this.#key}`, "content-type": "application/json" },
      body: JSON.stringify(body),
      signal: this.#stopped.signal,
      credentials: "omit",
    });
    if (response.ok) return response.json();
    const answer = await response.json().catch(() => ({}));
    const message = answer.error ?? `the server answered with status ${response.status}`;
    throw RETRYABLE_STATUS.has(response.status) ? new Error(message) : new InappError(message);
  }

  /** Deliver messages until the socket closes. */
  #listen(token) {
    this.#onState("connecting");
    const socket = (this.#socket = new WebSocket(this.#base.replace(/^http/, "ws") + API + "/socket"));
    return new Promise((resolve, reject) => {
      let stableTimer;
      socket.onopen = () => {
        socket.send(JSON.stringify({ type: "AUTH", token }));
        stableTimer = setTimeout(() => (this.#failures = 0), STABLE_AFTER_MS);
        this.#resolveReady(this.#session?.walletAddress);
        this.#onState("connected");
      };
      socket.onmessage = ({ data }) => this.#receive(socket, JSON.parse(data));
      socket.onclose = ({ code, reason }) => {
        clearTimeout(stableTimer);
        this.#retryAfterMs = 1_000 * (RETRY_AFTER.exec(reason)?.[1] ?? 0);
        if (code === UNAUTHORIZED) this.#session = null;
        code === FORBIDDEN ? reject(new InappError(reason || "this origin is not allowed")) : resolve();
      };
    });
  }

  async #receive(socket, frame) {
    if (frame.type === "SESSION" && this.#session) this.#session.token = frame.token;
    if (frame.type !== "PUSH") return;
    const { id, title, body, data, createdAt } = frame;
    if (!this.#seen.has(id)) {
      this.#remember(id);
      try {
        await this.#onPush({ id, title, body, data, createdAt });
      } catch (error) {
        this.#seen.delete(id); // not acknowledged: the server sends it again
        console.error("onPush failed", error);
        return;
      }
    }
    if (socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ type: "ACK", id }));
  }

  #remember(id) {
    this.#seen.add(id);
    if (this.#seen.size > MAX_SEEN_IDS) this.#seen.delete(this.#seen.values().next().value);
  }

  /** Wait before the next attempt. Unless the server requested the delay, coming online or into view ends it. */
  #delay() {
    const retryAfterMs = this.#retryAfterMs;
    const delayMs = retryAfterMs
      ? randomBetween(retryAfterMs, RETRY_AFTER_SPREAD * retryAfterMs)
      : randomBetween(0.1, 1) * Math.min(MAX_DELAY_MS, FIRST_DELAY_MS * 2 ** this.#failures++);
    this.#retryAfterMs = 0;
    this.#onState("waiting");
    return new Promise((resolve) => {
      const listeners = new AbortController();
      const timer = setTimeout(finish, delayMs);
      function finish() {
        clearTimeout(timer);
        listeners.abort();
        resolve();
      }
      const { signal } = listeners;
      if (!retryAfterMs) {
        window.addEventListener("online", finish, { signal });
        document.addEventListener("visibilitychange", () => document.hidden || finish(), { signal });
      }
      this.#stopped.signal.addEventListener("abort", finish, { signal });
    });
  }
}

/** Return the base URL of the server without `/api/v1`; it may be given relative to the page. */
function normalizeBase(apiBaseUrl) {
  return new URL(apiBaseUrl, location.href).href.replace(/\/+$/, "").replace(/\/api\/v1$/, "");
}

function randomBetween(low, high) {
  return low + (high - low) * Math.random();
}

function hex(text) {
  return "0x" + Array.from(new TextEncoder().encode(text), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
