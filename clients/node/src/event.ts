/** An event as arguments and as JSON, and its idempotency key. */
import { createHash, randomUUID } from "node:crypto";
import { crc32 } from "node:zlib";

import { clock } from "./clock.js";
import { AuthenticationError, InvalidArgumentError } from "./errors.js";

/** The fields of an event; those of a contact override those in `contact`. */
export interface EventFields {
  email?: string;
  walletAddress?: string;
  externalId?: string;
  contact?: Record<string, unknown>;
  payload?: Record<string, unknown>;
  attributes?: Record<string, unknown>;
  /** Now by default. */
  occurredAt?: Date | string;
  /** A new one by default. */
  idempotencyKey?: string;
  /** The payload fields that identify the event, such as `"orderId"`: the key is made from them. */
  uniqueBy?: string | readonly string[];
  /** A dry run: nothing is stored. */
  test?: boolean;
}

export interface EncodedEvent {
  key: string;
  /** Events of one lane are sent one after the other. */
  lane: number;
  json: string;
}

export const LANES = 4;

/** Return an event in the JSON format of the API. Throws InvalidArgumentError for values that JSON lacks. */
export function encodeEvent(event: string, fields: EventFields): EncodedEvent {
  const { email, walletAddress, externalId } = fields;
  const contact: Record<string, unknown> = { ...fields.contact };
  for (const [name, value] of Object.entries({ email, walletAddress, externalId })) {
    if (value !== undefined && value !== null) contact[name] = value;
  }
  if (Object.keys(contact).length === 0) {
    throw new InvalidArgumentError("the event has no contact: pass email, walletAddress, externalId or contact");
  }
  const key = fields.uniqueBy?.length
    ? businessKey(event, fields.payload, fields.uniqueBy)
    : (fields.idempotencyKey ?? randomUUID());
  const json = encode({
    event,
    contact,
    payload: fields.payload ?? undefined,
    attributes: fields.attributes ?? undefined,
    occurredAt: fields.occurredAt ?? clock.now(),
    test: fields.test || undefined,
    idempotencyKey: key,
  });
  return { key, lane: laneOf(contact), json };
}

/** Return the lane of a contact, which is the same whichever of its other identifiers an event has. */
function laneOf({ externalId, email, walletAddress }: Record<string, unknown>): number {
  return crc32(String(externalId || email || walletAddress)) % LANES;
}

/** Return the key of the Python client for the same event, if the values are texts, whole numbers or booleans. */
function businessKey(event: string, payload: Record<string, unknown> | undefined, uniqueBy: string | readonly string[]) {
  const names = typeof uniqueBy === "string" ? [uniqueBy] : uniqueBy;
  const missing = names.find((name) => payload?.[name] === undefined || payload[name] === null);
  if (missing !== undefined) {
    throw new InvalidArgumentError(`uniqueBy: the payload has no '${missing}'; nothing was stored`);
  }
  // Written one by one, because an object has names like "7" first.
  const members = names.map((name) => `${JSON.stringify(name)}:${encode(payload![name])}`);
  return `${event.toLowerCase()}:${createHash("sha256").update(`{${members}}`).digest("hex")}`;
}

function encode(value: unknown): string {
  return JSON.stringify(value, function (this: Record<string, unknown>, name: string, item: unknown) {
    const original = this[name]; // `item` is what its toJSON returned
    const isInvalid =
      (typeof item === "number" && !Number.isFinite(item)) ||
      ["bigint", "function", "symbol"].includes(typeof item) ||
      (original instanceof Date && Number.isNaN(original.getTime())) ||
      item instanceof Map ||
      item instanceof Set;
    if (isInvalid) {
      throw new InvalidArgumentError(`${name}: ${String(original)} is not a value that JSON has; pass a text`);
    }
    return item;
  });
}

/** Return the key; throw AuthenticationError if it is missing, or cannot send events. */
export function sendingKey(key: string | undefined): string {
  const trimmed = (key ?? "").trim();
  if (!trimmed) {
    throw new AuthenticationError('a key for sending events is missing: set WORKBENCH_EVENTS_KEY, or pass { key: "sk_live_…" }');
  }
  if (!/^sk_[!-~]+$/.test(trimmed)) {
    throw new AuthenticationError(
      `${trimmed.slice(0, 3)}… cannot send events: pass a live key (sk_live_…) or a test key (sk_test_…)`,
    );
  }
  return trimmed;
}
