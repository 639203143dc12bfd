// Keyboard shortcuts of the canvas, and the table of them that `?` shows.
import type { KeyboardEvent } from "react";

export const KEYS: [string, string][] = [
  ["Tab", "go from card to card; Enter or Space selects"],
  ["N", "add a step after the selected one"],
  ["Enter", "edit the selected step"],
  ["Arrow keys", "move the selection"],
  ["Delete", "remove the selection"],
  ["Ctrl+Z, Ctrl+Shift+Z", "undo, redo"],
  ["Ctrl+C, Ctrl+X, Ctrl+V, Ctrl+D", "copy, cut, paste, duplicate"],
  ["Ctrl+A", "select everything"],
  ["Shift+drag", "select an area"],
  ["Ctrl+wheel", "zoom"],
  ["L, F", "lay out, zoom to fit"],
  ["T", "test with an event"],
  ["Escape", "clear the selection"],
  ["?", "show this list"],
];

export type Act =
  | "undo" | "redo" | "remove" | "all" | "duplicate" | "arrange" | "fit" | "test" | "help" | "none" | "palette" | "form";

const PLAIN: Record<string, Act> = {
  Delete: "remove", Backspace: "remove", Escape: "none", Enter: "form", "?": "help", l: "arrange", f: "fit", t: "test", n: "palette",
};
const HELD: Record<string, Act> = { z: "undo", y: "redo", a: "all", d: "duplicate" };

/** The action of a key; null where the key belongs to a field, or has no action. */
export function actOf(event: KeyboardEvent): Act | null {
  const at = event.target as HTMLElement;
  if (at.closest("input, textarea, select, [contenteditable], dialog")) return null;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (event.ctrlKey || event.metaKey) return key === "z" && event.shiftKey ? "redo" : (HELD[key] ?? null);
  if (event.altKey) return null;
  if (key === "Enter" && at.closest("button, summary, [role=option]")) return null;
  return PLAIN[key] ?? null;
}
