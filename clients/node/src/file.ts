/**
 * A file of events: the position of the first one that waits, then a line of JSON for each event.
 *
 * Only the client that owns the file writes it. An event is in the file when `append` returns, because it was given to
 * the operating system: it survives the end of the process. A line that was cut off has no end, or is not JSON.
 */
import { closeSync, fdatasync, fdatasyncSync, fstatSync, openSync, readSync, rmSync, writeSync } from "node:fs";

import { SpoolError } from "./errors.js";

const HEADER_BYTES = 20;
const CHUNK_BYTES = 131_072;
const NEWLINE = 10;

export interface WaitingEvent {
  file: EventFile;
  /** Its place among the lines of the file. */
  number: number;
  /** The position behind it. */
  end: number;
  json: string;
}

export class EventFile {
  /** The position of the first event that waits, and the size of the file. */
  position = HEADER_BYTES;
  size = HEADER_BYTES;
  /** Events that were added by this process. */
  added = 0;
  #waiting: number | undefined = 0; // undefined if they were not counted
  #settled = 0; // lines
  #isSynced = true;

  private constructor(
    readonly path: string,
    private readonly descriptor: number,
    private readonly mayBeDamaged: boolean,
  ) {}

  /** Make a file. Throws SpoolError if the folder cannot be written, or the disk is full. */
  static create(path: string): EventFile {
    try {
      const file = new EventFile(path, openSync(path, "wx+", 0o600), false);
      try {
        file.#writePosition();
      } catch (error) {
        file.delete();
        throw error;
      }
      return file;
    } catch (error) {
      throw notStored(path, error);
    }
  }

  /** Return a file of another client, which has ended. */
  static takeOver(path: string): EventFile {
    const file = new EventFile(path, openSync(path, "r+"), true);
    file.#waiting = undefined;
    file.size = fstatSync(file.descriptor).size;
    const header = file.#read(0).toString("latin1", 0, HEADER_BYTES);
    // Without a position that can be right all its events are sent again, with the same keys.
    if (/^\d{19}\n$/.test(header) && Number(header) >= HEADER_BYTES && Number(header) <= file.size) {
      file.position = Number(header);
    }
    return file;
  }

  /** The number of events that wait; a damaged one counts until it is left out. Reads a file that was taken over, once. */
  get waiting(): number {
    if (this.#waiting === undefined) {
      this.#waiting = 0;
      let at = this.position;
      let chunk = this.#read(at);
      while (chunk.length > 0) {
        let newline = chunk.indexOf(NEWLINE);
        while (newline >= 0) {
          this.#waiting += 1;
          newline = chunk.indexOf(NEWLINE, newline + 1);
        }
        at += chunk.length;
        chunk = this.#read(at);
      }
    }
    return this.#waiting;
  }

  get isSettled(): boolean {
    return this.position >= this.size;
  }

  /** Add an event. Throws SpoolError if the disk is full; what was written of it is then overwritten by the next one. */
  append(json: string): void {
    const line = Buffer.from(`${json}\n`);
    try {
      for (let written = 0; written < line.length; ) {
        written += writeSync(this.descriptor, line, written, line.length - written, this.size + written);
      }
    } catch (error) {
      throw notStored(this.path, error);
    }
    this.size += line.length;
    this.added += 1;
    if (this.#waiting !== undefined) this.#waiting += 1;
    this.#isSynced = false;
  }

  /** Return up to `limit` events that wait. */
  oldest(limit: number): WaitingEvent[] {
    const events: WaitingEvent[] = [];
    let number = this.#settled;
    let end = this.position;
    let rest = Buffer.alloc(0); // what was read behind `end`
    while (events.length < limit) {
      const newline = rest.indexOf(NEWLINE);
      if (newline < 0) {
        const chunk = this.#read(end + rest.length);
        if (chunk.length === 0) break;
        rest = Buffer.concat([rest, chunk]);
        continue;
      }
      const json = rest.toString("utf8", 0, newline);
      rest = rest.subarray(newline + 1);
      end += newline + 1;
      number += 1;
      if (!this.mayBeDamaged || isJson(json)) events.push({ file: this, number, end, json });
    }
    if (events.length === 0) {
      this.position = this.size; // the last line was cut off, or the machine had lost power
      this.#waiting = 0;
    }
    return events;
  }

  /** Note that an event and those before it were accepted or rejected. If this is lost, they are sent again. */
  settle({ number, end }: WaitingEvent): void {
    if (this.#waiting !== undefined) this.#waiting -= number - this.#settled;
    this.#settled = number;
    this.position = end;
    try {
      this.#writePosition();
    } catch {
      // The disk is full. It gets room when the file is deleted.
    }
  }

  /** Force what was added to the disk. */
  sync(): void {
    if (this.#isSynced) return;
    this.#isSynced = true;
    fdatasync(this.descriptor, () => {}); // an error means that the file was deleted, with all its events settled
  }

  /** Force what waits to the disk, and close the file. */
  close(): void {
    try {
      if (!this.isSettled) fdatasyncSync(this.descriptor);
    } catch {
      // The disk failed; a later client reads what it has kept.
    } finally {
      closeSync(this.descriptor);
    }
  }

  delete(): void {
    closeSync(this.descriptor);
    rmSync(this.path, { force: true });
  }

  #read(position: number): Buffer<ArrayBuffer> {
    const chunk = Buffer.allocUnsafe(Math.max(0, Math.min(CHUNK_BYTES, this.size - position)));
    return chunk.subarray(0, readSync(this.descriptor, chunk, 0, chunk.length, position));
  }

  #writePosition(): void {
    writeSync(this.descriptor, `${String(this.position).padStart(HEADER_BYTES - 1, "0")}\n`, 0);
  }
}

function notStored(path: string, error: unknown): SpoolError {
  return new SpoolError(`${path}: ${(error as Error).message}. The event was not stored`);
}

function isJson(line: string): boolean {
  try {
    JSON.parse(line);
    return true;
  } catch {
    return false;
  }
}
