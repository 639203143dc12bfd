import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { appendFileSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, renameSync, rmSync, statSync, truncateSync } from "node:fs";
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

const waiting = (spool) => spool.oldest(1_000).map(({ json }) => json);

test("a line that was cut off is not read, and those before it are", async (t) => {
  const { path, open } = folder(t);
  const first = await open();
  for (const json of ['{"n":1}', '{"n":"ä"}', '{"n":3}']) first.add(1, json);
  first.close();
  const [file] = files(path, ".events");
  truncateSync(file, statSync(file).size - 3);
  const second = await open();
  assert.deepEqual([second.waiting, waiting(second)], [2, ['{"n":1}', '{"n":"ä"}']]);
});

test("lines that are damaged are left out, and keep no file", async (t) => {
  const { path, open } = folder(t);
  const first = await open();
  first.add(0, '{"n":1}');
  first.close();
  appendFileSync(files(path, ".events")[0], '00000000 0 {"n":2}\n\n');
  const second = await open();
  second.add(0, '{"n":3}');
  const count = second.counter();
  const events = [];
  for (let some; (some = second.oldest(10)).length > 0; second.settle(some, [])) events.push(...some.map(({ json }) => json));
  assert.deepEqual([events, second.waiting, count()], [['{"n":1}', '{"n":3}'], 0, 0]);
  assert.equal(files(path, ".events").length, 1); // the one that gets new events
});

test("rejected events are bounded by bytes", async (t) => {
  const { path, open } = folder(t);
  const spool = await open();
  const large = JSON.stringify("x".repeat(1_000_000));
  for (let n = 0; n < 30; n += 1) {
    spool.add(0, large);
    spool.settle([], [[spool.oldest(1)[0], String(n)]]);
  }
  const bytes = files(path, ".rejected").reduce((sum, file) => sum + statSync(file).size, 0);
  assert.ok(bytes > 15_000_000 && bytes < 20_000_000, String(bytes));
  assert.equal(spool.rejected(1)[0].error, "29");
});

test("a backlog is counted, and decoded when it is sent", async (t) => {
  const { path, open } = folder(t);
  const first = await open();
  const json = JSON.stringify({ text: "x".repeat(180) });
  for (let n = 0; n < 1_000; n += 1) first.add(0, json);
  first.close();
  const [file] = files(path, ".events");
  const lines = readFileSync(file);
  for (let n = 1; n < 300; n += 1) appendFileSync(file, lines);
  const before = [process.cpuUsage(), process.memoryUsage.rss()];
  const second = await open();
  const { user, system } = process.cpuUsage(before[0]);
  const grown = process.memoryUsage.rss() - before[1];
  assert.deepEqual([second.waiting, second.oldest(100).length], [300_000, 100]);
  assert.ok((user + system) / 1e6 < 0.5 && grown < 2e7, `${(user + system) / 1e6} s, ${grown / 1e6} MB`);
});

test("what was settled is not sent again, also out of order; without the note of it, all is", async (t) => {
  const { path, open } = folder(t);
  const first = await open();
  for (let n = 0; n < 5; n += 1) first.add(n % 4, `{"n":${n}}`);
  const events = first.oldest(5);
  first.settle([events[0], events[3]], []);
  const count = first.counter();
  first.add(0, '{"n":5}');
  assert.deepEqual([first.waiting, count()], [4, 3]);
  first.close();
  const second = await open();
  assert.deepEqual([second.waiting, waiting(second)], [4, ['{"n":1}', '{"n":2}', '{"n":4}', '{"n":5}']]);
  second.settle(second.oldest(1), []);
  second.close();
  rmSync(files(path, ".settled")[0]);
  assert.equal((await open()).waiting, 6);
});

test("files of a client that lives stay with it; those of clients that ended come in their order", async (t) => {
  const { open } = folder(t);
  const [first, second, living] = [await open(), await open(), await open()];
  first.add(0, '{"n":1}');
  second.add(0, '{"n":2}');
  living.add(0, '{"n":3}');
  second.close();
  first.close();
  const later = await open();
  const order = [];
  for (let events; (events = later.oldest(10)).length > 0; later.settle(events, [])) order.push(...events.map(({ json }) => json));
  assert.deepEqual([order, living.waiting], [['{"n":1}', '{"n":2}'], 1]);
});

test("files that were made at the same moment are all taken over", async (t) => {
  const { path, open } = folder(t);
  const [first, second] = [await open(), await open()];
  first.add(0, '{"n":1}');
  second.add(0, '{"n":2}');
  first.close();
  second.close();
  const [one, other] = files(path, ".events");
  const [moment, otherMoment] = [one, other].map((name) => name.split(".").at(-2).split("-")[0]);
  renameSync(other, other.replace(otherMoment, moment));
  assert.equal((await open()).waiting, 2);
});

