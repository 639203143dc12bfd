// The branches of a split: names, and percentages that must add up to 100.
import { useState } from "react";
import { isObject } from "../exact";
import type { Json, Obj } from "../types";

interface Props {
  value: Json | undefined;
  onChange: (branches: Obj[], renamed?: { from: string; to: string }) => void;
  disabled?: boolean;
}

export function Branches({ value, onChange, disabled }: Props) {
  const branches = Array.isArray(value) ? value.filter(isObject) : [];
  const total = branches.reduce((sum, each) => sum + (Number(each.percent) || 0), 0);
  const even = () => {
    const share = Math.floor(100 / branches.length);
    onChange(branches.map((each, index) => ({ ...each, percent: index ? share : 100 - share * (branches.length - 1) })));
  };
  return (
    <div className="ewc-branches">
      {branches.map((each, index) => (
        <span className="ewc-row" key={index}>
          <Name value={String(each.handle ?? "")} label={`Name of branch ${index + 1}`} taken={branches.map((other) => String(other.handle))} disabled={disabled}
            onChange={(to) => onChange(branches.with(index, { ...each, handle: to }), { from: String(each.handle), to })} />
          <input type="number" min={0} max={100} step={1} aria-label={`Percentage of branch ${index + 1}`} value={Number(each.percent) || 0} disabled={disabled}
            onChange={(event) => onChange(branches.with(index, { ...each, percent: Math.round(Number(event.target.value)) }))} />
          <span>%</span>
          <button type="button" className="ewc-x" aria-label={`Remove branch ${index + 1}`} disabled={disabled || branches.length <= 2} onClick={() => onChange(branches.toSpliced(index, 1))}>×</button>
        </span>
      ))}
      <span className="ewc-row">
        <button type="button" className="ewc-more" disabled={disabled} onClick={() => onChange([...branches, { handle: next(branches), percent: 0 }])}>+ branch</button>
        <button type="button" className="ewc-more" disabled={disabled} onClick={even}>Distribute evenly</button>
        <output className={total === 100 ? "ewc-soft" : "ewc-wrong"} role="status">{total === 100 ? "100 %" : `${total} %, not 100`}</output>
      </span>
    </div>
  );
}

/** A name that is applied when it is complete: edges refer to it, and two branches cannot have the same name. */
function Name({ value, label, taken, onChange, disabled }: { value: string; label: string; taken: string[]; onChange: (to: string) => void; disabled?: boolean }) {
  const [draft, setDraft] = useState<string | null>(null);
  const good = draft === null || draft === value || (draft !== "" && draft.length <= 128 && !taken.includes(draft));
  const settle = () => {
    if (draft !== null && draft !== value && good) onChange(draft);
    setDraft(null);
  };
  return (
    <input type="text" aria-label={label} value={draft ?? value} disabled={disabled} aria-invalid={!good || undefined}
      onChange={(event) => setDraft(event.target.value)} onBlur={settle} onKeyDown={(event) => event.key === "Enter" && settle()} />
  );
}

function next(branches: Obj[]): string {
  const taken = new Set(branches.map((each) => each.handle));
  return [..."abcdefghijklmnopqrstuvwxyz"].find((letter) => !taken.has(letter)) ?? `way ${branches.length + 1}`;
}
