// Sends messages with Segment's library for Node, unmodified. Arguments: the URL and the key. Run by tests/clients.
import { Analytics } from "@segment/analytics-node";

const [host, writeKey] = process.argv.slice(2);
const analytics = new Analytics({ host, writeKey });
analytics.on("error", (error) => {
  throw new Error(JSON.stringify(error));
});
const userId = "u1";
const timestamp = new Date(Date.now() - 3_600_000);
analytics.identify({ userId, traits: { plan: "pro" } });
for (let number = 0; number < 150; number += 1) {
  analytics.track({ userId, event: "Order Completed", properties: { number }, timestamp });
}
analytics.page({ userId, category: "Docs", name: "Pricing" });
analytics.screen({ userId, name: "Home" });
analytics.group({ userId, groupId: "g1", traits: { size: 3 } });
analytics.alias({ userId, previousId: "a1" });
await analytics.closeAndFlush({ timeout: 60_000 });
