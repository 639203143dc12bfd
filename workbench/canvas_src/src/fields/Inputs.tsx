// Inputs for event names, words, attributes, whole numbers and JSON.
import { useState } from "react";
import { isObject, formatJson, parseNumber, parseJson, displayText } from "../json";
import type { Choices, Json, Obj } from "../types";
import { Combo, type Option } from "./Combo";
import { Value } from "./Value";

export function eventOptions(choices: Choices): Option[] {
  return choices.events.map((event) => ({ value: event.name, detail: `${event.count.toLocaleString()} in 30 days` }));
}

/** A list of event names. */
export function Events({ names, choices, onChange, disabled }: { names: string[]; choices: Choices; onChange: (names: string[]) => void; disabled?: boolean }) {
  const [draft, setDraft] = useState("");
  const add = (name: string) => {
    setDraft("");
    const event = name.trim().toLowerCase();
    if (event && !names.includes(event)) onChange([...names, event]);
  };
  return (
    <div>
      {names.length > 0 && (
        <ul className="ewc-chips" aria-label="Chosen events">
          {names.map((name) => (
            <li key={name}>{name}<button type="button" aria-label={`Remove ${name}`} disabled={disabled} onClick={() => onChange(names.filter((other) => other !== name))}>×</button></li>
          ))}
        </ul>
      )}
      {!disabled && <Combo label="Event" value={draft} options={eventOptions(choices).filter((option) => !names.includes(option.value))} placeholder={names.length ? "or another event" : "which event?"} onChange={setDraft} onPick={add} />}
    </div>
  );
}

/** A text without spaces at its ends. The field keeps those that are being typed: more words may follow. */
export function Word({ label, value, onChange, disabled, invalid }: { label: string; value: string; onChange: (value: string) => void; disabled?: boolean; invalid?: boolean }) {
  const [typed, setTyped] = useState(value);
  const change = (text: string) => {
    setTyped(text);
    onChange(text.trim());
  };
  return <Combo label={label} value={typed.trim() === value ? typed : value} options={[]} disabled={disabled} invalid={invalid} onChange={change} />;
}

/** Attributes, or fields of a connection that is not known, with their values. */
export function Attributes({ value, names, noun, onChange, disabled }: { value: Json | undefined; names: Option[]; noun: "attribute" | "field"; onChange: (value: Obj) => void; disabled?: boolean }) {
  const attributes = isObject(value) ? Object.entries(value) : [];
  const [newName, setNewName] = useState("");
  const add = (name: string) => {
    setNewName("");
    if (name.trim() && !attributes.some(([other]) => other === name.trim())) onChange(Object.fromEntries([...attributes, [name.trim(), ""]]));
  };
  return (
    <div className="ewc-filters">
      {attributes.map(([name, attribute], index) => (
        <div className="ewc-filter" key={name}>
          <span className="ewc-row"><b>{name}</b>
            <button type="button" className="ewc-x" aria-label={`Remove ${name}`} disabled={disabled} onClick={() => onChange(Object.fromEntries(attributes.toSpliced(index, 1)))}>×</button></span>
          <Value label={name} value={attribute} disabled={disabled} onChange={(next) => onChange(Object.fromEntries(attributes.with(index, [name, next])))} />
        </div>
      ))}
      {!disabled && <Combo label={noun === "field" ? "Field to add" : "Attribute to write"} value={newName} options={names} placeholder={noun} onChange={setNewName} onPick={add} />}
    </div>
  );
}

/** A whole number; empty removes the field. */
export function IntegerInput({ id, value, onChange, disabled, invalid }: { id: string; value: Json | undefined; onChange: (value: Json | undefined) => void; disabled?: boolean; invalid?: boolean }) {
  return (
    <input id={id} type="number" min={0} step={1} value={displayText(value)} disabled={disabled} aria-invalid={invalid || undefined}
      onChange={(event) => onChange(parseNumber(event.target.value) ?? undefined)} />
  );
}

interface JsonProps {
  label: string;
  value: Json | undefined;
  onChange: (value: Json | undefined) => void;
  disabled?: boolean;
  orText: boolean; // plain text is allowed, too
}

/** JSON, or plain text where that is allowed; empty removes the field. */
export function JsonInput({ label, value, onChange, disabled, orText }: JsonProps) {
  const [asText, setAsText] = useState(orText && typeof value === "string");
  const [draft, setDraft] = useState<string | null>(null);
  const [error, setError] = useState("");
  const shown = value === undefined || value === null ? "" : typeof value === "string" && asText ? value : formatJson(value);
  const type = (typed: string, plain: boolean) => {
    setDraft(typed);
    setError("");
    if (!typed.trim()) return onChange(undefined);
    if (plain) return onChange(typed);
    try {
      onChange(parseJson(typed));
    } catch (reason) {
      setError((reason as Error).message);
    }
  };
  return (
    <>
      {orText && (
        <select aria-label={`${label}, written as`} value={asText ? "text" : "JSON"} disabled={disabled} onChange={(event) => { setAsText(event.target.value === "text"); type(draft ?? shown, event.target.value === "text"); }}>
          <option>JSON</option>
          <option>text</option>
        </select>
      )}
      <textarea aria-label={label} className="ewc-code" rows={5} spellCheck={false} value={draft ?? shown} disabled={disabled} aria-invalid={error !== "" || undefined}
        onChange={(event) => type(event.target.value, asText)} onBlur={() => !error && setDraft(null)} />
      {error && <span className="ewc-wrong">{error}</span>}
    </>
  );
}
