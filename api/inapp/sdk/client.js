/**
 * In-app messages of Event Workbench in a browser: signs the wallet in, keeps a socket open, hands over every message once.
 *
 * The wallet signs a text (EIP-4361) through an EIP-1193 provider; the token it is worth lives in memory only, and the server
 * renews it over the open socket, so that a lost connection comes back without asking the wallet. A message is acknowledged
 * when `onPush` has returned (or its promise is fulfilled), so one that could not be shown comes again with the next
 * connection. Titles and bodies are text: put them on the page with `textContent`.
 */

const API = "/api/v1/inapp";
const FIRST_PAUSE = 1_000; // milliseconds; doubles with every failure, and chance takes up to nine tenths of it off
const LONGEST_PAUSE = 30_000;
const STEADY = 10_000; // milliseconds after which a connection counts as a success
const REMEMBERED = 2_000; // ids of messages handed over
const COME_BACK = /; retry-after=(\d+(?:\.\d+)?)$/; // seconds, at the end of a close reason
const UP_TO = 1.5; // times what the server asked for: not everybody at the same moment
const SIGN_IN_AGAIN = 4401;
const FORBIDDEN = 4403;
const TRY_LATER = new Set([408, 429, 500, 502, 503, 504]);

/** What ends everything: the key, the page or the person said no. */
export class InappError extends Error {
  name = "InappError";
}

/** Begin; see client.d.ts. */
export function start({ publishableKey, apiBaseUrl, provider, onPush, onState = () => {} }) {
  const client = new Client(root(apiBaseUrl), publishableKey, provider, onPush, onState);
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
  #asked = 0; // milliseconds that the server wants us to stay away
  #socket = null;
  #session = null;
  #arrive;
  #fail;

  constructor(base, key, provider, onPush, onState) {
    this.#base = base;
    this.#key = key;
    this.#provider = provider;
    this.#onPush = onPush;
    this.#onState = onState;
    this.ready = new Promise((arrive, fail) => {
      this.#arrive = arrive;
      this.#fail = fail;
    });
    this.ready.catch(() => {}); // whoever does not ask is told by onState
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
      if (!this.#stopped.signal.aborted) await this.#rest();
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
    this.#fail(error);
    this.#onState("stopped", error);
  }

  #accountsChanged = (accounts) => {
    if (!accounts.length) return this.#end(new InappError("the wallet was disconnected"));
    if (this.#session && accounts[0].toLowerCase() !== this.#session.walletAddress) {
      this.#session = null; // messages of one wallet are not for the eyes of the next
      this.#socket?.close(1000);
    }
  };

  async #signIn() {
    this.#onState("signing-in");
    const [walletAddress] = await this.#ask("eth_requestAccounts");
    if (!walletAddress) throw new InappError("the wallet has no account");
    const chainId = Number(await this.#ask("eth_chainId").catch(() => 1)) || 1;
    const { message } = await this.#post("/challenge", { walletAddress, chainId });
    const signature = await this.#ask("personal_sign", [hex(message), walletAddress]);
    return this.#post("/session", { message, signature });
  }

  async #ask(method, params) {
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
    const said = await response.json().catch(() => ({}));
    const sentence = said.error ?? `the server answered ${response.status}`;
    throw TRY_LATER.has(response.status) ? new Error(sentence) : new InappError(sentence);
  }

  /** Hand over messages until the socket closes. */
  #listen(token) {
    this.#onState("connecting");
    const socket = (this.#socket = new WebSocket(this.#base.replace(/^http/, "ws") + API + "/socket"));
    return new Promise((closed, refused) => {
      let steady;
      socket.onopen = () => {
        socket.send(JSON.stringify({ type: "AUTH", token }));
        steady = setTimeout(() => (this.#failures = 0), STEADY);
        this.#arrive(this.#session?.walletAddress);
        this.#onState("connected");
      };
      socket.onmessage = ({ data }) => this.#take(socket, JSON.parse(data));
      socket.onclose = ({ code, reason }) => {
        clearTimeout(steady);
        this.#asked = 1_000 * (COME_BACK.exec(reason)?.[1] ?? 0);
        if (code === SIGN_IN_AGAIN) this.#session = null;
        code === FORBIDDEN ? refused(new InappError(reason || "this page may not ask")) : closed();
      };
    });
  }

  async #take(socket, frame) {
    if (frame.type === "SESSION" && this.#session) this.#session.token = frame.token;
    if (frame.type !== "PUSH") return;
    const { id, title, body, data, createdAt } = frame;
    if (!this.#seen.has(id)) {
      this.#remember(id);
      try {
        await this.#onPush({ id, title, body, data, createdAt });
      } catch (error) {
        this.#seen.delete(id); // it comes again
        console.error("onPush failed", error);
        return;
      }
    }
    if (socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ type: "ACK", id }));
  }

  #remember(id) {
    this.#seen.add(id);
    if (this.#seen.size > REMEMBERED) this.#seen.delete(this.#seen.values().next().value);
  }

  /** Wait before the next try, as long as the server asked for; else a browser that comes online or into view does not wait. */
  #rest() {
    const asked = this.#asked;
    const pause = asked
      ? between(asked, UP_TO * asked)
      : between(0.1, 1) * Math.min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** this.#failures++);
    this.#asked = 0;
    this.#onState("waiting");
    return new Promise((done) => {
      const over = new AbortController();
      const timer = setTimeout(go, pause);
      function go() {
        clearTimeout(timer);
        over.abort();
        done();
      }
      const { signal } = over;
      if (!asked) {
        window.addEventListener("online", go, { signal });
        document.addEventListener("visibilitychange", () => document.hidden || go(), { signal });
      }
      this.#stopped.signal.addEventListener("abort", go, { signal });
    });
  }
}

/** Return the address of the server, however it was given. */
function root(apiBaseUrl) {
  return new URL(apiBaseUrl, location.href).href.replace(/\/+$/, "").replace(/\/api\/v1$/, "");
}

function between(least, most) {
  return least + (most - least) * Math.random();
}

function hex(text) {
  return "0x" + Array.from(new TextEncoder().encode(text), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
