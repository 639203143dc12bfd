// The branches of a split: names, and percentages that must add up to 100.
import { useState } from "react";
import { isObject } from "../json";
import type { Json, Obj } from "../types";

interface Props {
  value: Json | undefined;
  onChange: (branches: Obj[], renamed?: { from: string; to: string }) => void;
  disabled?: boolean;
}

export function Branches({ value, onChange, disabled }: Props) {
  const branches = Array.isArray(value) ? value.filter(isObject) : [];
  const total = branches.reduce((sum, branch) => sum + (Number(branch.percent) || 0), 0);
  const distributeEvenly = () => {
    const share = Math.floor(100 / branches.length);
    onChange(branches.map((branch, index) => ({ ...branch, percent: index ? share : 100 - share * (branches.length - 1) })));
  };
  return (
    <div className="ewc-branches">
      {branches.map((branch, index) => (
        <span className="ewc-row" key={index}>
          <BranchName value={String(branch.handle ?? "")} label={`Name of branch ${index + 1}`} taken={branches.map((other) => String(other.handle))} disabled={disabled}
            onChange={(to) => onChange(branches.with(index, { ...branch, handle: to }), { from: String(branch.handle), to })} />
          <input type="number" min={0} max={100} step={1} aria-label={`Percentage of branch ${index + 1}`} value={Number(branch.percent) || 0} disabled={disabled}
            onChange={(event) => onChange(branches.with(index, { ...branch, percent: Math.round(Number(event.target.value)) }))} />
          <span>%</span>
          <button type="button" className="ewc-x" aria-label={`Remove branch ${index + 1}`} disabled={disabled || branches.length <= 2} onClick={() => onChange(branches.toSpliced(index, 1))}>×</button>
        </span>
      ))}
      <span className="ewc-row">
        <button type="button" className="ewc-more" disabled={disabled} onClick={() => onChange([...branches, { handle: freeName(branches), percent: 0 }])}>+ branch</button>
        <button type="button" className="ewc-more" disabled={disabled} onClick={distributeEvenly}>Distribute evenly</button>
        <output className={total === 100 ? "ewc-soft" : "ewc-wrong"} role="status">{total === 100 ? "100 %" : `${total} %, not 100`}</output>
      </span>
    </div>
  );
}

/** The name is applied when the field loses focus: edges refer to it, and it must differ from the other names at every moment. */
function BranchName({ value, label, taken, onChange, disabled }: { value: string; label: string; taken: string[]; onChange: (to: string) => void; disabled?: boolean }) {
  const [draft, setDraft] = useState<string | null>(null);
  const valid = draft === null || draft === value || (draft !== "" && draft.length <= 128 && !taken.includes(draft));
  const commit = () => {
    if (draft !== null && draft !== value && valid) onChange(draft);
    setDraft(null);
  };
  return (
    <input type="text" aria-label={label} value={draft ?? value} disabled={disabled} aria-invalid={!valid || undefined}
      onChange={(event) => setDraft(event.target.value)} onBlur={commit} onKeyDown={(event) => event.key === "Enter" && commit()} />
  );
}

function freeName(branches: Obj[]): string {
  const taken = new Set(branches.map((branch) => branch.handle));
  return [..."abcdefghijklmnopqrstuvwxyz"].find((letter) => !taken.has(letter)) ?? `branch ${branches.length + 1}`;
}
