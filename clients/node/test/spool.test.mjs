import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import fs, { appendFileSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, renameSync, rmSync, statSync, truncateSync, utimesSync, writeFileSync } from "node:fs";
import { syncBuiltinESMExports } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import { Spool } from "../dist/esm/spool.js";

const KEY = "sk_live_x";
const OWNER = ["demo", "live"];

/** Return a new folder, and a function that opens a client's spool in it, with the files of clients that ended. */
function folder(t) {
  const path = mkdtempSync(join(tmpdir(), "spool-"));
  const opened = [];
  t.after(() => {
    opened.forEach((spool) => spool.close());
    rmSync(path, { recursive: true });
  });
  const open = async (key = KEY, maxBytes = 1e9, owner = OWNER) => {
    const spool = new Spool(path, key, maxBytes);
    opened.push(spool);
    await spool.takeOver(...owner);
    return spool;
  };
  return { path, open };
}

function files(path, end) {
  return readdirSync(path).filter((name) => name.endsWith(end)).map((name) => join(path, name));
}

const LANE = 2;
const count = (spool) => spool.backlog().count();
const waiting = (spool) => spool.oldest(LANE, 1_000).map(({ json }) => json);
const add = (spool, ...events) => events.forEach((json) => spool.add(LANE, json));

/** Settle all events of the lane, up to `limit` at a time, and return them. */
function drain(spool, limit = 3) {
  const drained = [];
  for (let events; (events = spool.oldest(LANE, limit)).length > 0; spool.settle(LANE, events.at(-1))) drained.push(...events);
  return drained.map(({ json }) => json);
}

const events = (number) => Array.from({ length: number }, (_, n) => `{"n":${n}}`);

for (const [name, damage, kept] of [
  ["was cut off", (text) => text.slice(0, -3), events(4)],
  ["lost a sector", (text) => text.replace('{"n":1}', "\0".repeat(7)), [events(5)[0], ...events(5).slice(2)]],
  ["lost its position", (text) => "?".repeat(19) + text.slice(19), events(5)],
  ["has a position beyond its end", (text) => "9".repeat(19) + text.slice(19), events(5)],
  ["is empty", () => "", []],
]) {
  test(`a file that ${name} gives what can be read`, async (t) => {
    const { path, open } = folder(t);
    const first = await open();
    add(first, ...events(5));
    first.close();
    const [file] = files(path, `.lane${LANE}`);
    writeFileSync(file, damage(readFileSync(file, "utf8")));
    const later = await open();
    const before = later.backlog();
    assert.deepEqual([drain(later), count(later), before.count(), files(path, `.lane${LANE}`)], [kept, 0, 0, []]);
  });
}

test("events are in order over many files, which are deleted", async (t) => {
  const { path, open } = folder(t);
  const spool = await open(KEY, 200_000);
  add(spool, ...events(3_000));
  assert.ok(files(path, `.lane${LANE}`).length > 2);
  assert.deepEqual([count(spool), drain(spool, 100), files(path, `.lane${LANE}`).length], [3_000, events(3_000), 1]);
});

test("an event of megabytes is kept", async (t) => {
  const { open } = folder(t);
  const large = ["x", "ä"].map((letter) => JSON.stringify(letter.repeat(2_000_000)));
  const spool = await open();
  add(spool, ...large);
  assert.deepEqual(drain(spool), large);
});

test("rejected events are bounded by bytes", async (t) => {
  const { path, open } = folder(t);
  const spool = await open();
  const json = JSON.stringify("x".repeat(1_000_000));
  let deleted = 0;
  for (let n = 0; n < 30; n += 1) deleted += spool.reject([{ error: String(n), lane: 0, json }]);
  const bytes = files(path, ".rejected").reduce((sum, file) => sum + statSync(file).size, 0);
  assert.ok(bytes > 15_000_000 && bytes < 20_000_000, String(bytes));
  const errors = spool.rejected().map(({ error }) => Number(error));
  assert.deepEqual(errors, Array.from({ length: 30 - deleted }, (_, n) => 29 - n));
});

