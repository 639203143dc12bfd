// Keyboard shortcuts, and the table of them that `?` shows.
import type { KeyboardEvent } from "react";

export const KEYS: [string, string][] = [
  ["Tab", "go from card to card, and to the outputs of a card"],
  ["Enter", "on a card: edit the step; on an output: choose the step to add there"],
  ["Escape", "leave the form; clear the selection"],
  ["N", "add a step after the selected one"],
  ["C", "connect the output that was chosen last to the card"],
  ["Shift+C, Ctrl+drag from an output", "connect one more card to the output, as a branch that follows the others"],
  ["Arrow keys", "move the selection"],
  ["Delete", "remove the selection"],
  ["Ctrl+Z, Ctrl+Shift+Z", "undo, redo"],
  ["Ctrl+C, Ctrl+X, Ctrl+V, Ctrl+D", "copy, cut, paste, duplicate"],
  ["Ctrl+A", "select everything"],
  ["Shift+drag", "select an area"],
  ["Ctrl+wheel", "zoom"],
  ["L, F", "lay out, zoom to fit"],
  ["T", "test with an event"],
  ["?", "show this list"],
];

export type Command =
  | "undo" | "redo" | "remove" | "selectAll" | "duplicate" | "arrange" | "fit" | "test" | "help" | "clearSelection" | "focusPalette" | "focusForm" | "focusCard" | "connect" | "connectBranch";

const WITHOUT_MODIFIER: Record<string, Command> = {
  Delete: "remove", Backspace: "remove", Escape: "clearSelection", Enter: "focusForm", "?": "help", l: "arrange", f: "fit", t: "test", n: "focusPalette", c: "connect",
};
const WITH_CONTROL: Record<string, Command> = { z: "undo", y: "redo", a: "selectAll", d: "duplicate" };

/** The command of a key; null where the key belongs to a field, or has no command. */
export function commandOf(event: KeyboardEvent): Command | null {
  const target = event.target as HTMLElement;
  if (target.closest("dialog")) return null;
  if (event.key === "Escape" && target.closest(".ewc-panel")) return "focusCard";
  if (target.closest("input, textarea, select, [contenteditable]")) return null;
  if (isPress(event) && target.closest(".ewc-out")) return "focusPalette";
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (event.ctrlKey || event.metaKey) return key === "z" && event.shiftKey ? "redo" : (WITH_CONTROL[key] ?? null);
  if (event.altKey) return null;
  if (key === "c" && event.shiftKey) return "connectBranch";
  // Enter presses a focused button; only on a card it opens the form.
  if (key === "Enter" && target.closest("button, summary, [role=option]")) return null;
  return WITHOUT_MODIFIER[key] ?? null;
}

/** Whether a key presses what has the focus. */
export function isPress(event: KeyboardEvent): boolean {
  return event.key === "Enter" || event.key === " ";
}
