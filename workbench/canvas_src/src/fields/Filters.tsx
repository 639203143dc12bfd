// The conditions of a step, one per line: a path, an operator of the contract, a value.
import { useState } from "react";
import type { Choices, Json, Obj } from "../types";
import { isNumber, isObject, numberOf } from "../exact";
import { Combo, type Option } from "./Combo";
import { Value, Values } from "./Value";

const WORDS: Record<string, string> = { eq: "is", neq: "is not", in: "is one of", contains: "contains", exists: "is set" };

interface Props {
  label: string;
  value: Json | undefined;
  operators: string[];
  paths: Option[];
  samples: (path: string) => Option[];
  onChange: (value: Json) => void;
  disabled?: boolean;
}

export function Filters({ label, value, operators, paths, samples, onChange, disabled }: Props) {
  const [fresh, setFresh] = useState("");
  const filters = Array.isArray(value) ? value.filter(isObject) : [];
  const change = (index: number, filter: Obj) => onChange(filters.with(index, filter));
  return (
    <div className="ewc-filters" role="group" aria-label={label}>
      {filters.map((filter, index) => (
        <div className="ewc-filter" key={index}>
          <span className="ewc-row">
            <Combo label={`${label}: what, line ${index + 1}`} value={String(filter.path ?? "")} options={paths} placeholder="what?" disabled={disabled}
              onChange={(path) => change(index, { ...filter, path })}
              onPick={(path) => change(index, fitting({ ...filter, path }, samples(path)))} />
            <button type="button" className="ewc-x" aria-label={`Remove line ${index + 1}`} disabled={disabled} onClick={() => onChange(filters.toSpliced(index, 1))}>×</button>
          </span>
          <span className="ewc-row">
            <select aria-label={`${label}: how, line ${index + 1}`} value={String(filter.operator)} disabled={disabled} onChange={(event) => change(index, asking(filter, event.target.value))}>
              {[...new Set([...operators, String(filter.operator)])].map((each) => <option key={each} value={each}>{WORDS[each] ?? `${each} (unknown, ignored)`}</option>)}
            </select>
            {filter.operator === "in"
              ? <Values label="value" value={filter.value} options={samples(String(filter.path))} disabled={disabled} onChange={(next) => change(index, { ...filter, value: next })} />
              : filter.operator !== "exists" && <Value label="value" value={filter.value} options={samples(String(filter.path))} disabled={disabled} onChange={(next) => change(index, { ...filter, value: next })} />}
          </span>
        </div>
      ))}
      {!disabled && (
        <Combo label={`${label}: add`} value={fresh} options={paths} placeholder={filters.length ? "and …" : "which value?"} onChange={setFresh}
          onPick={(path) => { setFresh(""); if (path.trim()) onChange([...filters, asked(path.trim(), samples(path))]); }} />
      )}
    </div>
  );
}

/** A new filter: what is seen to be yes or no is asked to be yes, of everything else whether it is there. */
function asked(path: string, seen: Option[]): Obj {
  const yesNo = seen.length > 0 && seen.every((each) => typeof typed(each.value) === "boolean");
  return yesNo ? { path, operator: "eq", value: true } : { path, operator: "exists" };
}

/** The filter with another operator, its value kept where it makes sense. */
function asking(filter: Obj, operator: string): Obj {
  const { value, ...rest } = filter;
  if (operator === "exists") return { ...rest, operator };
  const one = Array.isArray(value) ? (value[0] ?? "") : (value ?? "");
  return { ...rest, operator, value: operator === "in" ? (Array.isArray(value) ? value : one === "" ? [] : [one]) : one };
}

/** The filter with a value of the sort that was seen there: a number is not the text of its digits. */
function fitting(filter: Obj, seen: Option[]): Obj {
  const first = seen[0]?.value;
  if (first === undefined || filter.value !== "" || isNumber(filter.value)) return filter;
  return { ...filter, value: typed(first) };
}

function typed(text: string): Json {
  if (text === "true" || text === "false") return text === "true";
  return numberOf(text) ?? text;
}

/** What filters of these events, or of the contact too, can look at. */
export function pathsOf(choices: Choices, events: string[], withContact: boolean): Option[] {
  const inEvents = events.flatMap((name) => choices.paths[name] ?? []);
  const options = new Map<string, Option>();
  for (const { path, types } of inEvents) if (!options.has(path)) options.set(path, { value: path, detail: types.join(", ") });
  if (withContact) {
    for (const { name } of choices.attributes) options.set(`contact.${name}`, { value: `contact.${name}`, detail: "attribute" });
    options.set("contact.tags", { value: "contact.tags", detail: "list" });
    options.set("contact.segments", { value: "contact.segments", detail: "list" });
  }
  for (const name of choices.builtIns) if (!options.has(name)) options.set(name, { value: name, detail: "of the event" });
  return [...options.values()];
}

/** The parameters of these events that hold a wallet. */
export function walletsOf(choices: Choices, events: string[]): Option[] {
  const wallets = events.flatMap((name) => choices.paths[name] ?? []).filter((each) => each.types.includes("address"));
  return wallets.map(({ path }) => ({ value: path }));
}

/** Values that were seen at a path, as texts. */
export function samplesOf(choices: Choices, events: string[], path: string): Option[] {
  if (path === "contact.tags") return choices.tags.map((value) => ({ value }));
  if (path === "contact.segments") return choices.segments.map((value) => ({ value }));
  const attribute = choices.attributes.find((each) => `contact.${each.name}` === path);
  const found = attribute?.samples ?? events.flatMap((name) => choices.paths[name] ?? []).find((each) => each.path === path)?.samples;
  return (found ?? []).map((sample) => ({ value: sample.replace(/^“(.*)”$/s, "$1"), detail: sample.startsWith("“") ? "text" : undefined }));
}
