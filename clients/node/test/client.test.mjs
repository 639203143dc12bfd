import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

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

/** Start a service; return the events that it has received, with its URL. */
async function serve(t, outcome) {
  const events = [];
  const server = createServer((request, response) => {
    let body = "";
    request.on("data", (chunk) => (body += chunk)).on("end", () => {
      if (request.method === "GET") return response.end(JSON.stringify({ organization: "demo", key: { kind: "live" } }));
      const received = JSON.parse(body).events;
      events.push(...received);
      response.end(JSON.stringify({ results: received.map(outcome) }));
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

test("a program ends although events wait, and the next client sends them", async (t) => {
  const spool = mkdtempSync(join(tmpdir(), "client-"));
  t.after(() => rmSync(spool, { recursive: true }));
  const program = `import { Client } from ${JSON.stringify(import.meta.resolve("../dist/esm/index.js"))};
    new Client({ url: "http://127.0.0.1:65535", key: "sk_live_x", spool: ${JSON.stringify(spool)} }).track("a", { externalId: "c1" });`;
  execFileSync(process.execPath, ["--no-warnings", "--input-type=module", "-e", program], { timeout: 60_000 });
  const events = await serve(t, () => ({ accepted: true }));
  const next = new Client({ url: events.url, key: "sk_live_x", spool });
  t.after(() => next.close());
  assert.equal(await next.flush(60_000), 0);
  assert.deepEqual(events.map(({ event, contact }) => [event, contact]), [["a", { externalId: "c1" }]]);
});
