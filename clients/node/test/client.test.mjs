import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";

import { clock } from "../dist/esm/clock.js";
import { encodeEvent } from "../dist/esm/event.js";
import * as module from "../dist/esm/index.js";

const required = createRequire(import.meta.url)("../dist/cjs/index.js");
const { Client } = module;

/** Return a client whose service is not there, so that events wait. */
function offline(t, options = {}) {
  const spool = mkdtempSync(join(tmpdir(), "client-"));
  const client = new Client({ url: "http://127.0.0.1:65535", key: "sk_live_x", spool, ...options });
  t.after(async () => {
    await client.close(0);
    rmSync(spool, { recursive: true });
  });
  return client;
}

/** Start a service; return the events that it has received, with its URL. It answers 500 if `outcome` throws. */
async function serve(t, outcome) {
  const events = [];
  const server = createServer((request, response) => {
    let body = "";
    request.on("data", (chunk) => (body += chunk)).on("end", () => {
      if (request.method === "GET") return response.end(JSON.stringify({ organization: "demo", key: { kind: "live" } }));
      const received = JSON.parse(body).events;
      try {
        response.end(JSON.stringify({ results: received.map(outcome) }));
        events.push(...received);
      } catch {
        response.writeHead(500).end();
      }
    });
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => server.close());
  return Object.assign(events, { url: `http://127.0.0.1:${server.address().port}` });
}

test("import and require give the same", () => {
  assert.deepEqual(Object.keys(required).sort(), Object.keys(module).sort());
});

test("events wait without a service, and a closed client takes none", { timeout: 60_000 }, async (t) => {
  const client = offline(t);
  const key = client.track("deposit", { externalId: "c1", idempotencyKey: "k1" });
  while (client.failure === undefined) assert.equal(await client.flush(100), 1);
  assert.deepEqual([key, client.waiting, client.failure.name], ["k1", 1, "UnavailableError"]);
  assert.equal(await client.close(0), 1);
  assert.throws(() => client.track("deposit", { externalId: "c1" }), { name: "SpoolError", message: /closed/ });
});

test("a later client sends what waits, and hands over a receipt for each event", async (t) => {
  const spool = mkdtempSync(join(tmpdir(), "client-"));
  const earlier = offline(t, { spool });
  const keys = ["first", "not a name", "third"].map((name) => earlier.track(name, { externalId: "c1" }));
  await earlier.close(0);
  const outcome = ({ event, idempotencyKey }) =>
    event === "not a name" ? { accepted: false, error: "event: no" } : { accepted: true, idempotencyKey };
  const { url } = await serve(t, outcome);
  const receipts = [];
  const warnings = [];
  const onWarning = ({ message }) => warnings.push(message);
  process.on("warning", onWarning);
  t.after(() => process.off("warning", onWarning));
  const later = new Client({ url, key: "sk_live_x", spool, onReceipt: (receipt) => receipts.push(receipt) });
  assert.equal(await later.flush(60_000), 0);
  const received = receipts.map(({ idempotencyKey, accepted }) => [idempotencyKey, accepted]);
  assert.deepEqual(received, [[keys[0], true], [keys[1], false], [keys[2], true]]);
  assert.deepEqual(later.rejected().map(({ error, event }) => [error, event.event]), [["event: no", "not a name"]]);
  await new Promise(setImmediate); // warnings are emitted in the next tick
  assert.deepEqual(warnings.filter((text) => text.startsWith("rejected")), [`rejected events in ${spool}: 1: event: no`]);
  assert.equal(await later.close(), 0);
});

test("what JSON lacks is refused, and nothing is stored", (t) => {
  const client = offline(t);
  for (const value of [NaN, Infinity, 10n ** 20n, new Date(NaN), new Map(), () => 1, Symbol("x")]) {
    assert.throws(() => client.track("deposit", { externalId: "c1", payload: { a: [{ value }] } }), { name: "InvalidArgumentError" });
  }
  assert.throws(() => client.track("deposit", { payload: {} }), { message: /has no contact/ });
  assert.throws(() => client.track("deposit", { externalId: "c1", uniqueBy: "orderId" }), { message: /has no 'orderId'/ });
  assert.equal(client.waiting, 0);
});

test("a key that cannot send is refused at once", () => {
  assert.throws(() => new Client({ key: "wb_x" }), { name: "AuthenticationError", message: /wb_… cannot send events/ });
  assert.throws(() => new Client({ key: " " }), { name: "AuthenticationError", message: /is missing/ });
});

test("a lane whose events the service cannot store keeps no other", { timeout: 60_000 }, async (t) => {
  const { setTimeout: wait } = clock;
  t.after(() => (clock.setTimeout = wait));
  clock.setTimeout = (done, ms) => wait(done, ms === 100 ? 0 : 600_000); // a pause after a failure does not end
  let failures = 0;
  const events = await serve(t, ({ event }) => {
    if (event === "good") return { accepted: true };
    failures += 1;
    throw new Error("no");
  });
  const client = offline(t, { url: events.url });
  client.track("bad", { externalId: "c0" });
  const contacts = Array.from({ length: 2_000 }, (_, n) => ({ externalId: `c${n}` }));
  const laneOf = (contact) => encodeEvent("good", contact).lane;
  for (const contact of contacts) client.track("good", contact);
  const others = contacts.filter((contact) => laneOf(contact) !== laneOf({ externalId: "c0" }));
  while (events.length < others.length) await new Promise((resolve) => setTimeout(resolve, 10));
  const received = events.map(({ contact }) => contact.externalId).sort();
  assert.deepEqual(received, others.map(({ externalId }) => externalId).sort());
  assert.deepEqual([failures, client.failure.message, client.waiting], [1, "the server answered 500", 2_001 - others.length]);
});

test("a disk without room for a rejected event takes the accepted ones before it", async (t) => {
  const spool = mkdtempSync(join(tmpdir(), "client-"));
  t.after(() => rmSync(spool, { recursive: true }));
  const error = "x".repeat(2_000);
  const events = await serve(t, ({ event }) => (event === "bad" ? { accepted: false, error } : { accepted: true, idempotencyKey: event }));
  const program = `import { Client } from ${JSON.stringify(import.meta.resolve("../dist/esm/index.js"))};
    const receipts = [];
    const onReceipt = ({ idempotencyKey }) => receipts.push(idempotencyKey);
    const client = new Client({ url: ${JSON.stringify(events.url)}, key: "sk_live_x", spool: ${JSON.stringify(spool)}, onReceipt });
    for (const event of ["one", "bad", "two"]) client.track(event, { externalId: "c1" });
    process.stdout.write(JSON.stringify([await client.flush(1_000), receipts, /EFBIG/.test(client.failure.message)]));
    process.exit();`;
  // The limit of a file's size stands for the size of the disk.
  const command = ["-c", 'ulimit -f 1; exec "$0" --no-warnings --input-type=module -e "$1"', process.execPath, program];
  assert.deepEqual(JSON.parse((await promisify(execFile)("sh", command)).stdout), [2, ["one"], true]);
  const next = new Client({ url: events.url, key: "sk_live_x", spool });
  t.after(() => next.close());
  assert.deepEqual([await next.flush(60_000), next.rejected().map(({ event }) => event.event)], [0, ["bad"]]);
});

/** Run a program that tracks an event and has nothing left to do; return the event that the next client sends. */
async function endAndSend(t, url) {
  const spool = mkdtempSync(join(tmpdir(), "client-"));
  t.after(() => rmSync(spool, { recursive: true }));
  const program = `import { Client } from ${JSON.stringify(import.meta.resolve("../dist/esm/index.js"))};
    new Client({ url: ${JSON.stringify(url)}, key: "sk_live_x", spool: ${JSON.stringify(spool)} }).track("a", { externalId: "c1" });`;
  const command = ["--no-warnings", "--input-type=module", "-e", program];
  await promisify(execFile)(process.execPath, command, { timeout: 15_000 });
  const events = await serve(t, () => ({ accepted: true }));
  const next = new Client({ url: events.url, key: "sk_live_x", spool });
  t.after(() => next.close());
  assert.equal(await next.flush(60_000), 0);
  return events.map(({ event, contact }) => [event, contact]);
}

test("a program ends although events wait, and the next client sends them", async (t) => {
  assert.deepEqual(await endAndSend(t, "http://127.0.0.1:65535"), [["a", { externalId: "c1" }]]);
});

test("a program ends although the service never answers, and the next client sends its events", async (t) => {
  const server = createServer(() => {});
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => server.closeAllConnections() ?? server.close());
  assert.deepEqual(await endAndSend(t, `http://127.0.0.1:${server.address().port}`), [["a", { externalId: "c1" }]]);
});
