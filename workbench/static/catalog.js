// The catalog: events by count, and the payload of one event. Python answers `list` and `look`; a button inserts a cell with SQL.

const TYPING_PAUSE_MS = 250; // a request per key would be answered late

/** Return the widget of one model and element, with `start` and `end`. */
function catalog(model, el) {
  const [ask, endRequests] = openRequests(model);
  const onlyEvent = model.get("event");
  let listed = { events: [], days: [], empty: "" };
  let chosen = "";
  let capped = false; // more names than the server lists at once, so the kernel has to search, too
  let timer = 0;
  let lastRequest = 0;

  const notice = h("div", { class: "notice soft", role: "status", "aria-live": "polite" });
  const search = h("input", { type: "search", placeholder: "Search events", "aria-label": "Search events", oninput: onSearch });
  const title = h("div", { class: "head grow" });
  const rows = h("tbody");
  const names = ["event", "count", "share", "by day", "first seen (UTC)", "last seen (UTC)"];
  const classes = ["", "num", "num more", "one-line", "one-line more", "one-line more"];
  const table = h("table", {}, h("thead", {}, h("tr", {}, names.map((name, index) => h("th", { class: classes[index] }, name)))), rows);
  const list = h("div", { class: "list" }, h("div", { class: "bar" }, title, search), h("div", { class: "scroll" }, table));
  const detail = h("div", { class: "detail", hidden: true });
  const root = h("div", { class: "ewb-widget catalog", onkeydown: onKey }, onlyEvent ? null : list, detail, notice);
  const endKeys = keepKeys(root);
  el.append(root);

  function notify(text) {
    notice.textContent = text;
  }

  async function fetchList(text) {
    const number = (lastRequest += 1);
    try {
      const answer = await ask({ ask: "list", text });
      if (number !== lastRequest) return; // a later search is under way
      listed = answer;
      capped ||= answer.capped;
      title.textContent = listed.title;
      draw(text);
      notify("");
    } catch (error) {
      if (number === lastRequest) notify(error.message);
    }
  }

  function onSearch() {
    const text = search.value.trim().toLowerCase();
    clearTimeout(timer);
    if (capped) timer = setTimeout(() => fetchList(text), TYPING_PAUSE_MS);
    draw(text);
  }

  function draw(text) {
    const matching = listed.events.filter((entry) => entry.event.includes(text));
    const focused = focusedIn(rows)?.dataset.event;
    rows.replaceChildren(...matching.map(drawRow));
    for (const row of rows.children) if (row.dataset.event === focused) row.focus();
    if (!matching.length) rows.append(h("tr", {}, h("td", { colspan: names.length, class: "soft" }, text ? "No event name contains this text." : listed.empty)));
  }

  function drawRow(entry) {
    const cells = [entry.event, entry.count, entry.share, spark(entry.perDay, listed.days), entry.first, entry.last];
    const open = () => look(entry.event);
    return h(
      "tr",
      { class: entry.event === chosen ? "chosen" : null, tabindex: 0, role: "button", "data-event": entry.event, onclick: open, title: `first seen ${entry.first}, last seen ${entry.last} (UTC)` },
      cells.map((cell, index) => h("td", { class: classes[index] }, cell)),
    );
  }

  function onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const row = event.target.closest("tr[data-event]");
    const step = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
    if (row && (event.key === "Enter" || event.key === " ")) row.click();
    else if (row && step) row[step]?.focus();
    else if (event.target === search && event.key === "ArrowDown") rows.firstElementChild?.focus();
    else if (event.key === "Escape" && !detail.hidden && !onlyEvent) close();
    else return;
    event.preventDefault();
  }

  async function look(event) {
    notify(`Reading ${event} …`);
    try {
      const answer = await ask({ ask: "look", event });
      detail.replaceChildren(...page(answer));
      detail.hidden = false;
      root.classList.add("open");
      chosen = event;
      for (const row of rows.children) row.classList.toggle("chosen", row.dataset.event === event);
      notify("");
    } catch (error) {
      notify(error.message);
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
      h("div", { class: "bar" }, h("div", { class: "head grow" }, shape.title), buttons(shape.code), onlyEvent ? null : h("button", { onclick: close, title: "Close (Escape)" }, "✕")),
      h("div", { class: "soft" }, shape.note),
      h("div", { class: "wide" }, spark(shape.perDay, shape.days, { width: 310, height: 40 })),
      shape.drift.map((text) => h("div", { class: "note" }, h("b", {}, "Changed recently: "), text)),
      shape.paths.length ? paths(shape.paths) : h("p", {}, "The payload is empty."),
      shape.samples.length ? samples(shape.samples) : null,
    ].flat().filter(Boolean);
  }

  function paths(shapes) {
    const heads = [["path", ""], ["type", ""], ["missing", "num"], ["null", "num"], ["values", ""], ["", ""]];
    return h(
      "div",
      { class: "scroll" },
      h(
        "table",
        { class: "paths" },
        h("thead", {}, h("tr", {}, heads.map(([name, kind]) => h("th", { class: kind }, name)))),
        h("tbody", {}, shapes.map((path) => h(
          "tr",
          { class: path.drifting ? "drifting" : null },
          h("td", {}, h("b", {}, path.path), path.drifting ? h("span", { class: "flag", title: "Changed recently, see above" }, "changed") : null),
          h("td", {}, path.types),
          h("td", { class: "num" }, path.missing),
          h("td", { class: "num" }, path.nulls),
          h("td", {}, values(path)),
          h("td", { class: "one-line" }, buttons(path.code, "SQL")),
        ))),
      ),
    );
  }

  function values(path) {
    const top = path.top.map(([value, count]) => h("span", { class: "value", title: `${count} times in the newest payloads` }, value, h("small", { class: "soft" }, ` ${count}`)));
    const count = path.distinct > Math.max(path.top.length, path.examples.length) ? [h("span", { class: "soft value" }, `${path.distinct.toLocaleString("en")} different`)] : [];
    return [...top, ...path.examples.map((value) => h("span", { class: "value" }, value)), ...count];
  }

  function samples(events) {
    return h(
      "details",
      {},
      h("summary", {}, events.length === 1 ? "The newest event" : `The newest ${events.length} events`),
      events.map((event) => [h("div", { class: "soft" }, `${event.at} (UTC)`), h("pre", {}, event.text)]).flat(),
    );
  }

  function buttons(source, name = "Insert SQL") {
    const insert = () => notify(insertBelow(model, root, source) ? "Inserted a cell below." : "Cannot insert cells here: copy the code instead.");
    const take = async () => {
      await copy(source);
      notify("Copied.");
    };
    return [
      h("button", { class: "insert", onclick: insert, title: "Insert a cell with this query below" }, name),
      " ",
      h("button", { class: "copy", onclick: take, title: "Copy the code" }, "Copy"),
    ];
  }

  return {
    start: () => (onlyEvent ? look(onlyEvent) : fetchList("")),
    end() {
      clearTimeout(timer);
      endKeys();
      endRequests();
      root.remove();
    },
  };
}

export default {
  render({ model, el }) {
    const widget = catalog(model, el);
    widget.start();
    return widget.end;
  },
};
