// A duration in a unit that the user chooses; the draft contains seconds.
import { useState } from "react";

const UNITS: [string, number][] = [["seconds", 1], ["minutes", 60], ["hours", 3_600], ["days", 86_400], ["weeks", 604_800]];

interface Props {
  id: string;
  label: string;
  numberLabel?: string; // where no label element names the number
  value: unknown;
  onChange: (seconds: number) => void;
  onClear?: () => void; // of an optional duration: the input may be empty
  disabled?: boolean;
}

export function DurationInput({ id, label, numberLabel, value, onChange, onClear, disabled }: Props) {
  const seconds = typeof value === "number" ? value : 0;
  const [unit, setUnit] = useState(() => largestUnit(seconds));
  const [draft, setDraft] = useState<string | null>(null);
  const size = UNITS.find(([name]) => name === unit)![1];

  const type = (text: string, unitSeconds: number) => {
    const number = Number(text);
    const valid = text.trim() !== "" && number > 0;
    setDraft(valid && String(number) === text ? null : text);
    if (valid) onChange(Math.round(number * unitSeconds));
    else if (onClear && text.trim() === "") onClear();
  };

  return (
    <span className="ewc-row">
      <input id={id} type="number" min={1} step="any" aria-label={numberLabel} value={draft ?? (onClear && seconds === 0 ? "" : String(Number((seconds / size).toFixed(4))))} disabled={disabled} aria-invalid={(draft === "" && !onClear) || undefined}
        onChange={(event) => type(event.target.value, size)} onBlur={() => setDraft(null)} />
      <select aria-label={`Unit of ${label}`} value={unit} disabled={disabled} onChange={(event) => {
        const [newUnit, newSize] = UNITS.find(([name]) => name === event.target.value)!;
        if (seconds > 0 || !onClear) onChange(Math.max(1, Math.round((seconds / size) * newSize)));
        setUnit(newUnit);
      }}>
        {UNITS.map(([name]) => <option key={name}>{name}</option>)}
      </select>
    </span>
  );
}

function largestUnit(seconds: number): string {
  return UNITS.findLast(([, size]) => seconds > 0 && seconds % size === 0 && (size < 604_800 || seconds > 604_800))?.[0] ?? "seconds";
}
