// Keys that work while the canvas has the focus, in the table that `?` shows.
import type { KeyboardEvent } from "react";

export const KEYS: [string, string][] = [
  ["Tab", "from card to card; Enter or Space selects"],
  ["N", "to the steps that can be added, after the selected one"],
  ["Enter", "to the form of the selected step"],
  ["Arrow keys", "move what is selected"],
  ["Delete", "remove what is selected"],
  ["Ctrl+Z, Ctrl+Shift+Z", "undo, redo"],
  ["Ctrl+C, Ctrl+X, Ctrl+V, Ctrl+D", "copy, cut, paste, duplicate"],
  ["Ctrl+A", "select everything"],
  ["Shift+drag", "select an area"],
  ["Ctrl+wheel", "zoom"],
  ["L, F", "lay out, show everything"],
  ["T", "test with an event"],
  ["Escape", "select nothing"],
  ["?", "this list"],
];

export type Act =
  | "undo" | "redo" | "remove" | "all" | "duplicate" | "arrange" | "fit" | "test" | "help" | "none" | "palette" | "form";

const PLAIN: Record<string, Act> = {
  Delete: "remove", Backspace: "remove", Escape: "none", Enter: "form", "?": "help", l: "arrange", f: "fit", t: "test", n: "palette",
};
const HELD: Record<string, Act> = { z: "undo", y: "redo", a: "all", d: "duplicate" };

/** What a key asks for; null where it belongs to a field, or to nobody. */
export function actOf(event: KeyboardEvent): Act | null {
  const at = event.target as HTMLElement;
  if (at.closest("input, textarea, select, [contenteditable], dialog")) return null;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (event.ctrlKey || event.metaKey) return key === "z" && event.shiftKey ? "redo" : (HELD[key] ?? null);
  if (event.altKey) return null;
  if (key === "Enter" && at.closest("button, summary, [role=option]")) return null;
  return PLAIN[key] ?? null;
}
