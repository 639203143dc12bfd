// One JSON value: a text, a number, a boolean or null. Arrays and objects are edited as JSON.
import { useState } from "react";
import { isNumber, isObject, formatJson, parseNumber, parseJson, displayText } from "../json";
import type { Json } from "../types";
import { Combo, type Option } from "./Combo";

type ValueType = "text" | "number" | "yes/no" | "nothing" | "JSON";
const TYPES: ValueType[] = ["text", "number", "yes/no", "nothing", "JSON"];

export function typeOf(value: Json | undefined): ValueType {
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
  const [draft, setDraft] = useState<string | null>(null); // typed, but not a value of this type yet
  const valueType = typeOf(value);
  const changeType = (next: ValueType) => { setDraft(null); onChange(convert(value, next)); };

  const onType = (text: string) => {
    const read = valueType === "text" ? text : valueType === "number" ? parseNumber(text) : parseOrNull(text);
    setDraft(read === null ? text : null);
    if (read !== null) onChange(read);
  };

  return (
    <span className="ewc-value">
      {valueType === "yes/no" && (
        <select aria-label={label} value={String(value)} disabled={disabled} onChange={(event) => onChange(event.target.value === "true")}>
          <option value="true">yes</option>
          <option value="false">no</option>
        </select>
      )}
      {valueType === "nothing" && <input aria-label={label} value="nothing (null)" readOnly disabled={disabled} />}
      {(valueType === "text" || valueType === "number" || valueType === "JSON") && (
        <Combo exact label={label} value={draft ?? displayText(value)} options={options} onChange={onType} disabled={disabled} invalid={draft !== null} placeholder={valueType === "text" ? "empty text" : ""} />
      )}
      <select className="ewc-type" aria-label={`Type of ${label}`} title="Texts and numbers are not the same" value={valueType} disabled={disabled} onChange={(event) => changeType(event.target.value as ValueType)}>
        {TYPES.filter((name) => name !== "JSON" || valueType === "JSON").map((name) => <option key={name}>{name}</option>)}
      </select>
    </span>
  );
}

function convert(value: Json | undefined, valueType: ValueType): Json {
  const text = isObject(value) || Array.isArray(value) ? formatJson(value) : value === null ? "" : displayText(value);
  switch (valueType) {
    case "number": return parseNumber(text) ?? 0;
    case "yes/no": return text !== "false" && text !== "no";
    case "nothing": return null;
    default: return text;
  }
}

function parseOrNull(text: string): Json | null {
  try {
    return parseJson(text);
  } catch {
    return null;
  }
}

/** A list of values, for the operator “is one of”. */
export function Values({ label, value, options = [], onChange, disabled }: Props) {
  const values = Array.isArray(value) ? value : [];
  return (
    <span className="ewc-values">
      {values.map((item, index) => (
        <span className="ewc-row" key={index}>
          <Value label={`${label} ${index + 1}`} value={item} options={options} disabled={disabled} onChange={(next) => onChange(values.with(index, next))} />
          <button type="button" className="ewc-x" aria-label={`Remove ${label} ${index + 1}`} disabled={disabled} onClick={() => onChange(values.toSpliced(index, 1))}>×</button>
        </span>
      ))}
      <button type="button" className="ewc-more" disabled={disabled} onClick={() => onChange([...values, values.some(isNumber) ? 0 : ""])}>+ value</button>
    </span>
  );
}
