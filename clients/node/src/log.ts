/**
 * An append-only file of lines with checksums. Only the process that made it appends; another one may read it after
 * this process has ended.
 *
 * A line is in the file when `append` returns, because it was given to the operating system: it survives the end of
 * the process. A line that was cut off has a wrong checksum and is not read.
 */
import { closeSync, fstatSync, ftruncateSync, openSync, readFileSync, readSync, rmSync, writeSync } from "node:fs";
import { crc32 } from "node:zlib";

import { SpoolError } from "./errors.js";

const CHUNK_BYTES = 131_072;
const NEWLINE = 10;

export interface Line {
  /** Its place among the valid lines of the file. */
  number: number;
  /** The position of the next line in the file. */
  end: number;
  text: string;
}

export class Log {
  /** The number of lines, and the size of the file. */
  lines = 0;
  bytes = 0;
  readonly descriptor: number;

  constructor(readonly path: string) {
    this.descriptor = openPrivate(path, "a+");
    this.bytes = fstatSync(this.descriptor).size;
  }

  /** Add a line. Throws SpoolError, and leaves the file as it was, if the disk is full. */
  append(text: string): void {
    const line = Buffer.from(`${checksum(text)} ${text}\n`);
    try {
      let written = 0;
      while (written < line.length) written += writeSync(this.descriptor, line, written);
    } catch (error) {
      try {
        ftruncateSync(this.descriptor, this.bytes);
      } catch {
        // What is left has no checksum that is right. The first error is the reason.
      }
      throw new SpoolError(`${this.path}: ${(error as Error).message}. The event was not stored`);
    }
    this.bytes += line.length;
    this.lines += 1;
  }

  /** Return up to `limit` lines from a position, of which the first one has this number. */
  read(position: number, number: number, limit: number): Line[] {
    const found: Line[] = [];
    let rest = Buffer.alloc(0);
    while (found.length < limit) {
      const chunk = Buffer.allocUnsafe(CHUNK_BYTES);
      const count = readSync(this.descriptor, chunk, 0, CHUNK_BYTES, position + rest.length);
      if (count === 0) break;
      const buffer = Buffer.concat([rest, chunk.subarray(0, count)]);
      let start = 0;
      for (let end; found.length < limit && (end = buffer.indexOf(NEWLINE, start)) >= 0; start = end + 1) {
        const text = checked(buffer.toString("utf8", start, end));
        if (text !== undefined) found.push({ number: number++, end: position + end + 1, text });
      }
      position += start;
      rest = buffer.subarray(start);
    }
    return found;
  }

  /** Count the lines from a position in a file that another process wrote, damaged ones included. */
  async count(position = 0): Promise<void> {
    const chunk = Buffer.allocUnsafe(8 * CHUNK_BYTES);
    for (let count; (count = readSync(this.descriptor, chunk, 0, chunk.length, position)) > 0; position += count) {
      const part = chunk.subarray(0, count);
      for (let at = -1; (at = part.indexOf(NEWLINE, at + 1)) >= 0; ) this.lines += 1;
      await new Promise(setImmediate); // other work goes on
    }
  }

  /** Let the next line not continue one that was cut off. */
  endLine(): void {
    this.bytes += writeSync(this.descriptor, "\n");
  }

  close(): void {
    closeSync(this.descriptor);
  }

  delete(): void {
    this.close();
    rmSync(this.path, { force: true });
  }
}

/** Open a file that only the user can read, because it has personal data. Throws SpoolError. */
export function openPrivate(path: string, flags: string): number {
  try {
    return openSync(path, flags, 0o600);
  } catch (error) {
    throw new SpoolError(`${path}: ${(error as Error).message}`);
  }
}

/** Replace the only line of a file. If that is cut off, `readLine` returns undefined. */
export function writeLine(descriptor: number, text: string): void {
  writeSync(descriptor, `${checksum(text)} ${text}\n`, 0);
}

export function readLine(path: string): string | undefined {
  try {
    return checked(readFileSync(path, "utf8").split("\n", 1)[0]!);
  } catch {
    return undefined; // there is no such file
  }
}

function checksum(text: string): string {
  return crc32(text).toString(16).padStart(8, "0");
}

function checked(line: string): string | undefined {
  const text = line.slice(9);
  return line.slice(0, 9) === `${checksum(text)} ` ? text : undefined;
}
