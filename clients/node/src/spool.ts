/**
 * The folder in which clients keep events until the service has accepted them.
 *
 *     <key>.<owner>.<stamp>.lane<number>   events of a lane, in their order
 *     <key>.<owner>.<stamp>.rejected       events that the service rejected, with their errors
 *     <owner>.alive                        a socket on which the owner listens
 *     <key>.key                            the organization and the kind of a key
 *
 * `owner` is a client: only it writes its files. When its process has ended, nothing listens on its socket, and another
 * client of the same organization and kind of key takes its files over by renaming them, which only one can do.
 * `stamp` is the time at which a file was made, which orders the files, and its first owner, which makes it unique.
 * `key` is the fingerprint of a key. The Python client takes over files that end with `.events`.
 */
import { createHash, randomBytes } from "node:crypto";
import { appendFileSync, closeSync, mkdirSync, openSync, readdirSync, readFileSync, renameSync, rmSync, statSync, writeFileSync } from "node:fs";
import { connect, createServer, type Server } from "node:net";
import { join } from "node:path";

import { SpoolError } from "./errors.js";
import { LANES } from "./event.js";
import { EventFile, type WaitingEvent } from "./file.js";

const FILE_BYTES = 16_777_216; // the size at which a new file begins
const MAX_FILES = 32; // of a lane that are open; a process that takes over more would run out of descriptors
const MAX_REJECTED_BYTES = 16_777_216; // the oldest are deleted, so that invalid events cannot fill the disk
const REJECTED_FILE_BYTES = 1_048_576;
const MAX_SOCKET_PATH = 103; // bytes; macOS and Linux allow no more
const NEW_SOCKET_MS = 3_600_000; // a younger one may be made now, so that nothing listens yet
const SYNC_INTERVAL_MS = 1_000;

let newestStamp = 0; // microseconds, so that files that one process makes in a millisecond have an order

export interface Rejection {
  error: string;
  lane: number;
  json: string;
}

/** Events that are sent one after the other. */
class Lane {
  files: EventFile[] = []; // oldest first
  current: EventFile | undefined; // the last one, which gets new events

  oldest(limit: number): WaitingEvent[] {
    for (const file of this.files) {
      const events = file.isSettled ? [] : file.oldest(limit);
      if (events.length > 0) return events;
    }
    this.dropSettled();
    return [];
  }

  /** Add a file that was taken over; its events are sent before those that this process stores. */
  addFile(file: EventFile): void {
    this.files.splice(this.current === undefined ? this.files.length : -1, 0, file);
    this.dropSettled();
  }

  dropSettled(): void {
    for (const file of this.files.filter((file) => file.isSettled && file !== this.current)) {
      this.files.splice(this.files.indexOf(file), 1);
      file.delete();
    }
  }
}

/** The events that waited at a moment. */
export class Backlog {
  readonly #files: readonly { file: EventFile; end: number; added: number }[];

  constructor(files: readonly EventFile[]) {
    this.#files = files.map((file) => ({ file, end: file.size, added: file.added }));
  }

  isSettled(): boolean {
    return this.#files.every(({ file, end }) => file.position >= end);
  }

  /** Return how many still wait. */
  count(): number {
    const left = this.#files.filter(({ file, end }) => file.position < end);
    return left.reduce((sum, { file, added }) => sum + Math.max(0, file.waiting - (file.added - added)), 0);
  }
}

/** The waiting and the rejected events of one client. Throws SpoolError if the folder cannot be used or is full. */
export class Spool {
  readonly #key: string;
  readonly #lanes = Array.from({ length: LANES }, () => new Lane());
  #rejected: string[] = []; // paths, oldest first
  #owner = randomBytes(6).toString("hex");
  #alive: Server;
  #fileBytes: number;
  #sync: NodeJS.Timeout;
  #sweptSockets = false;

  constructor(
    readonly folder: string,
    key: string,
    readonly maxBytes: number,
  ) {
    this.#key = fingerprint(key);
    this.#fileBytes = Math.min(FILE_BYTES, maxBytes / 16); // lanes keep a file each, also when all of it is settled
    const socket = this.#socket(this.#owner);
    if (Buffer.byteLength(socket) > MAX_SOCKET_PATH) {
      throw new SpoolError(`${folder} is too long for the path of a socket; choose a shorter folder`);
    }
    try {
      mkdirSync(folder, { recursive: true, mode: 0o700 });
    } catch (error) {
      throw new SpoolError(`${folder}: ${(error as Error).message}`);
    }
    // `exclusive`: in a cluster the primary process would listen instead of this one.
    this.#alive = createServer((connection) => connection.destroy()).listen({ path: socket, exclusive: true }).unref();
    this.#alive.on("error", () => {});
    if (!this.#alive.listening) {
      try {
        closeSync(openSync(socket, "wx", 0o600)); // a folder that cannot be written is the likelier reason
      } catch (error) {
        throw new SpoolError(`${socket}: ${(error as Error).message}`);
      }
      rmSync(socket);
      throw new SpoolError(`${folder} is on a file system without sockets; choose another folder`);
    }
    this.#sync = setInterval(() => this.#files().forEach((file) => file.sync()), SYNC_INTERVAL_MS).unref();
  }

