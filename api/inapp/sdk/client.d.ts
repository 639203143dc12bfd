/** The parts of an EIP-1193 provider that the client uses, such as `window.ethereum`. */
export interface Provider {
  request(call: { method: string; params?: unknown[] }): Promise<unknown>;
  on?(event: "accountsChanged", listener: (accounts: string[]) => void): unknown;
  removeListener?(event: "accountsChanged", listener: (accounts: string[]) => void): unknown;
}

/** A message. Title and body are text, not HTML. */
export interface Push {
  id: string;
  title: string;
  body: string;
  data: unknown;
  /** RFC 3339 */
  createdAt: string;
}

export type State = "signing-in" | "connecting" | "connected" | "waiting" | "stopped";

export interface Options {
  /** `pk_live_…` */
  publishableKey: string;
  /** Base URL of the API, with or without `/api/v1`. */
  apiBaseUrl: string;
  provider: Provider;
  /** Called once for each message. If it throws or rejects, the message is delivered again over the next connection. */
  onPush(push: Push): void | Promise<void>;
  /** Called when the state changes; `error` is the reason for "stopped". */
  onState?(state: State, error?: InappError): void;
}

export interface Client {
  /** Resolves to the wallet's address once it is signed in and connected; rejects if the client stops before. */
  ready: Promise<string>;
  /** Stop permanently. */
  stop(): void;
}

/** A permanent error: the key or the origin was rejected, or the user refused to sign. */
export class InappError extends Error {}

/** Sign the wallet in and deliver its messages until stopped. */
export function start(options: Options): Client;
