// Fields that few kinds have: events, tags, attributes, JSON.
import { useState } from "react";
import { isObject, json, numberOf, parse, written } from "../exact";
import type { Choices, Json, Obj } from "../types";
import { Combo, type Option } from "./Combo";
import { Value } from "./Value";

export function eventOptions(choices: Choices): Option[] {
  return choices.events.map((each) => ({ value: each.name, detail: `${each.count.toLocaleString()} in 30 days` }));
}

/** Several events: those there are, each with a cross, and a line for one more. */
export function Events({ names, choices, onChange, disabled }: { names: string[]; choices: Choices; onChange: (names: string[]) => void; disabled?: boolean }) {
  const [draft, setDraft] = useState("");
  const put = (name: string) => {
    setDraft("");
    const clean = name.trim().toLowerCase();
    if (clean && !names.includes(clean)) onChange([...names, clean]);
  };
  return (
    <div>
      {names.length > 0 && (
        <ul className="ewc-chips" aria-label="Chosen events">
          {names.map((name) => (
            <li key={name}>{name}<button type="button" aria-label={`Remove ${name}`} disabled={disabled} onClick={() => onChange(names.filter((each) => each !== name))}>×</button></li>
          ))}
        </ul>
      )}
      {!disabled && <Combo label="Event" value={draft} options={eventOptions(choices).filter((each) => !names.includes(each.value))} placeholder={names.length ? "or another event" : "which event?"} onChange={setDraft} onPick={put} />}
    </div>
  );
}

/** Names and values; a name is taken over when it is whole. */
export function Attributes({ value, names, onChange, disabled }: { value: Json | undefined; names: Option[]; onChange: (value: Obj) => void; disabled?: boolean }) {
  const attributes = isObject(value) ? Object.entries(value) : [];
  const [fresh, setFresh] = useState("");
  const put = (name: string) => {
    setFresh("");
    if (name.trim() && !attributes.some(([known]) => known === name.trim())) onChange(Object.fromEntries([...attributes, [name.trim(), ""]]));
  };
  return (
    <div className="ewc-filters">
      {attributes.map(([name, each], index) => (
        <div className="ewc-filter" key={name}>
          <span className="ewc-row"><b>{name}</b>
            <button type="button" className="ewc-x" aria-label={`Remove ${name}`} disabled={disabled} onClick={() => onChange(Object.fromEntries(attributes.toSpliced(index, 1)))}>×</button></span>
          <Value label={name} value={each} disabled={disabled} onChange={(next) => onChange(Object.fromEntries(attributes.with(index, [name, next])))} />
        </div>
      ))}
      {!disabled && <Combo label="Attribute to write" value={fresh} options={names} placeholder="attribute" onChange={setFresh} onPick={put} />}
    </div>
  );
}

/** A whole number; empty takes the field out. */
export function Whole({ id, value, onChange, disabled, invalid }: { id: string; value: Json | undefined; onChange: (value: Json | undefined) => void; disabled?: boolean; invalid?: boolean }) {
  return (
    <input id={id} type="number" min={0} step={1} value={written(value)} disabled={disabled} aria-invalid={invalid || undefined}
      onChange={(event) => onChange(numberOf(event.target.value) ?? undefined)} />
  );
}

interface JsonProps {
  label: string;
  value: Json | undefined;
  onChange: (value: Json | undefined) => void;
  disabled?: boolean;
  orText: boolean; // whether a plain text is as good
}

/** JSON, or a plain text where that is as good; empty takes the field out. */
export function JsonField({ label, value, onChange, disabled, orText }: JsonProps) {
  const [asText, setAsText] = useState(orText && typeof value === "string");
  const [draft, setDraft] = useState<string | null>(null);
  const [wrong, setWrong] = useState("");
  const shown = value === undefined || value === null ? "" : typeof value === "string" && asText ? value : json(value);
  const type = (typed: string, plain: boolean) => {
    setDraft(typed);
    setWrong("");
    if (!typed.trim()) return onChange(undefined);
    if (plain) return onChange(typed);
    try {
      onChange(parse(typed));
    } catch (error) {
      setWrong((error as Error).message);
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
      <textarea aria-label={label} className="ewc-code" rows={5} spellCheck={false} value={draft ?? shown} disabled={disabled} aria-invalid={wrong !== "" || undefined}
        onChange={(event) => type(event.target.value, asText)} onBlur={() => !wrong && setDraft(null)} />
      {wrong && <span className="ewc-wrong">{wrong}</span>}
    </>
  );
}
