/**
 * The folder in which clients keep events until the service has accepted them.
 *
 *     <key>.<owner>.<stamp>.events     events, in their order
 *     <key>.<owner>.<stamp>.settled    how many of them were accepted or rejected
 *     <key>.<owner>.<stamp>.rejected   events that the service rejected, with their errors
 *     <owner>.alive                    a socket on which the owner listens
 *     <key>.key                        the organization and the kind of a key
 *
 * `owner` is a client: only it writes its files. When its process has ended, nothing listens on its socket, and another
 * client of the same organization and kind of key takes its files over by renaming them, which only one can do.
 * `stamp` is the time at which a file was made, which orders the files, and its first owner, which makes it unique.
 * `key` is the fingerprint of a key.
 */
import { createHash, randomBytes } from "node:crypto";
import { closeSync, fdatasync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { connect, createServer, type Server } from "node:net";
import { join } from "node:path";

import { SpoolError } from "./errors.js";
import { Log, openPrivate, readLine, writeLine } from "./log.js";

const FILE_BYTES = 16_777_216; // the size at which a new file begins
const MAX_FILES = 200; // that are open; a process that takes over more would run out of descriptors
const KEPT_BYTES = 1_048_576; // a file whose events are all settled is deleted when it is larger
const MAX_REJECTED = 10_000; // the oldest are dropped, so that invalid events cannot fill the disk
const MAX_REJECTED_BYTES = 16_777_216;
const REJECTED_PER_FILE = 1_000;
const REJECTED_FILE_BYTES = 1_048_576;
const MAX_SOCKET_PATH = 103; // bytes; macOS and Linux allow no more
const SYNC_INTERVAL_MS = 1_000;

let newestStamp = 0; // microseconds, so that files that one process makes in a millisecond have an order

export interface WaitingEvent {
  file: EventFile;
  number: number;
  end: number;
  lane: number;
  json: string;
}

export interface Rejection {
  error: string;
  lane: number;
  json: string;
}

/** The events of one file, and which of them are settled: those before `done`, and those in `early`. */
export class EventFile {
  done = 0;
  #doneAt = 0; // the position of the first event that waits
  #early = new Map<number, number>(); // settled before an earlier one, with the position after it
  #settled: number;

  private constructor(
    readonly log: Log,
    private readonly base: string,
  ) {
    const state = readLine(`${this.base}.settled`);
    if (state !== undefined) {
      const [done, doneAt, early] = JSON.parse(state) as [number, number, [number, number][]];
      [this.done, this.#doneAt, this.#early] = [done, doneAt, new Map(early)];
    }
    this.#settled = openPrivate(`${this.base}.settled`, state === undefined ? "w" : "r+");
  }

  static create(base: string): EventFile {
    const log = new Log(`${base}.events`);
    try {
      return new EventFile(log, base);
    } catch (error) {
      if (log.bytes === 0) log.delete();
      else log.close();
      throw error;
    }
  }

  /** Return a file of another client. Its lines are counted, but decoded when they are sent. */
  static async takeOver(base: string): Promise<EventFile> {
    const file = EventFile.create(base);
    file.log.lines = file.done;
    await file.log.count(file.#doneAt);
    return file;
  }

  get waiting(): number {
    return this.waitingBelow(this.log.lines);
  }

  /** The number of waiting events among the first `count`. */
  waitingBelow(count: number): number {
    const below = Math.min(count, this.log.lines);
    return Math.max(0, below - this.done - [...this.#early.keys()].filter((number) => number < below).length);
  }

  oldest(limit: number): WaitingEvent[] {
    const events = this.log
      .read(this.#doneAt, this.done, limit + this.#early.size)
      .filter(({ number }) => !this.#early.has(number))
      .map(({ number, end, text }) => ({ file: this, number, end, lane: Number(text[0]), json: text.slice(2) }));
    if (events.length === 0) this.log.lines = this.done + this.#early.size; // damaged lines were counted, too
    return events;
  }

  /** Note that events were accepted or rejected. If this is lost, they are sent again with the same keys. */
  settle(events: readonly WaitingEvent[]): void {
    for (const { number, end } of events) this.#early.set(number, end);
    for (let end; (end = this.#early.get(this.done)) !== undefined; this.done += 1) {
      this.#early.delete(this.done);
      this.#doneAt = end;
    }
    try {
      writeLine(this.#settled, JSON.stringify([this.done, this.#doneAt, [...this.#early]]));
    } catch {
      // The disk is full. It gets room when the file is deleted.
    }
  }

  close(): void {
    this.log.close();
    closeSync(this.#settled);
  }

  delete(): void {
    this.log.delete();
    closeSync(this.#settled);
    rmSync(`${this.base}.settled`, { force: true });
  }
}

export class Spool {
  readonly #key: string;
  #files: EventFile[] = []; // oldest first
  #rejected: Log[] = []; // oldest first
  #current: EventFile | undefined; // the one that gets new events
  #owner = randomBytes(6).toString("hex");
  #alive: Server;
  #fileBytes: number;
  #sync: NodeJS.Timeout;
  #isSynced = true;

  constructor(
    readonly folder: string,
    key: string,
    readonly maxBytes: number,
  ) {
    this.#key = fingerprint(key);
    this.#fileBytes = Math.min(FILE_BYTES, maxBytes / 4);
    try {
      mkdirSync(folder, { recursive: true, mode: 0o700 });
    } catch (error) {
      throw new SpoolError(`${folder}: ${(error as Error).message}`);
    }
    const socket = this.#socket(this.#owner);
    if (Buffer.byteLength(socket) > MAX_SOCKET_PATH) {
      throw new SpoolError(`${folder} is too long for the path of a socket; choose a shorter folder`);
    }
    // `exclusive`: in a cluster the primary process would listen instead of this one.
    this.#alive = createServer((connection) => connection.destroy()).listen({ path: socket, exclusive: true }).unref();
    this.#alive.on("error", () => {});
    if (!this.#alive.listening) {
      closeSync(openPrivate(socket, "wx")); // a folder that cannot be written is the likelier reason
      rmSync(socket);
      throw new SpoolError(`${folder} is on a file system without sockets; choose another folder`);
    }
    this.#sync = setInterval(() => this.#syncFile(), SYNC_INTERVAL_MS).unref();
  }

  get waiting(): number {
    return this.#files.reduce((sum, file) => sum + file.waiting, 0);
  }

  /** Return a function that counts the events that are stored now and still wait. */
  counter(): () => number {
    const counts = this.#files.map((file) => [file, file.log.lines] as const);
    return () => counts.reduce((sum, [file, count]) => sum + file.waitingBelow(count), 0);
  }

  add(lane: number, json: string): void {
    if (this.#files.reduce((sum, file) => sum + file.log.bytes, json.length) > this.maxBytes) {
      throw new SpoolError(`${this.folder} is full: it has ${this.maxBytes} bytes. The event was not stored`);
    }
    if (this.#current === undefined || this.#current.log.bytes > this.#fileBytes) {
      this.#current = EventFile.create(this.#newBase());
      this.#files.push(this.#current);
    }
    try {
      this.#current.log.append(`${lane} ${json}`);
    } catch (error) {
      // It gets no more events, and an empty file goes: a program that goes on without the disk makes one for each event.
      if (this.#current.log.lines === 0) this.#drop(this.#current);
      this.#current = undefined;
      throw error;
    }
    this.#isSynced = false;
  }

  oldest(limit: number): WaitingEvent[] {
    for (const file of [...this.#files]) {
      const events = file.waiting > 0 ? file.oldest(limit) : [];
      if (events.length > 0) return events;
      if (file.waiting === 0 && file !== this.#current) this.#drop(file); // the rest of it cannot be read
    }
    return [];
  }

  /** Settle events of one file; the rejected ones are kept with their errors. Return how many older ones it deletes. */
  settle(accepted: readonly WaitingEvent[], rejected: readonly (readonly [WaitingEvent, string])[]): number {
    let deleted = 0;
    for (const [{ lane, json }, error] of rejected) deleted += this.#reject({ error, lane, json });
    const settled = [...accepted, ...rejected.map(([event]) => event)];
    const file = settled[0]?.file;
    if (file === undefined) return deleted;
    file.settle(settled);
    if (file.waiting === 0 && (file !== this.#current || file.log.bytes > KEPT_BYTES)) this.#drop(file);
    return deleted;
  }

  /** Return rejected events, newest first. */
  rejected(limit = Infinity): Rejection[] {
    const found: Rejection[] = [];
    for (const log of [...this.#rejected].reverse()) {
      const lines = log.read(0, 0, log.lines).reverse();
      found.push(...lines.slice(0, limit - found.length).map(({ text }) => JSON.parse(text) as Rejection));
    }
    return found;
  }

  retryRejected(): void {
    for (const { lane, json } of this.rejected().reverse()) this.add(lane, json);
    this.discardRejected();
  }

  discardRejected(): void {
    for (const log of this.#rejected.splice(0)) log.delete();
  }

  /**
   * Note to which organization and kind the key belongs, and take over files of clients that ended; return whether
   * these were all. One that cannot be opened stays, and keeps no other.
   */
  async takeOver(organization: string, kind: string): Promise<boolean> {
    const owner = JSON.stringify([organization, kind]);
    writeFileSync(join(this.folder, `${this.#key}.key`), owner, { mode: 0o600 });
    const names = readdirSync(this.folder);
    const keys = new Set(
      names
        .filter((name) => name.endsWith(".key") && readText(join(this.folder, name)) === owner)
        .map((name) => name.slice(0, -4)),
    );
    const ended = new Map<string, boolean>();
    for (const name of names.sort((left, right) => stampOf(left) - stampOf(right))) {
      const [key, id, stamp, kindOfFile] = name.split(".");
      if (kindOfFile === undefined || kindOfFile === "settled" || id === this.#owner || !keys.has(key!)) continue;
      if (!ended.has(id!)) ended.set(id!, await this.#hasEnded(id!));
      if (!ended.get(id!)) continue;
      if (this.#files.length >= MAX_FILES) return false;
      const base = `${this.#key}.${this.#owner}.${stamp}`;
      if (!this.#rename(name, `${base}.${kindOfFile}`)) continue;
      if (kindOfFile === "rejected") {
        const log = new Log(join(this.folder, `${base}.rejected`));
        await log.count();
        log.endLine();
        this.#rejected = [...this.#rejected, log].sort((left, right) => stampOf(left.path) - stampOf(right.path));
      } else {
        this.#rename(`${key}.${id}.${stamp}.settled`, `${base}.settled`);
        const file = await EventFile.takeOver(join(this.folder, base)).catch(() => undefined);
        if (file === undefined) {
          this.#rename(`${base}.settled`, `${key}.${id}.${stamp}.settled`);
          this.#rename(`${base}.events`, name);
          continue;
        }
        this.#files = [...this.#files, file].sort((left, right) => stampOf(left.log.path) - stampOf(right.log.path));
        if (file.waiting === 0) this.#drop(file);
      }
    }
    for (const [id, hasEnded] of ended) if (hasEnded) rmSync(this.#socket(id), { force: true });
    return true;
  }

  /** Leave what waits to a later client. */
  close(): void {
    clearInterval(this.#sync);
    for (const file of this.#files.splice(0)) {
      if (file.waiting === 0) file.delete();
      else file.close();
    }
    for (const log of this.#rejected.splice(0)) log.close();
    this.#alive.close();
  }

  #reject(rejection: Rejection): number {
    let log = this.#rejected.at(-1);
    if (log === undefined || log.lines >= REJECTED_PER_FILE || log.bytes >= REJECTED_FILE_BYTES) {
      log = new Log(`${this.#newBase()}.rejected`);
      this.#rejected.push(log);
    }
    log.append(JSON.stringify(rejection));
    const isTooMuch = (logs: readonly Log[]) =>
      logs.reduce((sum, { lines }) => sum + lines, 0) >= MAX_REJECTED ||
      logs.reduce((sum, { bytes }) => sum + bytes, 0) >= MAX_REJECTED_BYTES;
    let deleted = 0;
    while (this.#rejected.length > 1 && isTooMuch(this.#rejected.slice(1))) {
      const oldest = this.#rejected.shift()!;
      deleted += oldest.lines;
      oldest.delete();
    }
    return deleted;
  }

  #drop(file: EventFile): void {
    this.#files = this.#files.filter((other) => other !== file);
    if (file === this.#current) this.#current = undefined;
    file.delete();
  }

  #newBase(): string {
    newestStamp = Math.max(newestStamp + 1, Date.now() * 1_000);
    return join(this.folder, `${this.#key}.${this.#owner}.${newestStamp}-${this.#owner}`);
  }

  #rename(from: string, to: string): boolean {
    try {
      renameSync(join(this.folder, from), join(this.folder, to));
      return true;
    } catch {
      return false; // another client was faster
    }
  }

  #hasEnded(owner: string): Promise<boolean> {
    return new Promise((resolve) => {
      const connection = connect(this.#socket(owner));
      connection.once("connect", () => {
        connection.destroy();
        resolve(false);
      });
      // Only these say that nothing listens. A process that is stopped or busy has a full queue at most.
      connection.once("error", (error: NodeJS.ErrnoException) => resolve(["ECONNREFUSED", "ENOENT"].includes(error.code!)));
    });
  }

  #socket(owner: string): string {
    return process.platform === "win32" ? `\\\\.\\pipe\\event-workbench-${owner}` : join(this.folder, `${owner}.alive`);
  }

  #syncFile(): void {
    const descriptor = this.#current?.log.descriptor;
    if (this.#isSynced || descriptor === undefined) return;
    this.#isSynced = true;
    fdatasync(descriptor, () => {}); // an error means that the file was deleted, with all its events settled
  }
}

function readText(path: string): string | undefined {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return undefined; // of another user
  }
}

/** Return what file names keep of a key, which has 190 random bits. */
function fingerprint(key: string): string {
  return createHash("sha256").update(key).digest("hex").slice(0, 16);
}

function stampOf(path: string): number {
  return parseInt(path.split(".").at(-2)!) || 0;
}