test("a backlog takes neither time nor memory at the start", async (t) => {
  const { path, open } = folder(t);
  const first = await open();
  const json = JSON.stringify({ text: "x".repeat(180) });
  for (let n = 0; n < 1_000; n += 1) first.add(0, json);
  first.close();
  const [file] = files(path, ".lane0");
  const lines = readFileSync(file).subarray(20);
  for (let n = 1; n < 300; n += 1) appendFileSync(file, lines);
  const before = [process.cpuUsage(), process.memoryUsage.rss()];
  const used = () => Object.values(process.cpuUsage(before[0])).reduce((sum, us) => sum + us) / 1e6;
  const second = await open();
  const batch = second.oldest(0, 100).length;
  const started = used();
  assert.deepEqual([batch, count(second)], [100, 300_000]);
  const grown = process.memoryUsage.rss() - before[1];
  assert.ok(started < 0.1 && used() < 0.5 && grown < 2e7, `${started} s, ${used()} s, ${grown / 1e6} MB`);
});

test("what was settled is not sent again", async (t) => {
  const { path, open } = folder(t);
  const first = await open();
  add(first, ...events(5));
  first.settle(LANE, first.oldest(LANE, 2)[1]);
  const backlog = first.backlog();
  add(first, '{"n":5}');
  assert.deepEqual([count(first), backlog.count(), backlog.isSettled()], [4, 3, false]);
  first.close();
  const second = await open();
  const taken = second.backlog();
  assert.deepEqual([count(second), waiting(second)], [4, events(6).slice(2)]);
  second.settle(LANE, second.oldest(LANE, 1)[0]);
  assert.deepEqual([taken.count(), drain(second), taken.count(), taken.isSettled()], [3, events(6).slice(3), 0, true]);
});

test("each lane has files of its own", async (t) => {
  const { path, open } = folder(t);
  const first = await open();
  for (let lane = 0; lane < 4; lane += 1) first.add(lane, `{"n":${lane}}`);
  first.close();
  const second = await open();
  assert.deepEqual([0, 1, 2, 3].map((lane) => second.oldest(lane, 9).map(({ json }) => json)), events(4).map((json) => [json]));
  second.settle(1, second.oldest(1, 1)[0]);
  assert.deepEqual(readdirSync(path).map((name) => name.split(".").at(-1)).sort(), ["alive", "key", "lane0", "lane2", "lane3"]);
});

test("files of a client that lives stay with it; those of clients that ended come in their order", async (t) => {
  const { open } = folder(t);
  const [first, second, living] = [await open(), await open(), await open()];
  add(first, '{"n":0}');
  add(second, '{"n":1}');
  add(living, '{"n":"living"}');
  second.close();
  first.close();
  const later = await open();
  assert.deepEqual([drain(later), count(living)], [events(2), 1]);
});

test("files that are taken over come before those that the client writes", async (t) => {
  const { open } = folder(t);
  const [first, second] = [await open(), await open()];
  add(second, '{"n":1}');
  add(first, '{"n":0}');
  first.close();
  assert.equal(await second.takeOver(...OWNER), true);
  assert.deepEqual(drain(second), events(2));
});

test("files that were made at the same moment are all taken over", async (t) => {
  const { path, open } = folder(t);
  const [first, second] = [await open(), await open()];
  add(first, '{"n":1}');
  add(second, '{"n":2}');
  first.close();
  second.close();
  const [one, other] = files(path, `.lane${LANE}`);
  const [moment, otherMoment] = [one, other].map((name) => name.split(".").at(-2).split("-")[0]);
  renameSync(other, other.replace(otherMoment, moment));
  assert.equal(count(await open()), 2);
});

test("files of many clients are taken over some at a time; one that cannot be opened keeps no other", async (t) => {
  const { path, open } = folder(t);
  for (let n = 0; n < 40; n += 1) {
    const spool = new Spool(path, KEY, 1e9);
    add(spool, `{"n":${n}}`);
    spool.close();
  }
  mkdirSync(join(path, "0.key"));
  mkdirSync(files(path, `.lane${LANE}`)[0].replace(/\d+-/, "1-"));
  const later = await open();
  assert.deepEqual([drain(later), await later.takeOver(...OWNER), drain(later)], [events(32), true, events(40).slice(32)]);
});

