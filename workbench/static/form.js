// Forms: pages of forms in tabs, or one form. Python answers `open`, `fields` (again when a choice changes the others) and `run`.

const NO_RESULT = "Choose values, then run.";

/** Return the widget of one model and element, with `start` and `end`. */
function forms(model, el) {
  const [ask, endRequests] = openRequests(model);
  const view = Math.random().toString(36).slice(2); // ids of one view differ from those of others in the page
  const notice = h("div", { class: "notice soft", role: "status" }, "Reading …");
  const root = h("div", { class: "ewb-widget forms" }, notice);
  const endKeys = keepKeys(root);
  el.append(root);

  function control(field, onChange) {
    const common = { name: field.name, required: field.required, onchange: field.reloads ? onChange : null };
    if (field.kind === "choice") {
      const options = field.options.map((option) => h("option", { value: option, selected: option === field.value }, option || (field.required ? "choose one" : "none")));
      return h("select", common, options);
    }
    const list = field.options.length ? `${view}-${field.name}` : null;
    return h("input", { ...common, type: field.kind, value: field.value, list, autocomplete: "off", min: field.kind === "number" ? 1 : null });
  }

  /** Return an element with one form: its fields, a button, the code that does the same, and the result. */
  function form({ name, title, submit }) {
    const fields = h("div", { class: "fields" });
    const status = h("span", { class: "soft", role: "status" });
    const button = h("button", { type: "submit" }, submit);
    const code = h("pre", { tabindex: 0, "aria-label": "Code" });
    const codeBox = h(
      "details",
      { hidden: true },
      h("summary", {}, "The same in Python"),
      code,
      h("button", { type: "button", onclick: insert }, "Insert a cell"),
      h("button", { type: "button", onclick: () => copy(code.textContent).then(() => (status.textContent = "Copied.")) }, "Copy"),
    );
    const result = h("div", { class: "result", role: "region", "aria-label": `${title}: result` });
    const element = h("form", { "aria-label": title, onsubmit: run }, fields, h("div", { class: "bar" }, button, status), codeBox, result);

    let lastLoad = 0;
    const values = () => Object.fromEntries(new FormData(element));

    function insert() {
      status.textContent = insertBelow(model, root, code.textContent) ? "Inserted a cell below." : "Cannot insert cells here: copy the code instead.";
    }

    async function load(changed) {
      const sent = values();
      const number = (lastLoad += 1);
      status.textContent = "Reading …";
      try {
        const answer = await ask({ ask: "fields", form: name, values: sent });
        if (number !== lastLoad) return; // a later choice is under way
        const edited = Object.entries(values()).filter(([field, value]) => value !== sent[field]); // meanwhile
        const lists = answer.fields.filter((field) => field.kind !== "choice" && field.options.length);
        const focused = focusedIn(fields)?.name ?? changed;
        fields.replaceChildren(
          ...answer.fields.map((field) => h("label", {}, h("span", {}, field.label), control(field, () => load(field.name)), field.help && h("small", { class: "soft" }, field.help))),
          ...lists.map((field) => h("datalist", { id: `${view}-${field.name}` }, field.options.map((option) => h("option", { value: option })))),
        );
        for (const [field, value] of edited) if (element.elements[field]) element.elements[field].value = value;
        if (focused) element.elements[focused]?.focus(); // drawing replaced the element that had the focus
        button.disabled = Boolean(answer.note);
        status.textContent = answer.note || (result.childNodes.length ? "" : NO_RESULT);
      } catch (error) {
        if (number === lastLoad) status.textContent = error.message;
      }
    }

    async function run(event) {
      event.preventDefault();
      button.disabled = true;
      status.textContent = "Running …";
      try {
        const answer = await ask({ ask: "run", form: name, values: values() });
        // Safe: the templates of Python escape every value, as for the output of a cell.
        result.innerHTML = answer.html;
        code.textContent = answer.code;
        codeBox.hidden = false;
        status.textContent = "Done.";
      } catch (error) {
        result.replaceChildren();
        status.textContent = error.message;
      }
      button.disabled = false;
    }

    return { element: h("section", {}, h("h3", {}, title), element), load };
  }

  /** Return the elements of the tabs; the fields of a form are read when its tab is opened. */
  function tabs(pages) {
    const panels = [];
    const buttons = pages.map(({ title }, index) =>
      h("button", { type: "button", role: "tab", id: `${view}-tab-${index}`, "aria-controls": `${view}-panel-${index}`, onclick: () => open(index), onkeydown: (event) => move(event, index) }, title),
    );

    function move(event, index) {
      const last = pages.length - 1;
      const next = { ArrowRight: index === last ? 0 : index + 1, ArrowLeft: index ? index - 1 : last, Home: 0, End: last }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      open(next);
      buttons[next].focus();
    }

    function open(index) {
      buttons.forEach((button, other) => {
        button.setAttribute("aria-selected", other === index);
        button.tabIndex = other === index ? 0 : -1;
        panels[other].element.hidden = other !== index;
      });
      panels[index].load();
    }

    pages.forEach(({ html, forms: names }, index) => {
      const parts = names.map(form);
      const text = h("div", html ? { class: "overview", role: "region", "aria-label": `${pages[index].title}: overview`, tabindex: 0 } : {});
      text.innerHTML = html; // safe, as above
      const element = h("div", { role: "tabpanel", id: `${view}-panel-${index}`, "aria-labelledby": `${view}-tab-${index}`, tabindex: 0 }, text, parts.map((part) => part.element));
      let loaded = false;
      const load = () => {
        if (!loaded) parts.forEach((part) => part.load());
        loaded = true;
      };
      panels.push({ element, load });
    });
    open(0);
    return [h("div", { class: "tabs", role: "tablist", "aria-label": "Event Workbench" }, buttons), ...panels.map((panel) => panel.element)];
  }

  async function start() {
    try {
      const { html, pages } = await ask({ ask: "open" });
      const head = h("div");
      head.innerHTML = html; // safe, as above
      if (pages.length > 1) root.prepend(head, ...tabs(pages));
      else {
        const [only] = pages[0].forms.map(form);
        root.prepend(only.element);
        only.load();
      }
      notice.textContent = "";
    } catch (error) {
      notice.textContent = error.message;
    }
  }

  return {
    start,
    end() {
      endRequests();
      endKeys();
      root.remove();
    },
  };
}

export default {
  render({ model, el }) {
    const widget = forms(model, el);
    widget.start();
    return widget.end;
  },
};
