// Filters and comparisons, one per line: a path, an operator and a value. An expression that lines cannot show is a text.
import { useEffect, useRef, useState } from "react";
import type { Choices, Json, Obj, Operator } from "../types";
import { isNumber, isObject, parseNumber } from "../json";
import { Combo, type Option } from "./Combo";
import { Value, Values } from "./Value";
import { COMPARISONS, GREATER, fromRows, isComparison, rowsOf } from "./where";

const TEXT = "text"; // the detail of a sample value that is a text

interface Props {
  label: string;
  value: Json | undefined;
  where: Json | undefined;
  operators: Operator[];
  paths: Option[];
  samples: (path: string) => Option[];
  onChange: (filters: Obj[], where: Json | undefined) => void;
  disabled?: boolean;
}

export function Filters({ label, value, where, operators: filterOperators, paths, samples, onChange, disabled }: Props) {
  const [newPath, setNewPath] = useState("");
  const [asText, setAsText] = useState(false);
  const [moved, setMoved] = useState(-1); // the line whose operator is focused: a comparison moves below the filters
  const [added, setAdded] = useState(-1); // the line whose value is focused
  const lines = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (moved >= 0) lines.current?.querySelectorAll<HTMLElement>("select.ewc-how")[moved]?.focus();
    setMoved(-1);
  }, [moved]);
  useEffect(() => {
    const input = lines.current?.querySelectorAll(".ewc-filter")[added]?.querySelector<HTMLInputElement>(".ewc-value input");
    input?.focus();
    input?.select();
    setAdded(-1);
  }, [added]);
  const expression = typeof where === "string" ? where : "";
  const comparisons = asText ? null : rowsOf(expression);
  const filters = [...(Array.isArray(value) ? value.filter(isObject) : []), ...(comparisons ?? [])];
  const operators = comparisons ? [...filterOperators, ...COMPARISONS] : filterOperators;
  const write = (rows: Obj[]) => {
    const written = fromRows(rows);
    onChange(written.filters, comparisons ? written.where : where);
  };
  const setOperator = (index: number, filter: Obj) => {
    const rows = filters.with(index, filter);
    write(rows);
    const [before, after] = [fromRows(filters).filters.length, fromRows(rows).filters.length];
    if (before !== after) setMoved(after < before ? filters.length - 1 : after - 1); // comparisons follow the filters
  };
  const operandOf = (name: Json | undefined) => operators.find((operator) => operator.name === name)?.operand ?? "value";
  const change = (index: number, filter: Obj) => write(filters.with(index, filter));
  const add = (path: string) => {
    setNewPath("");
    if (!path.trim()) return;
    const filter = newFilter(path.trim(), samples(path), comparisons !== null);
    write([...filters, filter]);
    setAdded(filters.length);
  };
  return (
    <div className="ewc-filters" role="group" aria-label={label} ref={lines}>
      {filters.map((filter, index) => (
        <div className="ewc-filter" key={index}>
          <span className="ewc-row">
            <Combo label={`${label}: what, line ${index + 1}`} value={String(filter.path ?? "")} options={paths} placeholder="what?" disabled={disabled}
              onChange={(path) => change(index, { ...filter, path })}
              onPick={(path) => change(index, withSampleValue({ ...filter, path }, samples(path)))} />
            <button type="button" className="ewc-x" aria-label={`Remove line ${index + 1}`} disabled={disabled} onClick={() => write(filters.toSpliced(index, 1))}>×</button>
          </span>
          <span className="ewc-row">
            <select className="ewc-how" aria-label={`${label}: how, line ${index + 1}`} value={String(filter.operator)} disabled={disabled} onChange={(event) => setOperator(index, withOperator(filter, event.target.value, operandOf(event.target.value), samples(String(filter.path))))}>
              {operators.map(({ name, label }) => <option key={name} value={name}>{label}</option>)}
              {!operators.some(({ name }) => name === filter.operator) && <option value={String(filter.operator)}>{String(filter.operator)} (unknown, ignored)</option>}
            </select>
            {operandOf(filter.operator) === "list"
              ? <Values label="value" value={filter.value} options={samples(String(filter.path))} disabled={disabled} onChange={(next) => change(index, { ...filter, value: next })} />
              : operandOf(filter.operator) === "value" && <Value label="value" value={filter.value} options={samples(String(filter.path))} disabled={disabled} onChange={(next) => change(index, { ...filter, value: next })} />}
          </span>
        </div>
      ))}
      {!disabled && (
        <Combo label={`${label}: add`} value={newPath} options={paths} placeholder={filters.length ? "and …" : "which value?"} onChange={setNewPath}
          onPick={add} />
      )}
      {comparisons === null
        ? <textarea rows={3} aria-label={`${label}: expression`} placeholder={'amountUsd > 500 and asset != "DAI"'} value={expression} disabled={disabled} autoFocus={asText} onFocus={() => setAsText(true)}
            onChange={(event) => onChange(filters, event.target.value === "" ? undefined : event.target.value)} />
        : !disabled && <button type="button" className="ewc-more" onClick={() => setAsText(true)}>write an expression</button>}
    </div>
  );
}