  /** Return the events that are stored now. */
  backlog(): Backlog {
    return new Backlog(this.#files());
  }

  add(lane: number, json: string): void {
    if (this.#files().reduce((sum, file) => sum + file.size, json.length) > this.maxBytes) {
      throw new SpoolError(`${this.folder} is full: it has ${this.maxBytes} bytes. The event was not stored`);
    }
    const { files, current } = this.#lanes[lane]!;
    if (current !== undefined && current.size < this.#fileBytes) return current.append(json);
    const file = EventFile.create(`${this.#newBase()}.lane${lane}`);
    files.push(file);
    this.#lanes[lane]!.current = file;
    this.#lanes[lane]!.dropSettled();
    file.append(json);
  }

  oldest(lane: number, limit: number): WaitingEvent[] {
    return this.#lanes[lane]!.oldest(limit);
  }

  /** Note that an event of a lane, and those before it in its file, were accepted or rejected. */
  settle(lane: number, event: WaitingEvent): void {
    event.file.settle(event);
    this.#lanes[lane]!.dropSettled();
  }

  /** Keep events with their errors; return how many older ones were deleted for them. */
  reject(rejections: readonly Rejection[]): number {
    let path = this.#rejected.at(-1);
    if (path === undefined || sizeOf(path) >= REJECTED_FILE_BYTES) {
      path = `${this.#newBase()}.rejected`;
      this.#rejected.push(path);
    }
    try {
      // The line before it may have been cut off.
      appendFileSync(path, rejections.map((rejection) => `\n${JSON.stringify(rejection)}`).join(""), { mode: 0o600 });
    } catch (error) {
      throw new SpoolError(`${path}: ${(error as Error).message}. Rejected events wait`);
    }
    let deleted = 0;
    while (this.#rejected.length > 1 && this.#rejected.slice(1).reduce((sum, path) => sum + sizeOf(path), 0) >= MAX_REJECTED_BYTES) {
      const oldest = this.#rejected.shift()!;
      deleted += readRejections(oldest).length;
      rmSync(oldest, { force: true });
    }
    return deleted;
  }

  /** Return rejected events, newest first. */
  rejected(limit = Infinity): Rejection[] {
    const found: Rejection[] = [];
    for (const path of [...this.#rejected].reverse()) {
      if (found.length < limit) found.push(...readRejections(path).reverse().slice(0, limit - found.length));
    }
    return found;
  }

  /** Let the rejected events wait again, behind the others. */
  retryRejected(): void {
    while (this.#rejected.length > 0) {
      const path = this.#rejected[0]!;
      const rejections = readRejections(path);
      let added = 0;
      try {
        for (const { lane, json } of rejections) {
          this.add(lane, json);
          added += 1;
        }
      } catch (error) {
        // The folder is full, and has taken some of them.
        const rest = `${this.#newBase()}.rejected`;
        writeFileSync(rest, rejections.slice(added).map((rejection) => `\n${JSON.stringify(rejection)}`).join(""), { mode: 0o600 });
        renameSync(rest, path);
        throw error;
      }
      rmSync(path, { force: true });
      this.#rejected.shift();
    }
  }

  discardRejected(): void {
    for (const path of this.#rejected.splice(0)) rmSync(path, { force: true });
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
    const hasEnded = async (id: string) => {
      if (!ended.has(id)) ended.set(id, await this.#hasEnded(id));
      return ended.get(id)!;
    };
    let tookAll = true;
    for (const name of names.sort((left, right) => stampOf(left) - stampOf(right))) {
      const [key, id, stamp, suffix] = name.split(".");
      if (suffix === undefined || id === this.#owner || !keys.has(key!) || !(await hasEnded(id!))) continue;
      const path = join(this.folder, `${this.#key}.${this.#owner}.${stamp}.${suffix}`);
      const lane = this.#lanes[Number(suffix.replace("lane", ""))];
      if (lane === undefined) {
        if (suffix === "rejected" && this.#rename(name, path)) this.#rejected.push(path);
      } else if (lane.files.length >= MAX_FILES) {
        tookAll = false;
      } else if (this.#rename(name, path)) {
        try {
          lane.addFile(EventFile.takeOver(path));
        } catch {
          renameSync(path, join(this.folder, name));
        }
      }
    }
    this.#rejected.sort((left, right) => stampOf(left) - stampOf(right));
    if (!this.#sweptSockets) {
      this.#sweptSockets = true;
      for (const name of names.filter((name) => name.endsWith(".alive"))) {
        const age = Date.now() - (statSync(join(this.folder, name), { throwIfNoEntry: false })?.mtimeMs ?? Infinity);
        if (age > NEW_SOCKET_MS) await hasEnded(name.slice(0, -6));
      }
    }
    for (const [id, isEnded] of ended) if (isEnded) rmSync(this.#socket(id), { force: true });
    return tookAll;
  }

  /** Leave what waits to a later client. */
  close(): void {
    clearInterval(this.#sync);
    for (const lane of this.#lanes) {
      lane.current = undefined;
      lane.dropSettled();
      for (const file of lane.files.splice(0)) file.close();
    }
    this.#rejected = [];
    this.#alive.close();
  }

  #files(): EventFile[] {
    return this.#lanes.flatMap((lane) => lane.files);
  }

  #newBase(): string {
    newestStamp = Math.max(newestStamp + 1, Date.now() * 1_000);
    return join(this.folder, `${this.#key}.${this.#owner}.${newestStamp}-${this.#owner}`);
  }

  #rename(name: string, path: string): boolean {
    try {
      renameSync(join(this.folder, name), path);
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
}

function readText(path: string): string | undefined {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return undefined; // of another user
  }
}

function sizeOf(path: string): number {
  return statSync(path, { throwIfNoEntry: false })?.size ?? 0;
}

function readRejections(path: string): Rejection[] {
  return (readText(path) ?? "").split("\n").flatMap((line) => {
    try {
      return [JSON.parse(line) as Rejection];
    } catch {
      return []; // it was cut off
    }
  });
}

/** Return what file names keep of a key, which has 190 random bits. */
function fingerprint(key: string): string {
  return createHash("sha256").update(key).digest("hex").slice(0, 16);
}

function stampOf(path: string): number {
  return parseInt(path.split(".").at(-2)!) || 0;
}
