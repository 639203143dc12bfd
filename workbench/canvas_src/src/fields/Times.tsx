// Inputs of a step that waits until a time: a date, its shift, and weekdays. Empty inputs remove the field.
import { useState } from "react";
import { Combo, type Option } from "./Combo";
import { DurationInput } from "./Duration";
import type { Json } from "../types";

const DAYS = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

interface Props {
  label: string;
  value: Json | undefined;
  disabled?: boolean;
  onChange: (value: Json | undefined) => void;
}

/** The path of a date. Choosing a time of day instead removes it, with the branch for contacts without it. */
export function DatePath({ id, label, value, options, disabled, invalid, onChange }: Props & { id: string; options: Option[]; invalid?: boolean }) {
  return (
    <>
      <select id={id} value={value === undefined ? "time" : "date"} disabled={disabled} onChange={(event) => onChange(event.target.value === "date" ? "" : undefined)}>
        <option value="time">No date: a time of day</option>
        <option value="date">A date</option>
      </select>
      {value !== undefined && <Combo label={`${label}, the value`} value={String(value)} options={options} placeholder="which value?" disabled={disabled} invalid={invalid} onChange={onChange} />}
    </>
  );
}

/** A distance from a date; the sign is a choice of its own. */
export function Shift({ id, label, value, disabled, onChange }: Props & { id: string }) {
  const seconds = typeof value === "number" ? value : 0;
  return (
    <span className="ewc-row">
      <select id={id} value={Math.sign(seconds)} disabled={disabled} onChange={(event) => onChange(Number(event.target.value) * Math.abs(seconds || 86_400) || undefined)}>
        <option value={0}>exactly then</option>
        <option value={-1}>earlier by</option>
        <option value={1}>later by</option>
      </select>
      {seconds !== 0 && <DurationInput id={`${id}-length`} label={label} numberLabel={`${label}, by how much`} value={Math.abs(seconds)} disabled={disabled} onChange={(length) => onChange(Math.sign(seconds) * length)} />}
    </span>
  );
}

export function Weekdays({ label, value, disabled, onChange }: Props) {
  const days = Array.isArray(value) ? value : [];
  const toggle = (day: number, on: boolean) => {
    const chosen = [1, 2, 3, 4, 5, 6, 7].filter((other) => (other === day ? on : days.includes(other)));
    onChange(chosen.length ? chosen : undefined);
  };
  return (
    <span className="ewc-row" role="group" aria-label={label}>
      {DAYS.map((name, index) => (
        <label key={name} className="ewc-switch"><input type="checkbox" checked={days.includes(index + 1)} disabled={disabled} onChange={(event) => toggle(index + 1, event.target.checked)} /> {name}</label>
      ))}
    </span>
  );
}

/** The name of a time zone, suggested from those that the browser knows. */
export function ZoneName({ label, value, disabled, invalid, placeholder = "Europe/Zurich", onChange }: Props & { invalid?: boolean; placeholder?: string }) {
  const [options] = useState(() => Intl.supportedValuesOf("timeZone").map((zone): Option => ({ value: zone })));
  return <Combo label={label} value={String(value ?? "")} options={options} placeholder={placeholder} disabled={disabled} invalid={invalid} onChange={onChange} />;
}