test("files of many clients are taken over some at a time; one that cannot be opened keeps no other", async (t) => {
  const { path, open } = folder(t);
  for (let n = 0; n < 210; n += 1) {
    const spool = new Spool(path, KEY, 1e9);
    spool.add(0, `{"n":${n}}`);
    spool.close();
  }
  mkdirSync(join(path, "0.key"));
  mkdirSync(files(path, ".events")[0].replace(/\d+-/, "1-"));
  const later = await open();
  let sent = 0;
  const sendAll = () => {
    for (let events; (events = later.oldest(10)).length > 0; later.settle(events, [])) sent += events.length;
    return sent;
  };
  assert.deepEqual([sendAll(), await later.takeOver(...OWNER), sendAll()], [200, true, 210]);
});

test("a rejected event is not written behind a line that was cut off", async (t) => {
  const { path, open } = folder(t);
  const first = await open();
  first.add(0, '{"n":1}');
  first.add(0, '{"n":2}');
  first.settle([], [[first.oldest(1)[0], "no"]]);
  first.close();
  appendFileSync(files(path, ".rejected")[0], "0123");
  const second = await open();
  second.settle([], [[second.oldest(1)[0], "neither"]]);
  assert.deepEqual(second.rejected().map(({ error }) => error), ["neither", "no"]);
});

test("events go to keys of the same organization and kind only", async (t) => {
  const { open } = folder(t);
  const old = await open("sk_live_old");
  old.add(0, '{"n":1}');
  old.close();
  assert.equal((await open("sk_test_x", 1e9, ["demo", "test"])).waiting, 0);
  assert.equal((await open("sk_live_other", 1e9, ["other", "live"])).waiting, 0);
  assert.equal((await open("sk_live_new")).waiting, 1);
});

test("a full folder refuses events, keeps the others, and has room after they were sent", async (t) => {
  const { open } = folder(t);
  const spool = await open(KEY, 10_000);
  let added = 0;
  const fill = () => {
    for (; added < 1_000; added += 1) spool.add(0, JSON.stringify({ text: "x".repeat(200) }));
  };
  assert.throws(fill, { name: "SpoolError", message: /is full/ });
  assert.ok(added > 30 && spool.waiting === added);
  for (let events; (events = spool.oldest(10)).length > 0; ) spool.settle(events, []);
  spool.add(0, '{"n":1}');
  assert.equal(spool.waiting, 1);
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
    process.stdout.write(JSON.stringify([errors, spool.waiting, before, opened()]));
    spool.close();`;
  // The limit of a file's size stands for the size of the disk.
  const command = ["-c", 'ulimit -f 0; exec "$0" --input-type=module -e "$1"', process.execPath, program];
  const [errors, waits, before, after] = JSON.parse(execFileSync("sh", command, { encoding: "utf8" }));
  assert.deepEqual([errors, waits, after], [[["SpoolError", true], ["SpoolError", true]], 0, before]);
});

test("a folder that cannot be written or was deleted is a SpoolError with the reason", async (t) => {
  assert.throws(() => new Spool("/proc/self", KEY, 1e9), { name: "SpoolError", message: /^\/proc\/self\/\w+.alive: E[A-Z]+:/ });
  const { path, open } = folder(t);
  const spool = await open();
  rmSync(path, { recursive: true });
  assert.throws(() => spool.add(0, "{}"), { name: "SpoolError", message: /ENOENT/ });
  mkdirSync(path);
});

test("the newest 10,000 rejected events are kept, and can be sent again", async (t) => {
  const { open } = folder(t);
  const spool = await open();
  for (let n = 0; n < 12_000; n += 1) spool.add(0, `{"n":${n}}`);
  for (let events; (events = spool.oldest(500)).length > 0; ) spool.settle([], events.map((event) => [event, "no"]));
  spool.close();
  const later = await open();
  const rejected = later.rejected();
  assert.ok(rejected.length >= 10_000 && rejected.length < 11_001);
  assert.deepEqual(later.rejected(1), [{ error: "no", lane: 0, json: '{"n":11999}' }]);
  later.retryRejected();
  assert.deepEqual([later.waiting, later.rejected()], [rejected.length, []]);
  assert.equal(waiting(later)[0], rejected.at(-1).json);
});

test("only the user can read the files, and none is left when all was sent", async (t) => {
  const { path, open } = folder(t);
  const spool = await open();
  spool.add(0, '{"n":1}');
  const modes = readdirSync(path).filter((name) => !name.endsWith(".alive")).map((name) => statSync(join(path, name)).mode & 0o777);
  assert.deepEqual(new Set(modes), new Set([0o600]));
  spool.settle(spool.oldest(1), []);
  spool.close();
  await new Promise(setImmediate);
  assert.deepEqual([files(path, ".events"), files(path, ".settled"), files(path, ".alive")], [[], [], []]);
});