test("a rejected event is not written behind a line that was cut off", async (t) => {
  const { path, open } = folder(t);
  const first = await open();
  first.reject([{ error: "no", lane: LANE, json: '{"n":1}' }]);
  first.close();
  appendFileSync(files(path, ".rejected")[0], '\n{"error":');
  const second = await open();
  second.reject([{ error: "neither", lane: LANE, json: '{"n":2}' }]);
  assert.deepEqual(second.rejected().map(({ error }) => error), ["neither", "no"]);
});

test("events go to keys of the same organization and kind only", async (t) => {
  const { open } = folder(t);
  const old = await open("sk_live_old");
  add(old, '{"n":1}');
  old.close();
  assert.equal(count(await open("sk_test_x", 1e9, ["demo", "test"])), 0);
  assert.equal(count(await open("sk_live_other", 1e9, ["other", "live"])), 0);
  assert.equal(count(await open("sk_live_new")), 1);
});

test("a full folder refuses events, keeps the others, and has room after they were sent", async (t) => {
  const { open } = folder(t);
  const spool = await open(KEY, 10_000);
  let added = 0;
  const fill = () => {
    for (; added < 1_000; added += 1) spool.add(added % 4, JSON.stringify({ text: "x".repeat(200) }));
  };
  const drainAll = () => {
    for (let lane = 0; lane < 4; lane += 1) {
      for (let some; (some = spool.oldest(lane, 10)).length > 0; ) spool.settle(lane, some.at(-1));
    }
  };
  assert.throws(fill, { name: "SpoolError", message: /is full/ });
  assert.ok(added > 30 && count(spool) === added);
  drainAll();
  const before = added;
  assert.throws(fill, { name: "SpoolError", message: /is full/ });
  assert.ok(added - before > 30, String(added - before));
});

test("a disk that takes no more makes track throw, and leaves no files and descriptors", (t) => {
  const { path } = folder(t);
  const program = `import { readdirSync } from "node:fs";
    import { Spool } from ${JSON.stringify(import.meta.resolve("../dist/esm/spool.js"))};
    const spool = new Spool(${JSON.stringify(path)}, "sk_live_x", 1e9);
    const opened = () => [readdirSync(spool.folder).length, readdirSync("/dev/fd").length];
    const before = opened();
    const errors = [1, 2].map(() => {
      try {
        spool.add(0, "{}");
      } catch ({ name, message }) {
        return [name, /EFBIG.*The event was not stored/.test(message)];
      }
    });
    process.stdout.write(JSON.stringify([errors, spool.backlog().count(), before, opened()]));
    spool.close();`;
  // The limit of a file's size stands for the size of the disk.
  const command = ["-c", 'ulimit -f 0; exec "$0" --input-type=module -e "$1"', process.execPath, program];
  const [errors, waits, before, after] = JSON.parse(execFileSync("sh", command, { encoding: "utf8" }));
  assert.deepEqual([errors, waits, after], [[["SpoolError", true], ["SpoolError", true]], 0, before]);
});

test("a disk that takes a part of an event keeps the others", async (t) => {
  const { path, open } = folder(t);
  const program = `import { Spool } from ${JSON.stringify(import.meta.resolve("../dist/esm/spool.js"))};
    const spool = new Spool(${JSON.stringify(path)}, "sk_live_x", 1e9);
    const errors = ["1", "x".repeat(2_000), "2"].map((text) => {
      try {
        spool.add(${LANE}, JSON.stringify(text));
      } catch ({ message }) {
        return /EFBIG/.test(message);
      }
    });
    process.stdout.write(JSON.stringify([errors, spool.oldest(${LANE}, 9).map(({ json }) => json)]));
    process.exit();`;
  const command = ["-c", 'ulimit -f 1; exec "$0" --input-type=module -e "$1"', process.execPath, program];
  const kept = ['"1"', '"2"'];
  assert.deepEqual(JSON.parse(execFileSync("sh", command, { encoding: "utf8" })), [[null, true, null], kept]);
  assert.deepEqual(drain(await open()), kept);
});

