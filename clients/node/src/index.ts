export { Client, type ClientOptions, type Receipt, type RejectedEvent } from "./client.js";
export { AuthenticationError, InvalidArgumentError, SpoolError, UnavailableError } from "./errors.js";
export type { EventFields } from "./event.js";
