// A text with templates: users type it, or insert values from a list at the cursor, and give each value a fallback.
import { useEffect, useRef, useState, type MouseEvent } from "react";
import type { Option } from "./Combo";

interface Props {
  id: string;
  label: string;
  value: string;
  paths: Option[];
  onChange: (value: string) => void;
  long?: boolean;
  disabled?: boolean;
  invalid?: boolean;
}

export function Template({ id, label, value, paths, onChange, long, disabled, invalid }: Props) {
  const field = useRef<HTMLTextAreaElement & HTMLInputElement>(null);
  const [open, setOpen] = useState(false);

  const menu = useRef<HTMLSpanElement>(null);
  useEffect(() => {
    if (!open) return;
    const close = (event: Event) => {
      if (!menu.current?.contains(event.target as Node)) setOpen(false);
    };
    document.addEventListener("pointerdown", close);
    return () => document.removeEventListener("pointerdown", close);
  }, [open]);

  const insert = (path: string) => {
    const [from, to] = [field.current?.selectionStart ?? value.length, field.current?.selectionEnd ?? value.length];
    const text = templateOf(path);
    onChange(value.slice(0, from) + text + value.slice(to));
    setOpen(false);
    requestAnimationFrame(() => {
      field.current?.focus();
      field.current?.setSelectionRange(from + text.length, from + text.length);
    });
  };

  const common = {
    id,
    ref: field,
    value,
    disabled,
    "aria-invalid": invalid || undefined,
    onChange: (event: { target: { value: string } }) => onChange(event.target.value),
  };
  return (
    <span className="ewc-template">
      {long ? <textarea rows={5} {...common} /> : <input type="text" {...common} />}
      {!disabled && paths.length > 0 && (
        <span className="ewc-insert" ref={menu} onKeyDown={(event) => event.key === "Escape" && setOpen(false)}>
          <button type="button" className="ewc-more" aria-expanded={open} aria-label={`Insert a value into ${label}`} {...onPress(() => setOpen(!open))}>+ value</button>
          {open && (
            <ul className="ewc-options" aria-label={`Values for ${label}`}>
              {paths.map((path) => (
                <li key={path.value}><button type="button" {...onPress(() => insert(path.value))}><span>{path.value}</span>{path.detail && <small>{path.detail}</small>}</button></li>
              ))}
            </ul>
          )}
        </span>
      )}
      {fallbacksIn(value).map(([path, fallback]) => (
        <label className="ewc-fallback" key={path}>
          <span>if <code>{path}</code> is missing</span>
          <input type="text" aria-label={`Fallback for ${path} in ${label}`} value={fallback} placeholder="no fallback" disabled={disabled}
            onChange={(event) => onChange(withFallback(value, path, event.target.value))} />
        </label>
      ))}
    </span>
  );
}

// `{{ contact.name }}` or `{{ contact.name | default("you") }}`, the only expressions that have a field for a fallback.
const INSERTED = /\{\{\s*([A-Za-z]\w*(?:\.[A-Za-z]\w*|\["[^"\\]*"\])*)\s*(?:\|\s*(?:default|d)\(\s*("(?:[^"\\\x00-\x1f]|\\["\\nt])*"|'[^'\\\x00-\x1f]*')\s*\)\s*)?\}\}/g;

/** The inserted values of a text in order, each once, with its fallback. */
function fallbacksIn(text: string): [string, string][] {
  const found = new Map<string, string>();
  for (const [, path = "", literal = '""'] of text.matchAll(INSERTED)) {
    const fallback = literal.startsWith("'") ? literal.slice(1, -1) : String(JSON.parse(literal));
    found.set(path, found.get(path) || fallback);
  }
  return [...found];
}

function withFallback(text: string, path: string, fallback: string): string {
  const written = `{{ ${path}${fallback === "" ? "" : ` | default(${JSON.stringify(fallback)})`} }}`;
  return text.replace(INSERTED, (expression: string, inserted: string) => (inserted === path ? written : expression));
}

/**
 * Handlers that act when the mouse goes down, so that the field keeps the focus and its cursor. A click from the keyboard has
 * no mouse event before it (detail 0).
 */
function onPress(action: () => void) {
  return {
    onMouseDown: (event: MouseEvent) => {
      event.preventDefault();
      action();
    },
    onClick: (event: MouseEvent) => {
      if (event.detail === 0) action();
    },
  };
}

/** The template of a path; names that are not identifiers go into brackets. An include is a template already. */
export function templateOf(path: string): string {
  if (path.startsWith("{%")) return path;
  const [first = "", ...rest] = path.split(".");
  if (!WORD.test(first)) return `{{ payload[${JSON.stringify(path)}] }}`;
  return `{{ ${first}${rest.map((part) => (WORD.test(part) ? `.${part}` : `[${JSON.stringify(part)}]`)).join("")} }}`;
}

const WORD = /^[A-Za-z][A-Za-z0-9_]*$/;
