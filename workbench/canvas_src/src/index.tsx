// The view that anywidget renders: one React tree per view; all views of a canvas share one model.
import { createRoot } from "react-dom/client";
import "@xyflow/react/dist/style.css";
import "./canvas.css";
import { Canvas } from "./Canvas";
import { CanvasStore } from "./store";
import type { Model } from "./types";

function render({ model, el }: { model: Model; el: HTMLElement }): () => void {
  const store = new CanvasStore(model);
  const releaseKeys = keepKeys(el);
  const root = createRoot(el);
  root.render(<Canvas store={store} height={model.get("height")} />);
  return () => {
    releaseKeys();
    root.unmount();
    store.close();
  };
}

/** Keep key presses from JupyterLab, whose shortcuts would change the notebook. */
function keepKeys(el: HTMLElement): () => void {
  const stop = (event: KeyboardEvent) => {
    const saves = (event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "s";
    // React Flow listens for modifiers on the document, and Ctrl+S saves the notebook.
    if (!saves && !MODIFIERS.has(event.key)) event.stopPropagation();
  };
  el.addEventListener("keydown", stop);
  return () => el.removeEventListener("keydown", stop);
}

const MODIFIERS = new Set(["Shift", "Control", "Meta", "Alt"]);

export default { render };
