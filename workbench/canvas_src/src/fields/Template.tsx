// A text with templates: users type it, or insert values from a list at the cursor, and give each value a fallback.
import { useRef, useState, type FocusEvent, type KeyboardEvent } from "react";
import { Combo, type Option } from "./Combo";

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
  const [query, setQuery] = useState("");

  const close = () => {
    setOpen(false);
    setQuery("");
  };
  const insert = (path: string) => {
    close();
    const [from, to] = [field.current?.selectionStart ?? value.length, field.current?.selectionEnd ?? value.length];
    const text = path.trim() && templateOf(path.trim());
    if (text) onChange(value.slice(0, from) + text + value.slice(to));
    requestAnimationFrame(() => {
      field.current?.focus();
      field.current?.setSelectionRange(from + text.length, from + text.length);
    });
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key !== "Escape" || !open) return;
    close();
    field.current?.focus();
    event.stopPropagation();
  };
  const onBlur = (event: FocusEvent) => { if (!event.currentTarget.contains(event.relatedTarget)) close(); };

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
        <span className="ewc-insert" onKeyDown={onKeyDown} onBlur={onBlur}>
          {open
            ? <Combo autoFocus label={`Values for ${label}`} value={query} options={paths} placeholder="which value?" onChange={setQuery} onPick={insert} />
            : <button type="button" className="ewc-more" aria-label={`Insert a value into ${label}`} onClick={() => setOpen(true)}>+ value</button>}
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

/** The template of a path; names that are not identifiers go into brackets. An include is a template already. */
export function templateOf(path: string): string {
  if (path.startsWith("{%")) return path;
  const [first = "", ...rest] = path.split(".");
  if (!WORD.test(first)) return `{{ payload[${JSON.stringify(path)}] }}`;
  return `{{ ${first}${rest.map((part) => (WORD.test(part) ? `.${part}` : `[${JSON.stringify(part)}]`)).join("")} }}`;
}

const WORD = /^[A-Za-z][A-Za-z0-9_]*$/;
