// What our widgets share. It stands before each of them in one module. Texts are set as texts, never as HTML: they come from strangers.

const ANSWERED_WITHIN_MS = 15000;
const NO_KERNEL = "The kernel does not answer. It is busy, or it was stopped: then run the cell again.";

/** Make an element: `h("td", {class: "num"}, "1", child)`; what is null or false is left out, `on…` listens. */
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

/** Keep plain keys inside: JupyterLab in command mode would take `d d` for «delete the cell». */
function hush(element) {
  const stop = (event) => {
    if (!event.ctrlKey && !event.metaKey && !["Shift", "Control", "Meta", "Alt"].includes(event.key)) event.stopPropagation();
  };
  element.addEventListener("keydown", stop);
  return () => element.removeEventListener("keydown", stop);
}

/** Draw a bar for each count; `unit` is said behind the highest. */
function spark(counts, days, { width = 124, height = 22, unit = " a day" } = {}) {
  const make = (tag, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  };
  const most = Math.max(...counts, 1);
  const step = width / Math.max(counts.length, 1);
  const picture = make("svg", { width, height, role: "img", class: "spark" });
  const title = make("title", {});
  title.textContent = counts.length ? `${days[0]} to ${days[days.length - 1]}, at most ${most.toLocaleString("en")}${unit}` : "";
  picture.append(title, make("rect", { class: "ground", y: height - 1, width, height: 1 }));
  counts.forEach((count, index) => {
    if (!count) return;
    const high = Math.max((count / most) * (height - 2), 1.5);
    picture.append(make("rect", { x: index * step, y: height - 1 - high, width: Math.max(step - 1, 1), height: high }));
  });
  return picture;
}

/** Return a function that asks Python and promises its answer, and one that ends that. */
function asking(model) {
  const waiting = new Map();
  let number = 0;
  const own = Math.random().toString(36).slice(2); // every view of a model hears all answers
  const hear = (answer) => {
    const found = waiting.get(answer?.id);
    if (!found) return;
    waiting.delete(answer.id);
    clearTimeout(found.timer);
    if (answer.error !== undefined) found.refuse(new Error(answer.error));
    else found.accept(answer);
  };
  model.on("msg:custom", hear);
  const ask = (question) =>
    new Promise((accept, refuse) => {
      const id = `${own}-${(number += 1)}`;
      const timer = setTimeout(() => {
        waiting.delete(id);
        refuse(new Error(NO_KERNEL));
      }, ANSWERED_WITHIN_MS);
      waiting.set(id, { accept, refuse, timer });
      try {
        model.send({ ...question, id });
      } catch {
        hear({ id, error: NO_KERNEL });
      }
    });
  const end = () => {
    model.off("msg:custom", hear);
    waiting.forEach(({ timer }) => clearTimeout(timer));
  };
  return [ask, end];
}

/** Insert a code cell below the one that shows a widget; false where the notebook cannot be reached (not JupyterLab). */
function insertBelow(model, root, source) {
  const notebook = model.widget_manager?.context?.model?.sharedModel;
  if (typeof notebook?.insertCell !== "function") return false;
  const shows = (cell) => JSON.stringify(cell.toJSON().outputs ?? []).includes(model.get("own_id"));
  const place = notebook.cells.findIndex(shows);
  if (place < 0) return false;
  notebook.insertCell(place + 1, { cell_type: "code", source, metadata: {} });
  setTimeout(() => root.closest(".jp-Cell")?.nextElementSibling?.scrollIntoView({ block: "nearest" }), 100);
  return true;
}

/** Copy a text; in pages without a clipboard of their own the old way. */
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
