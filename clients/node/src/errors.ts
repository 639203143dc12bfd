/** The errors of this package, with the names of the Python client. */

/** Wrong arguments; nothing was stored. */
export class InvalidArgumentError extends Error {
  override readonly name = "InvalidArgumentError";
}

/** The key is missing, cannot send events, or the service refuses it. */
export class AuthenticationError extends Error {
  override readonly name = "AuthenticationError";
}

/** An event cannot be stored: the spool is full, closed, or its folder cannot be written. */
export class SpoolError extends Error {
  override readonly name = "SpoolError";
}

/** Why events wait: the service cannot be reached, is busy, or its answer is not one of the service. */
export class UnavailableError extends Error {
  override readonly name = "UnavailableError";

  constructor(
    message: string,
    /** The HTTP status of the answer, if there was one. */
    readonly status?: number,
    /** For how many milliseconds the server asks clients to wait. */
    readonly retryAfterMs?: number,
  ) {
    super(message);
  }
}