test("a folder that cannot be written or was deleted is a SpoolError with the reason", async (t) => {
  assert.throws(() => new Spool("/proc/self", KEY, 1e9), { name: "SpoolError", message: /^\/proc\/self\/\w+.alive: E[A-Z]+:/ });
  const { path, open } = folder(t);
  const spool = await open();
  rmSync(path, { recursive: true });
  assert.throws(() => spool.add(0, "{}"), { name: "SpoolError", message: /ENOENT/ });
  mkdirSync(path);
});

test("rejected events of a client that ended can be sent again; a full folder keeps those that it cannot take", async (t) => {
  const { open } = folder(t);
  const first = await open();
  const rejections = events(300).map((json) => ({ error: "no", lane: LANE, json }));
  for (let n = 0; n < 300; n += 100) first.reject(rejections.slice(n, n + 100));
  first.close();
  const later = await open(KEY, 2_000);
  assert.deepEqual(later.rejected(1), [rejections[299]]);
  const sent = [];
  for (let times = 0; later.rejected().length > 0; times += 1) {
    assert.ok(times < 20);
    const before = later.rejected().length;
    try {
      later.retryRejected();
    } catch ({ message }) {
      assert.match(message, /is full/);
    }
    assert.equal(count(later) + later.rejected().length, before);
    sent.push(...drain(later));
  }
  assert.deepEqual(sent, events(300));
});

test("only the user can read the files, and none is left when all was sent", async (t) => {
  const { path, open } = folder(t);
  const spool = await open();
  add(spool, '{"n":1}');
  spool.reject([{ error: "no", lane: LANE, json: "{}" }]);
  const modes = readdirSync(path).filter((name) => !name.endsWith(".alive")).map((name) => statSync(join(path, name)).mode & 0o777);
  assert.deepEqual([modes.length, new Set(modes)], [3, new Set([0o600])]);
  drain(spool);
  spool.discardRejected();
  spool.close();
  await new Promise(setImmediate);
  assert.deepEqual(readdirSync(path).map((name) => name.split(".").at(-1)), ["key"]);
});

test("sockets of killed clients are deleted, also if these had no events", async (t) => {
  const { path, open } = folder(t);
  const kill = () => {
    const program = `import { Spool } from ${JSON.stringify(import.meta.resolve("../dist/esm/spool.js"))};
      new Spool(${JSON.stringify(path)}, "sk_live_x", 1e9);
      process.kill(process.pid, "SIGKILL");`;
    assert.throws(() => execFileSync(process.execPath, ["--input-type=module", "-e", program]), { signal: "SIGKILL" });
  };
  const living = new Spool(path, KEY, 1e9);
  kill();
  const anHourAgo = Date.now() / 1_000 - 3_601;
  for (const socket of files(path, ".alive")) utimesSync(socket, anHourAgo, anHourAgo);
  kill(); // as if it was made just now
  assert.equal(files(path, ".alive").length, 3);
  await open();
  assert.equal(files(path, ".alive").length, 3); // of the living one, the new one and the one that looked
  living.close();
});

test("what waits is forced to the disk when the client closes", async (t) => {
  const { fdatasyncSync } = fs;
  const synced = [];
  fs.fdatasyncSync = (descriptor) => {
    synced.push(readFileSync(`/proc/self/fd/${descriptor}`, "utf8"));
    fdatasyncSync(descriptor);
  };
  syncBuiltinESMExports();
  t.after(() => {
    fs.fdatasyncSync = fdatasyncSync;
    syncBuiltinESMExports();
  });
  const spool = await folder(t).open();
  add(spool, '{"n":1}');
  spool.add(LANE + 1, '{"n":2}');
  drain(spool); // of the first lane
  spool.close();
  assert.deepEqual(synced.map((text) => text.split("\n").slice(1)), [['{"n":2}', ""]]);
});
