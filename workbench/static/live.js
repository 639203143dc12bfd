// The figures of one automation, asked for again while somebody looks; a cause of failure has a button that tries it again.

const EVERY_MS = 3000;
const SHARE = 20; // of the time, asking takes no more than a twentieth

/** Return the widget of one model and element, with `start` and `end`. */
function live(model, el) {
  const [ask, endAsking] = asking(model);
  let timer = 0;
  let ended = false;
  let opened = false;

  const head = h("div", { class: "head" });
  const lines = h("div", { class: "lines", "aria-live": "off" });
  const tables = h("div");
  const said = h("div", { class: "said soft", role: "status" }, "Reading …");
  const root = h("div", { class: "ewb-widget live" }, head, lines, tables, said);
  const endHush = hush(root);
  el.append(root);

  function table({ heads, numbers, rows }, buttons = () => []) {
    const side = (_, index) => (numbers.includes(index) ? "num" : null);
    const more = buttons(rows[0] ?? []).length > 0;
    return h(
      "table",
      {},
      h("thead", {}, h("tr", {}, heads.map((name, index) => h("th", { class: side(name, index) }, name)), more && h("th", {}))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, index) => h("td", { class: side(cell, index) }, cell)), more && h("td", {}, buttons(row))))),
    );
  }

  function draw(told) {
    head.replaceChildren(told.title, ...told.pills.map(([text, look]) => h("span", { class: `pill ${look}` }, text)));
    lines.replaceChildren(...told.lines.map((line) => h("p", {}, line)));
    if (told.percents.length > 1) lines.append(spark(told.percents, told.dates, { unit: " %" }));
    const parts = [h("div", { class: "scroll" }, table(told.steps))];
    if (told.dead.rows.length) parts.push(h("div", { class: "part" }, "Failed permanently"), h("div", { class: "scroll dead" }, table(told.dead, ([cause]) => (cause ? [h("button", { onclick: () => replay(cause) }, "Try again")] : []))));
    if (told.days.rows.length) parts.push(h("details", { open: opened, ontoggle: (event) => (opened = event.currentTarget.open) }, h("summary", {}, "Goal by day"), table(told.days)));
    tables.replaceChildren(...parts);
    if (told.said) said.textContent = told.said;
    else if (said.textContent.endsWith("…")) said.textContent = "";
  }

  async function replay(cause) {
    clearTimeout(timer);
    said.textContent = "Trying again …";
    await look({ ask: "replay", cause });
  }

  async function look(question) {
    const began = performance.now();
    try {
      draw(await ask(question));
      root.dataset.state = "live";
    } catch (error) {
      root.dataset.state = "gone";
      said.textContent = error.message;
    }
    clearTimeout(timer);
    if (!ended) timer = setTimeout(again, Math.max(EVERY_MS, (performance.now() - began) * SHARE));
  }

  /** Ask again, but not while nobody looks, text is being marked, or a button is about to be pressed: drawing would take it away. */
  function again() {
    const seen = document.visibilityState === "visible" && root.offsetParent !== null;
    const marked = document.getSelection();
    const busy = (marked && !marked.isCollapsed && root.contains(marked.focusNode)) || (document.activeElement?.tagName === "BUTTON" && root.contains(document.activeElement));
    if (seen && !busy) look({ ask: "look" });
    else timer = setTimeout(again, EVERY_MS);
  }

  return {
    start: () => look({ ask: "look" }),
    end() {
      ended = true;
      clearTimeout(timer);
      endAsking();
      endHush();
      root.remove();
    },
  };
}

export default {
  render({ model, el }) {
    const shown = live(model, el);
    shown.start();
    return shown.end;
  },
};
