// The catalog: events by count, and what is in one of them. Python answers `list` and `look`; a click inserts a cell that asks SQL.

const QUIET_MS = 250; // after a key, before the kernel is asked

/** Return the widget of one model and element, with `start` and `end`. */
function catalog(model, el) {
  const [ask, endAsking] = asking(model);
  const only = model.get("event");
  let shown = { events: [], days: [], empty: "" };
  let chosen = "";
  let capped = false; // there are more names than were listed: then the kernel searches, too
  let timer = 0;
  let newest = 0;

  const said = h("div", { class: "said soft", role: "status", "aria-live": "polite" });
  const search = h("input", { type: "search", placeholder: "Search events", "aria-label": "Search events", oninput: searched });
  const title = h("div", { class: "head grow" });
  const rows = h("tbody");
  const names = ["event", "count", "share", "by day", "first seen (UTC)", "last seen (UTC)"];
  const classes = ["", "num", "num more", "fixed", "fixed more", "fixed more"];
  const table = h("table", {}, h("thead", {}, h("tr", {}, names.map((name, index) => h("th", { class: classes[index] }, name)))), rows);
  const list = h("div", { class: "list" }, h("div", { class: "bar" }, title, search), h("div", { class: "scroll" }, table));
  const detail = h("div", { class: "detail", hidden: true });
  const root = h("div", { class: "ewb-widget catalog", onkeydown: pressed }, only ? null : list, detail, said);
  const endHush = hush(root);
  el.append(root);

  function say(text) {
    said.textContent = text;
  }

  async function fetchList(text) {
    const mine = (newest += 1);
    try {
      const answer = await ask({ ask: "list", text });
      if (mine !== newest) return;
      shown = answer;
      capped ||= answer.capped;
      title.textContent = shown.title;
      draw(text);
      say("");
    } catch (error) {
      if (mine === newest) say(error.message);
    }
  }

  function searched() {
    const text = search.value.trim().toLowerCase();
    clearTimeout(timer);
    if (capped) timer = setTimeout(() => fetchList(text), QUIET_MS);
    draw(text);
  }

  function draw(text) {
    const found = shown.events.filter((each) => each.event.includes(text));
    const focused = rows.contains(document.activeElement) ? document.activeElement.dataset.event : null;
    rows.replaceChildren(...found.map(row));
    for (const each of rows.children) if (each.dataset.event === focused) each.focus();
    if (!found.length) rows.append(h("tr", {}, h("td", { colspan: names.length, class: "soft" }, text ? "No event name contains this text." : shown.empty)));
  }

  function row(each) {
    const cells = [each.event, each.count, each.share, spark(each.perDay, shown.days), each.first, each.last];
    const open = () => look(each.event);
    return h(
      "tr",
      { class: each.event === chosen ? "chosen" : null, tabindex: 0, role: "button", "data-event": each.event, "aria-label": `Look into ${each.event}`, onclick: open, title: `first seen ${each.first}, last seen ${each.last} (UTC)` },
      cells.map((cell, index) => h("td", { class: classes[index] }, cell)),
    );
  }

  function pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const row = event.target.closest("tr[data-event]");
    const step = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
    if (row && (event.key === "Enter" || event.key === " ")) row.click();
    else if (row && step) row[step]?.focus();
    else if (event.target === search && event.key === "ArrowDown") rows.firstElementChild?.focus();
    else if (event.key === "Escape" && !detail.hidden && !only) close();
    else return;
    event.preventDefault();
  }

  async function look(event) {
    say(`Looking into ${event} …`);
    try {
      const answer = await ask({ ask: "look", event });
      detail.replaceChildren(...page(answer));
      detail.hidden = false;
      root.classList.add("open");
      chosen = event;
      for (const each of rows.children) each.classList.toggle("chosen", each.dataset.event === event);
      say("");
    } catch (error) {
      say(error.message);
    }
  }

  function close() {
    detail.hidden = true;
    root.classList.remove("open");
    chosen = "";
    const row = rows.querySelector(".chosen");
    row?.classList.remove("chosen");
    row?.focus();
  }

  function page(shape) {
    return [
      h("div", { class: "bar" }, h("div", { class: "head grow" }, shape.title), buttons(shape.code), only ? null : h("button", { onclick: close, title: "Close (Escape)" }, "✕")),
      h("div", { class: "soft" }, shape.note),
      h("div", { class: "wide" }, spark(shape.perDay, shape.days, { width: 310, height: 40 })),
      shape.drift.map((text) => h("div", { class: "note" }, h("b", {}, "Changed recently: "), text)),
      shape.paths.length ? paths(shape.paths) : h("p", {}, "Its payload is empty."),
      shape.samples.length ? samples(shape.samples) : null,
    ].flat().filter(Boolean);
  }

  function paths(found) {
    const heads = [["path", ""], ["type", ""], ["missing", "num"], ["null", "num"], ["values", ""], ["", ""]];
    return h(
      "div",
      { class: "scroll" },
      h(
        "table",
        { class: "paths" },
        h("thead", {}, h("tr", {}, heads.map(([name, kind]) => h("th", { class: kind }, name)))),
        h("tbody", {}, found.map((each) => h(
          "tr",
          { class: each.drifting ? "drifting" : null },
          h("td", {}, h("b", {}, each.path), each.drifting ? h("span", { class: "flag", title: "Changed recently, see above" }, "changed") : null),
          h("td", {}, each.types),
          h("td", { class: "num" }, each.missing),
          h("td", { class: "num" }, each.nulls),
          h("td", {}, values(each)),
          h("td", { class: "fixed" }, buttons(each.code, "SQL")),
        ))),
      ),
    );
  }

  function values(path) {
    const said = path.top.map(([value, count]) => h("span", { class: "value", title: `${count} times in the newest payloads` }, value, h("small", { class: "soft" }, ` ${count}`)));
    const count = path.distinct > Math.max(path.top.length, path.examples.length) ? [h("span", { class: "soft value" }, `${path.distinct.toLocaleString("en")} different`)] : [];
    return [...said, ...path.examples.map((value) => h("span", { class: "value" }, value)), ...count];
  }

  function samples(found) {
    return h(
      "details",
      {},
      h("summary", {}, found.length === 1 ? "The newest event" : `The newest ${found.length} events`),
      found.map((each) => [h("div", { class: "soft" }, `${each.at} (UTC)`), h("pre", {}, each.text)]).flat(),
    );
  }

  function buttons(source, name = "Insert SQL") {
    const insert = () => say(insertBelow(model, root, source) ? "Inserted a cell below." : "Cells cannot be inserted from here: copy it instead.");
    const take = async () => {
      await copy(source);
      say("Copied.");
    };
    return [
      h("button", { class: "insert", onclick: insert, title: "Insert a cell below that asks for this" }, name),
      " ",
      h("button", { class: "copy", onclick: take, title: "Copy the code" }, "Copy"),
    ];
  }

  return {
    start: () => (only ? look(only) : fetchList("")),
    end() {
      clearTimeout(timer);
      endHush();
      endAsking();
      root.remove();
    },
  };
}

export default {
  render({ model, el }) {
    const shown = catalog(model, el);
    shown.start();
    return shown.end;
  },
};
