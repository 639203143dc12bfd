// The live tail: the newest rows on top, paused and filtered here; Python sends what came, and how the connection stands.

const KEPT = 500;
const DRAWN = 200;
const HERE_MS = 8000;
const OUTCOMES = { accepted: "accepted", deduplicated: "known before", dry_run: "dry run", rejected: "rejected" };
const STATES = { connecting: "connecting …", following: "live", lost: "connection lost, trying again", ended: "ended", resting: "resting", gone: "not running" };

/** Return the widget of one model and element, with `start` and `end`. */
function tail(model, el) {
  const [ask, endAsking] = asking(model);
  const hidden = new Set();
  let kept = [];
  let waiting = [];
  let paused = false;
  let frame = 0;
  let timer = 0;
  let text = "";
  let known = 0; // the number up to which rows are not taken again
  let told = 0;

  const light = h("span", { class: "light" });
  const state = h("span", { class: "state", role: "status" }, STATES.connecting);
  const why = h("div", { class: "soft", "aria-live": "polite" });
  const pause = h("button", { class: "pause", onclick: toggle }, "Pause");
  const filter = h("input", { type: "search", placeholder: "Filter", "aria-label": "Filter by text", oninput: () => ((text = filter.value.trim().toLowerCase()), draw()) });
  const chips = Object.entries(OUTCOMES).map(([outcome, name]) => h("button", { class: `chip ${outcome}`, "aria-pressed": "true", onclick: (event) => choose(outcome, event.currentTarget) }, name));
  const rows = h("tbody");
  const heads = ["at (UTC)", "outcome", "event", "what became of it"];
  const table = h("table", {}, h("thead", {}, h("tr", {}, heads.map((name) => h("th", {}, name)))), rows);
  const root = h(
    "div",
    { class: "ewb-widget tail" },
    h("div", { class: "bar" }, light, state, h("span", { class: "grow" }), chips, filter, pause, h("button", { onclick: clear, title: "Forget what is shown" }, "Clear")),
    h("div", { class: "scroll" }, table),
    why,
  );
  const endHush = hush(root);
  el.append(root);

  /** Take what Python says; of how it stands, what it said last: its threads may overtake each other. */
  function hearAll(said) {
    if (said.told > told) {
      told = said.told;
      stand(said.state, said.why);
    }
    take(said.rows);
  }

  function stand(name, reason) {
    root.dataset.state = name;
    state.textContent = STATES[name] ?? name;
    why.textContent = reason;
  }

  function hear(said) {
    if (said.id === undefined && said.rows) hearAll(said);
  }

  function take(rows) {
    const here = new Set([...kept, ...waiting].map((each) => each.number));
    const came = rows.filter((each) => each.number > known && !here.has(each.number));
    if (!came.length) return;
    if (paused) waiting = joined(waiting, came);
    else kept = joined(kept, came);
    soon();
  }

  function joined(before, came) {
    const all = before.concat(came).sort((one, other) => one.number - other.number);
    if (all.length > KEPT) known = Math.max(known, all.at(-KEPT - 1).number);
    return all.slice(-KEPT);
  }

  function soon() {
    if (!frame) frame = requestAnimationFrame(draw);
  }

  function draw() {
    cancelAnimationFrame(frame);
    frame = 0;
    pause.textContent = paused ? `Resume${waiting.length ? ` (${waiting.length} new)` : ""}` : "Pause";
    const found = kept.filter(fits).slice(-DRAWN).reverse();
    const nothing = () => h("tr", {}, h("td", { colspan: heads.length, class: "soft" }, kept.length ? "Nothing that fits the filter." : "Nothing has come yet."));
    arrange(rows, found.length ? found.map((each) => (each.drawn ??= row(each))).flat() : [nothing()]);
  }

  function fits(each) {
    return !hidden.has(each.outcome) && (!text || `${each.event} ${each.said} ${each.detail}`.toLowerCase().includes(text));
  }

  function row(each) {
    const detail = h("tr", { class: "detail", hidden: true }, h("td", { colspan: heads.length }, h("pre", {}, each.detail)));
    const open = () => (detail.hidden = !detail.hidden);
    const pressed = (event) => {
      if (event.ctrlKey || event.metaKey || !["Enter", " "].includes(event.key)) return;
      event.preventDefault();
      open();
    };
    return [
      h(
        "tr",
        { class: "event", tabindex: 0, role: "button", "aria-label": `${each.event}, ${OUTCOMES[each.outcome]}: details`, onclick: open, onkeydown: pressed },
        h("td", { class: "fixed" }, each.at),
        h("td", { class: "fixed" }, h("span", { class: `pill ${each.outcome}` }, OUTCOMES[each.outcome] ?? each.outcome)),
        h("td", {}, each.event),
        h("td", {}, each.said),
      ),
      detail,
    ];
  }

  function choose(outcome, chip) {
    if (!hidden.delete(outcome)) hidden.add(outcome);
    chip.setAttribute("aria-pressed", String(!hidden.has(outcome)));
    draw();
  }

  function toggle() {
    paused = !paused;
    if (!paused) {
      kept = joined(kept, waiting);
      waiting = [];
    }
    draw();
  }

  function clear() {
    known = Math.max(known, ...kept.concat(waiting).map((each) => each.number));
    kept = [];
    waiting = [];
    draw();
  }

  async function speak(word) {
    try {
      hearAll(await ask({ ask: word }));
    } catch (error) {
      stand("gone", error.message);
    }
  }

  return {
    async start() {
      draw();
      model.on("msg:custom", hear);
      await speak("hello");
      timer = setInterval(() => speak("here"), HERE_MS);
    },
    end() {
      clearInterval(timer);
      cancelAnimationFrame(frame);
      model.off("msg:custom", hear);
      endAsking();
      try {
        model.send({ ask: "leave" });
      } catch {
        // the kernel was stopped, and its threads with it
      }
      endHush();
      root.remove();
    },
  };
}

export default {
  render({ model, el }) {
    const shown = tail(model, el);
    shown.start();
    return shown.end;
  },
};
