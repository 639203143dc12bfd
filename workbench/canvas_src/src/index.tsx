// The view that anywidget opens: one React tree per view, all views of a canvas on one model.
import { createRoot } from "react-dom/client";
import "@xyflow/react/dist/style.css";
import "./canvas.css";
import { Canvas } from "./Canvas";
import { Desk } from "./desk";
import type { Model } from "./types";

function render({ model, el }: { model: Model; el: HTMLElement }): () => void {
  const desk = new Desk(model);
  const stopHushing = hush(el);
  const root = createRoot(el);
  root.render(<Canvas desk={desk} height={model.get("height")} />);
  return () => {
    stopHushing();
    root.unmount();
    desk.close();
  };
}

/** Keep keys from JupyterLab, whose shortcuts would work on the notebook. Modifiers pass: React Flow waits for them at the document. */
function hush(el: HTMLElement): () => void {
  const stop = (event: KeyboardEvent) => {
    const saves = (event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "s";
    if (!saves && !MODIFIERS.has(event.key)) event.stopPropagation();
  };
  el.addEventListener("keydown", stop);
  return () => el.removeEventListener("keydown", stop);
}

const MODIFIERS = new Set(["Shift", "Control", "Meta", "Alt"]);

export default { render };
