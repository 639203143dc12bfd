// Functions that all widgets use. Python puts this file before the file of each widget, and both are one module.
// Contents are set as text, never as HTML: event names and payloads come from outside.

const RECEIPT_TIMEOUT_MS = 15000;
const ANSWER_TIMEOUT_MS = 120000; // longer than Python waits for the server
const NO_ANSWER = "No answer yet. Try again.";
const NO_KERNEL = "The kernel does not answer. It is busy, or it was stopped: then run the cell again.";

/** Return an element: `h("td", {class: "num"}, "1", child)`. Skips null and false; `on…` adds a listener. */
function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Replace the children of an element. Children that stay are not moved: moving one would lose its focus and selection. */
function setChildren(element, children) {
  const staying = new Set(children);
  for (const child of [...element.children]) if (!staying.has(child)) child.remove();
  let next = element.firstChild;
  for (const child of children) {
    if (child === next) next = next.nextSibling;
    else element.insertBefore(child, next);
  }
}

/** Keep plain keys inside the widget; return a function that ends it. In JupyterLab's command mode `d d` deletes the cell. */
function keepKeys(element) {
  const stop = (event) => {
    if (!event.ctrlKey && !event.metaKey && !["Shift", "Control", "Meta", "Alt"].includes(event.key)) event.stopPropagation();
  };
  element.addEventListener("keydown", stop);
  return () => element.removeEventListener("keydown", stop);
}

/** Return the element below `element` that has the focus, or null. In marimo a widget is in a shadow tree, which has its own focus. */
function focusedIn(element) {
  const focused = element.getRootNode().activeElement;
  return focused && element.contains(focused) ? focused : null;
}

/** Return a bar chart of counts; the title has the largest one with its `unit`. */
function spark(counts, days, { width = 124, height = 22, unit = " a day" } = {}) {
  const svg = (tag, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  };
  const largest = Math.max(...counts, 1);
  const step = width / Math.max(counts.length, 1);
  const picture = svg("svg", { width, height, role: "img", class: "spark" });
  const title = svg("title", {});
  title.textContent = counts.length ? `${days[0]} to ${days[days.length - 1]}, at most ${largest.toLocaleString("en")}${unit}` : "";
  picture.append(title, svg("rect", { class: "baseline", y: height - 1, width, height: 1 }));
  counts.forEach((count, index) => {
    if (!count) return;
    const bar = Math.max((count / largest) * (height - 2), 1.5); // a small count must not look like zero
    picture.append(svg("rect", { x: index * step, y: height - 1 - bar, width: Math.max(step - 1, 1), height: bar }));
  });
  return picture;
}

/**
 * Return a function that sends a request to Python and returns a promise of its answer, and a function that ends this.
 *
 * Python first confirms that it received the request, so that a slow answer can be told from a kernel that is not running.
 */
function openRequests(model) {
  const pending = new Map();
  let number = 0;
  const view = Math.random().toString(36).slice(2); // every view of a model receives all answers
  const receive = (answer) => {
    const request = pending.get(answer?.id);
    if (!request) return;
    clearTimeout(request.timer);
    if (answer.received) {
      request.timer = setTimeout(() => receive({ id: answer.id, error: NO_ANSWER }), ANSWER_TIMEOUT_MS);
      return;
    }
    pending.delete(answer.id);
    if (answer.error !== undefined) request.reject(new Error(answer.error));
    else request.resolve(answer);
  };
  model.on("msg:custom", receive);
  const ask = (request) =>
    new Promise((resolve, reject) => {
      const id = `${view}-${(number += 1)}`;
      const timer = setTimeout(() => receive({ id, error: NO_KERNEL }), RECEIPT_TIMEOUT_MS);
      pending.set(id, { resolve, reject, timer });
      try {
        model.send({ ...request, id });
      } catch {
        receive({ id, error: NO_KERNEL });
      }
    });
  const end = () => {
    model.off("msg:custom", receive);
    pending.forEach(({ timer }) => clearTimeout(timer));
  };
  return [ask, end];
}

/**
 * Insert a code cell below the cell of a widget; return false if that is not possible.
 *
 * JupyterLab gives its document model to every widget, but does not promise this interface; other front ends do not have it.
 */
function insertBelow(model, root, source) {
  const notebook = model.widget_manager?.context?.model?.sharedModel;
  if (typeof notebook?.insertCell !== "function") return false;
  const showsWidget = (cell) => JSON.stringify(cell.toJSON().outputs ?? []).includes(model.get("own_id"));
  const index = notebook.cells.findIndex(showsWidget);
  if (index < 0) return false;
  notebook.insertCell(index + 1, { cell_type: "code", source, metadata: {} });
  setTimeout(() => root.closest(".jp-Cell")?.nextElementSibling?.scrollIntoView({ block: "nearest" }), 100);
  return true;
}

/** Copy a text. Pages over plain HTTP have no `navigator.clipboard`, so `execCommand` is the fallback. */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = h("textarea", { style: "position:fixed;opacity:0" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}
