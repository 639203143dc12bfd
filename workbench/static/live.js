// The figures of one automation, refreshed while the page is visible. Each cause of failure has a button that replays its entries.

const REFRESH_MS = 3000;
const MAX_LOAD = 1 / 20; // the share of the time in which the server answers this widget, however slow it is

/** Return the widget of one model and element, with `start` and `end`. */
function live(model, el) {
  const [ask, endRequests] = openRequests(model);
  let timer = 0;
  let ended = false;
  let daysOpen = false;

  const head = h("div", { class: "head" });
  const lines = h("div", { class: "lines", "aria-live": "off" });
  const tables = h("div");
  const notice = h("div", { class: "notice soft", role: "status" }, "Reading …");
  const root = h("div", { class: "ewb-widget live" }, head, lines, tables, notice);
  const endKeys = keepKeys(root);
  el.append(root);

  function table({ heads, numbers, rows }, buttons = () => []) {
    const alignment = (_, index) => (numbers.includes(index) ? "num" : null);
    const hasButtons = buttons(rows[0] ?? []).length > 0;
    return h(
      "table",
      {},
      h("thead", {}, h("tr", {}, heads.map((name, index) => h("th", { class: alignment(name, index) }, name)), hasButtons && h("th", {}))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, index) => h("td", { class: alignment(cell, index) }, cell)), hasButtons && h("td", {}, buttons(row))))),
    );
  }

  function draw(stats) {
    head.replaceChildren(stats.title, ...stats.pills.map(([text, look]) => h("span", { class: `pill ${look}` }, text)));
    lines.replaceChildren(...stats.lines.map((line) => h("p", {}, line)));
    if (stats.percents.length > 1) lines.append(spark(stats.percents, stats.dates, { unit: " %" }));
    const parts = [h("div", { class: "scroll" }, table(stats.steps))];
    if (stats.messages.rows.length) parts.push(h("div", { class: "part" }, "Messages"), h("div", { class: "scroll" }, table(stats.messages)));
    if (stats.dead.rows.length) parts.push(h("div", { class: "part" }, "Failed permanently"), h("div", { class: "scroll dead" }, table(stats.dead, ([cause]) => (cause ? [h("button", { onclick: () => replay(cause) }, "Try again")] : []))));
    if (stats.days.rows.length) parts.push(h("details", { open: daysOpen, ontoggle: (event) => (daysOpen = event.currentTarget.open) }, h("summary", {}, "Goal by day"), table(stats.days)));
    tables.replaceChildren(...parts);
    if (stats.notice) notice.textContent = stats.notice;
    else if (notice.textContent.endsWith("…")) notice.textContent = ""; // the request under way has ended
  }

  async function replay(cause) {
    clearTimeout(timer);
    notice.textContent = "Trying again …";
    await look({ ask: "replay", cause });
  }

  async function look(request) {
    const startedAt = performance.now();
    try {
      draw(await ask(request));
      root.dataset.state = "live";
    } catch (error) {
      root.dataset.state = "gone";
      notice.textContent = error.message;
    }
    clearTimeout(timer);
    if (!ended) timer = setTimeout(refresh, Math.max(REFRESH_MS, (performance.now() - startedAt) / MAX_LOAD));
  }

  function refresh() {
    const visible = document.visibilityState === "visible" && root.offsetParent !== null;
    const selection = document.getSelection();
    // Drawing replaces the elements, so it would end a selection of text and take the focus from a button.
    const inUse = (selection && !selection.isCollapsed && root.contains(selection.focusNode)) || focusedIn(root)?.tagName === "BUTTON";
    if (visible && !inUse) look({ ask: "look" });
    else timer = setTimeout(refresh, REFRESH_MS);
  }

  return {
    start: () => look({ ask: "look" }),
    end() {
      ended = true;
      clearTimeout(timer);
      endRequests();
      endKeys();
      root.remove();
    },
  };
}

export default {
  render({ model, el }) {
    const widget = live(model, el);
    widget.start();
    return widget.end;
  },
};
