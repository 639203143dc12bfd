// The live tail: events as they arrive, newest first. Python sends rows and the state of its connection to the server;
// pausing and filtering happen here.

const MAX_ROWS = 500;
const MAX_DRAWN_ROWS = 200; // more would make drawing slow while events arrive quickly
const VISIBLE_REPORT_MS = 8000; // Python stops following a minute after the last report
const OUTCOMES = { accepted: "accepted", deduplicated: "duplicate", dry_run: "dry run", rejected: "rejected" };
const STATES = { connecting: "connecting …", following: "live", lost: "connection lost, reconnecting", ended: "ended", resting: "resting", gone: "not running" };

/** Return the widget of one model and element, with `start` and `end`. */
function tail(model, el) {
  const [ask, endRequests] = openRequests(model);
  const hiddenOutcomes = new Set();
  let shown = [];
  let whilePaused = []; // rows that arrived while paused
  let paused = false;
  let frame = 0;
  let timer = 0;
  let text = "";
  let dropped = 0; // rows up to this number were cleared or pushed out, and must not return
  let lastUpdate = 0;

  const light = h("span", { class: "light" });
  const state = h("span", { class: "state", role: "status" }, STATES.connecting);
  const reason = h("div", { class: "soft", "aria-live": "polite" });
  const pause = h("button", { class: "pause", onclick: togglePause }, "Pause");
  const filter = h("input", { type: "search", placeholder: "Filter", "aria-label": "Filter by text", oninput: () => ((text = filter.value.trim().toLowerCase()), draw()) });
  const chips = Object.entries(OUTCOMES).map(([outcome, name]) => h("button", { class: `chip ${outcome}`, "aria-pressed": "true", onclick: (event) => toggleOutcome(outcome, event.currentTarget) }, name));
  const rows = h("tbody");
  const heads = ["at (UTC)", "outcome", "event", "result"];
  const table = h("table", {}, h("thead", {}, h("tr", {}, heads.map((name) => h("th", {}, name)))), rows);
  const root = h(
    "div",
    { class: "ewb-widget tail" },
    h("div", { class: "bar" }, light, state, h("span", { class: "grow" }), chips, filter, pause, h("button", { onclick: clear, title: "Remove the rows shown here" }, "Clear")),
    h("div", { class: "scroll" }, table),
    reason,
  );
  const endKeys = keepKeys(root);
  el.append(root);

  function receive(update) {
    // Updates may overtake each other, because two threads of Python send them: an older one must not replace the state.
    if (update.update > lastUpdate) {
      lastUpdate = update.update;
      setState(update.state, update.reason);
    }
    addRows(update.rows);
  }

  function onMessage(message) {
    if (message.id === undefined && message.rows) receive(message); // with an id it is an answer
  }

  function setState(name, text) {
    root.dataset.state = name;
    state.textContent = STATES[name] ?? name;
    reason.textContent = text;
  }

  function addRows(rows) {
    const present = new Set([...shown, ...whilePaused].map((row) => row.number));
    const added = rows.filter((row) => row.number > dropped && !present.has(row.number));
    if (!added.length) return;
    if (paused) whilePaused = merge(whilePaused, added);
    else shown = merge(shown, added);
    if (!frame) frame = requestAnimationFrame(draw); // one drawing for all messages of a frame
  }

  function merge(before, added) {
    const all = before.concat(added).sort((one, other) => one.number - other.number);
    if (all.length > MAX_ROWS) dropped = Math.max(dropped, all.at(-MAX_ROWS - 1).number);
    return all.slice(-MAX_ROWS);
  }

  function draw() {
    cancelAnimationFrame(frame);
    frame = 0;
    pause.textContent = paused ? `Resume${whilePaused.length ? ` (${whilePaused.length} new)` : ""}` : "Pause";
    const matching = shown.filter(matches).slice(-MAX_DRAWN_ROWS).reverse();
    const empty = () => h("tr", {}, h("td", { colspan: heads.length, class: "soft" }, shown.length ? "No events match the filter." : "No events yet."));
    setChildren(rows, matching.length ? matching.map((row) => (row.elements ??= drawRow(row))).flat() : [empty()]);
  }

  function matches(row) {
    return !hiddenOutcomes.has(row.outcome) && (!text || `${row.event} ${row.result} ${row.detail}`.toLowerCase().includes(text));
  }

  function drawRow(row) {
    const detail = h("tr", { class: "detail", hidden: true }, h("td", { colspan: heads.length }, h("pre", {}, row.detail)));
    const open = () => (detail.hidden = !detail.hidden);
    const onKey = (event) => {
      if (event.ctrlKey || event.metaKey || !["Enter", " "].includes(event.key)) return;
      event.preventDefault();
      open();
    };
    return [
      h(
        "tr",
        { class: "event", tabindex: 0, role: "button", onclick: open, onkeydown: onKey },
        h("td", { class: "one-line" }, row.at),
        h("td", { class: "one-line" }, h("span", { class: `pill ${row.outcome}` }, OUTCOMES[row.outcome] ?? row.outcome)),
        h("td", {}, row.event),
        h("td", {}, row.result),
      ),
      detail,
    ];
  }

  function toggleOutcome(outcome, chip) {
    if (!hiddenOutcomes.delete(outcome)) hiddenOutcomes.add(outcome);
    chip.setAttribute("aria-pressed", String(!hiddenOutcomes.has(outcome)));
    draw();
  }

  function togglePause() {
    paused = !paused;
    if (!paused) {
      shown = merge(shown, whilePaused);
      whilePaused = [];
    }
    draw();
  }

  function clear() {
    dropped = Math.max(dropped, ...shown.concat(whilePaused).map((row) => row.number));
    shown = [];
    whilePaused = [];
    draw();
  }

  async function report(word) {
    try {
      receive(await ask({ ask: word }));
    } catch (error) {
      setState("gone", error.message);
    }
  }

  return {
    async start() {
      draw();
      model.on("msg:custom", onMessage);
      await report("hello");
      timer = setInterval(() => report("here"), VISIBLE_REPORT_MS);
    },
    end() {
      clearInterval(timer);
      cancelAnimationFrame(frame);
      model.off("msg:custom", onMessage);
      endRequests();
      try {
        model.send({ ask: "leave" });
      } catch {
        // The kernel is not running, so its threads have ended already.
      }
      endKeys();
      root.remove();
    },
  };
}

export default {
  render({ model, el }) {
    const widget = tail(model, el);
    widget.start();
    return widget.end;
  },
};