/** A new line: “is yes” for a boolean, “is greater than” for a number, “is set” for everything else. */
function newFilter(path: string, samples: Option[], compares: boolean): Obj {
  const values = samples.map((sample) => (sample.detail === TEXT ? sample.value : readSample(sample.value)));
  if (values.length && values.every((value) => typeof value === "boolean")) return { path, operator: "eq", value: true };
  if (compares && values.length && values.every(isNumber)) return { path, operator: GREATER, value: 0 };
  return { path, operator: "exists" };
}

/** The filter with another operator; the value is kept where it fits. */
function withOperator(filter: Obj, operator: string, operand: Operator["operand"], samples: Option[]): Obj {
  const { value, ...rest } = filter;
  if (operand === "nothing") return { ...rest, operator };
  const single = Array.isArray(value) ? (value[0] ?? "") : (value ?? (isComparison(operator) ? (samples[0]?.detail === TEXT ? samples[0].value : 0) : ""));
  return { ...rest, operator, value: operand === "list" ? (Array.isArray(value) ? value : single === "" ? [] : [single]) : single };
}

/** The filter with a value of the type that was seen at its path: the number 100 and the text “100” are different. */
function withSampleValue(filter: Obj, samples: Option[]): Obj {
  const first = samples[0]?.value;
  if (first === undefined || filter.value !== "" || isNumber(filter.value)) return filter;
  return { ...filter, value: readSample(first) };
}

function readSample(text: string): Json {
  if (text === "true" || text === "false") return text === "true";
  return parseNumber(text) ?? text;
}

/** The paths that filters can use: of these events and, `withContact`, of the contact. */
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

/** The parameters of these events that contain an address. */
export function walletsOf(choices: Choices, events: string[]): Option[] {
  const wallets = events.flatMap((name) => choices.paths[name] ?? []).filter((path) => path.types.includes("address"));
  return wallets.map(({ path }) => ({ value: path }));
}

/** Sample values of a path, as texts. */
export function samplesOf(choices: Choices, events: string[], path: string): Option[] {
  if (path === "contact.tags") return choices.tags.map((value) => ({ value }));
  if (path === "contact.segments") return choices.segments.map((value) => ({ value }));
  const attribute = choices.attributes.find((attribute) => `contact.${attribute.name}` === path);
  const samples = attribute?.samples ?? events.flatMap((name) => choices.paths[name] ?? []).find((seen) => seen.path === path)?.samples;
  return (samples ?? []).map((sample) => ({ value: sample.replace(/^“(.*)”$/s, "$1"), detail: sample.startsWith("“") ? TEXT : undefined }));
}
