// One value of JSON: a text, a number, yes or no, nothing. What is more than that is written as JSON.
import { useState } from "react";
import { isNumber, isObject, json, numberOf, parse, written } from "../exact";
import type { Json } from "../types";
import { Combo, type Option } from "./Combo";

type Sort = "text" | "number" | "yes/no" | "nothing" | "JSON";
const SORTS: Sort[] = ["text", "number", "yes/no", "nothing", "JSON"];

export function sortOf(value: Json | undefined): Sort {
  if (value === null) return "nothing";
  if (typeof value === "boolean") return "yes/no";
  if (isNumber(value)) return "number";
  return typeof value === "string" || value === undefined ? "text" : "JSON";
}

interface Props {
  label: string;
  value: Json | undefined;
  options?: Option[];
  onChange: (value: Json) => void;
  disabled?: boolean;
}

export function Value({ label, value, options = [], onChange, disabled }: Props) {
  const [draft, setDraft] = useState<string | null>(null); // typed, and not yet a value of its sort
  const sort = sortOf(value);
  const turn = (next: Sort) => { setDraft(null); onChange(turned(value, next)); };

  const type = (text: string) => {
    const read = sort === "text" ? text : sort === "number" ? numberOf(text) : parsed(text);
    setDraft(read === null ? text : null);
    if (read !== null) onChange(read);
  };

  return (
    <span className="ewc-value">
      {sort === "yes/no" && (
        <select aria-label={label} value={String(value)} disabled={disabled} onChange={(event) => onChange(event.target.value === "true")}>
          <option value="true">yes</option>
          <option value="false">no</option>
        </select>
      )}
      {sort === "nothing" && <input aria-label={label} value="nothing (null)" readOnly disabled={disabled} />}
      {(sort === "text" || sort === "number" || sort === "JSON") && (
        <Combo label={label} value={draft ?? written(value)} options={options} onChange={type} disabled={disabled} invalid={draft !== null} placeholder={sort === "text" ? "empty text" : ""} />
      )}
      <select className="ewc-sort" aria-label={`Sort of ${label}`} title="Texts and numbers are not the same" value={sort} disabled={disabled} onChange={(event) => turn(event.target.value as Sort)}>
        {SORTS.filter((each) => each !== "JSON" || sort === "JSON").map((each) => <option key={each}>{each}</option>)}
      </select>
    </span>
  );
}

function turned(value: Json | undefined, sort: Sort): Json {
  const text = isObject(value) || Array.isArray(value) ? json(value) : value === null ? "" : written(value);
  switch (sort) {
    case "number": return numberOf(text) ?? 0;
    case "yes/no": return text !== "false" && text !== "no";
    case "nothing": return null;
    default: return text;
  }
}

function parsed(text: string): Json | null {
  try {
    return parse(text);
  } catch {
    return null;
  }
}

/** Several values, each with its own sort: what `is one of` asks for. */
export function Values({ label, value, options = [], onChange, disabled }: Props) {
  const values = Array.isArray(value) ? value : [];
  return (
    <span className="ewc-values">
      {values.map((each, index) => (
        <span className="ewc-row" key={index}>
          <Value label={`${label} ${index + 1}`} value={each} options={options} disabled={disabled} onChange={(next) => onChange(values.with(index, next))} />
          <button type="button" className="ewc-x" aria-label={`Remove ${label} ${index + 1}`} disabled={disabled} onClick={() => onChange(values.toSpliced(index, 1))}>×</button>
        </span>
      ))}
      <button type="button" className="ewc-more" disabled={disabled} onClick={() => onChange([...values, values.some(isNumber) ? 0 : ""])}>+ value</button>
    </span>
  );
}
