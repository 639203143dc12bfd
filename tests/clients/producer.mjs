// A backend that sends events with the Node client. Arguments: what to do, the URL, the key and the spool.
import { setTimeout } from "node:timers/promises";

import { Client } from "../../clients/node/dist/esm/index.js";

/** Send three events of one contact; print what became of them. */
async function trackThree(client) {
  const keys = [0, 1, 2].map((n) => client.track("order", { externalId: "c1", payload: { n, text: "ä" }, uniqueBy: "n" }));
  const waiting = await client.flush(60_000);
  const rejected = client.rejected().map(({ error }) => error);
  process.stdout.write(JSON.stringify({ keys, waiting, failure: client.failure?.message ?? null, rejected }));
}

/** Print the key of each event after it was tracked, until stdin ends; then send all. */
async function trackUntilStdinEnds(client) {
  let told = false;
  process.stdin.once("end", () => (told = true)).resume();
  for (let number = 0; !told; number += 1) {
    process.stdout.write(`${client.track("endless", { externalId: `c${number % 9}` })}\n`);
    await setTimeout(10);
  }
  if (await client.flush(240_000)) throw client.failure;
}

const [action, url, key, spool] = process.argv.slice(2);
const client = new Client({ url, key, spool });
await { three: trackThree, endless: trackUntilStdinEnds }[action](client);
await client.close();
