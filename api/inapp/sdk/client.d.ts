/** The part of an EIP-1193 provider that is used: `window.ethereum` is one. */
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
  /** Where the API is, with or without `/api/v1`. */
  apiBaseUrl: string;
  provider: Provider;
  /** Called once for each message; one whose call throws or rejects comes again with the next connection. */
  onPush(push: Push): void | Promise<void>;
  /** Called when the connection changes; `error` says why it has stopped. */
  onState?(state: State, error?: InappError): void;
}

export interface Client {
  /** The wallet's address once it is signed in and connected; rejected when that cannot come to pass. */
  ready: Promise<string>;
  /** End for good. */
  stop(): void;
}

/** What ends everything: the key, the page or the person said no. */
export class InappError extends Error {}

/** Sign the wallet in and hand over its messages until stopped. */
export function start(options: Options): Client;
