// A backend that sends events with the Node client. Arguments: what to do, the URL, the key and the spool.
import { randomUUID } from "node:crypto";
import { setTimeout } from "node:timers/promises";

import { clock } from "../../clients/node/dist/esm/clock.js";
import { Client } from "../../clients/node/dist/esm/index.js";

const LONGEST_PAUSE_MS = 200; // so that a test need not wait for the client when the service is back

/** Send three events of one contact; print what became of them. */
async function trackThree(client) {
  const keys = [0, 1, 2].map((n) => client.track("order", { externalId: "c1", payload: { n, text: "ä" }, uniqueBy: "n" }));
  const waiting = await client.flush(60_000);
  const rejected = client.rejected().map(({ error }) => error);
  process.stdout.write(JSON.stringify({ keys, waiting, failure: client.failure?.message ?? null, rejected }));
}

/** Print the serial number of each event after it was tracked, until stdin ends; then send all. */
async function trackUntilStdinEnds(client) {
  clock.setTimeout = (done, ms) => globalThis.setTimeout(done, Math.min(ms, LONGEST_PAUSE_MS));
  let told = false;
  process.stdin.once("end", () => (told = true)).resume();
  const id = randomUUID();
  for (let number = 0; !told; number += 1) {
    const serial = `${id}-${number}`;
    client.track("endless", { externalId: `c${number % 9}`, payload: { serial } });
    process.stdout.write(`${serial}\n`);
    await setTimeout(10);
  }
  if (await client.flush(240_000)) throw client.failure;
}

/**
 * Track an event an hour while nothing answers; then send all. The pauses between attempts take no time, but the clock
 * goes on by them. It begins so many hours ago.
 */
async function trackForADay(client) {
  const hours = Number(process.env.OFFLINE_HOURS);
  const start = Date.now() - hours * 3_600_000;
  let now = start;
  const pauses = [];
  clock.now = () => new Date(now);
  clock.setTimeout = (done, ms) => {
    now += ms;
    if (ms !== 100) pauses.push(ms); // a request waits so long for more events
    return globalThis.setTimeout(done, 0);
  };
  const moments = [];
  for (let hour = 0; hour < hours; hour += 1) {
    moments.push(clock.now().toISOString());
    client.track("hourly", { externalId: "c1", payload: { hour } });
    while (now < start + (hour + 1) * 3_600_000) await setTimeout(1);
  }
  const result = { moments, attempts: pauses.length, longestPauseS: Math.max(...pauses) / 1_000 };
  process.stdout.write("a day later\n");
  const waiting = await client.flush(100_000);
  process.stdout.write(JSON.stringify({ ...result, waiting, rejected: client.rejected().length }));
}

const [action, url, key, spool] = process.argv.slice(2);
const client = new Client({ url, key, spool });
await { three: trackThree, endless: trackUntilStdinEnds, day: trackForADay }[action](client);
await client.close();
