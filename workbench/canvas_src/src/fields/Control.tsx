// One field of a form: its control, its diagnostics, and a hint.
import { useId, useState, type ReactNode } from "react";
import { isObject } from "../json";
import type { Choices, Field, Json, Obj, Operator, Diagnostic } from "../types";
import { Branches } from "./Branches";
import { Combo, type Option } from "./Combo";
import { Filters, pathsOf, samplesOf, walletsOf } from "./Filters";
import { Attributes, JsonInput, IntegerInput, Word, eventOptions } from "./Inputs";
import { DurationInput } from "./Duration";
import { DatePath, Shift, Weekdays, ZoneName } from "./Times";
import { Labelled } from "./Labelled";
import { Locales } from "./Locales";
import { ConnectionFields } from "./ConnectionFields";
import { Template } from "./Template";

interface Props {
  field: Field;
  value: Json | undefined;
  connection: Json | undefined; // beside its fields
  own: Json | undefined; // the fields of the connection
  where: Json | undefined; // beside filters
  texts: Field[]; // the fields that a locale has, too
  locales: string[]; // of all messages
  events: string[]; // filters and templates can use the values of these
  withContact: boolean;
  choices: Choices;
  operators: Operator[];
  diagnostics: Diagnostic[];
  disabled: boolean;
  onChange: (value: Json | undefined, where?: Json) => void;
  onBranches: (branches: Obj[], renamed?: { from: string; to: string }) => void;
}

export function Control(props: Props) {
  const { field, value, choices, disabled, onChange } = props;
  const id = useId();
  const invalid = props.diagnostics.some((diagnostic) => diagnostic.level === "error");
  const paths = pathsOf(choices, props.events, props.withContact);
  const snippets = choices.snippets.map((name): Option => ({ value: `{% include "${name}" %}`, detail: "snippet" }));
  const text = typeof value === "string" ? value : "";
  const ownFields = choices.connections.find(({ name }) => name === props.connection)?.fields;
  const ownNames = ownFields?.map(({ name }) => name) ?? Object.keys(isObject(props.own) ? props.own : {});
  const ownTexts = ownNames.map((name): Field => ({ name, label: name, control: "text", hint: "", optional: true }));
  const [hadValue] = useState(value !== undefined); // when the form opened: it must not fold while a value is deleted
  if (field.control === "body" || field.control === "object" || field.control === "locales") {
    const own = field.control === "locales" ? props.diagnostics.filter((diagnostic) => diagnostic.field === field.name) : props.diagnostics;
    return (
      <details className="ewc-field" open={hadValue || invalid || (field.control === "locales" && value !== undefined) || undefined}>
        <summary>{field.label}</summary>
        <Labelled hint={field.hint} diagnostics={own}>{control()}</Labelled>
      </details>
    );
  }
  const labelled = { line: id, text: id, url: id, duration: id, number: id, checkbox: id, switch: id, missing: id, missed: id, clock: id, date: id, shift: id, topic: id }[field.control]; // a label names a single input
  return (
    <Labelled label={field.label} hint={field.hint} htmlFor={labelled} diagnostics={props.diagnostics}>
      {control()}
    </Labelled>
  );

  function inPayload() {
    return props.events.flatMap((name) => choices.paths[name] ?? []);
  }

  function dates(): Option[] {
    return [
      ...choices.attributes.map(({ name }) => ({ value: `contact.${name}`, detail: "attribute" })),
      ...inPayload().map(({ path, types }) => ({ value: `payload.${path}`, detail: types.join(", ") })),
    ];
  }

  function control(): ReactNode {
    switch (field.control) {
      case "line":
      case "url":
      case "text":
        return <Template id={id} label={field.label} value={text} paths={field.control === "url" ? paths : [...paths, ...snippets]} long={field.control === "text"} disabled={disabled} invalid={invalid} onChange={onChange} />;
      case "body":
        return <JsonInput label={field.label} value={value} orText disabled={disabled} onChange={onChange} />;
      case "locales":
        return <Locales name={field.name} value={value} texts={props.connection === undefined ? props.texts : ownTexts} partial={props.connection !== undefined} known={props.locales} paths={[...paths, ...snippets]} diagnostics={props.diagnostics} disabled={disabled} onChange={onChange} />;
      case "tag":
        return <Combo label={field.label} value={text} options={choices.tags.map((tag) => ({ value: tag }))} disabled={disabled} invalid={invalid} onChange={onChange} />;
      case "event":
        return <Combo label={field.label} value={text} options={eventOptions(choices)} placeholder="which event?" disabled={disabled} invalid={invalid} onChange={onChange} />;
      case "duration":
        return <DurationInput id={id} label={field.label} value={value} disabled={disabled} onChange={onChange} onClear={field.optional ? () => onChange(undefined) : undefined} />;
      case "word":
        return <Word label={field.label} value={text} disabled={disabled} invalid={invalid} onChange={onChange} />;
      case "wallet":
        return <Combo label={field.label} value={text} options={walletsOf(choices, props.events)} placeholder="which parameter?" disabled={disabled} invalid={invalid} onChange={onChange} />;
      case "segment":
        return <Combo label={field.label} value={text} options={choices.segments.map((segment) => ({ value: segment }))} placeholder="which segment?" disabled={disabled} invalid={invalid} onChange={(segment) => onChange(segment || undefined)} />;
      case "zone_name":
        return <ZoneName label={field.label} value={value} disabled={disabled} invalid={invalid} placeholder="UTC" onChange={(zone) => onChange(zone || undefined)} />;
      case "missed":
        return (
          <select id={id} value={value === "skip" ? "skip" : "once"} disabled={disabled} aria-invalid={invalid || undefined} onChange={(event) => onChange(event.target.value)}>
            <option value="once">Make it once, late</option>
            <option value="skip">Skip it</option>
          </select>
        );
      case "number":
        return <IntegerInput id={id} value={value} disabled={disabled} invalid={invalid} onChange={onChange} />;
      case "checkbox":
        return <input id={id} type="checkbox" checked={value === true} disabled={disabled} onChange={(event) => onChange(event.target.checked)} />;
      case "switch":
        // Off without the field: other builders write none.
        return <input id={id} type="checkbox" checked={value === true} disabled={disabled} aria-invalid={invalid || undefined} onChange={(event) => onChange(event.target.checked || undefined)} />;
      case "missing":
        // A message without the field fails: other builders write none.
        return (
          <select id={id} value={value === "skip" ? "skip" : "fail"} disabled={disabled} aria-invalid={invalid || undefined}
            onChange={(event) => onChange(event.target.value === "skip" ? "skip" : undefined)}>
            <option value="skip">Skip this message</option>
            <option value="fail">Fail the entry</option>
          </select>
        );
      case "clock":
        return <input id={id} type="time" value={text} disabled={disabled} aria-invalid={invalid || undefined} onChange={(event) => onChange(event.target.value || undefined)} />;
      case "weekdays":
        return <Weekdays label={field.label} value={value} disabled={disabled} onChange={onChange} />;
      case "date":
        return <DatePath id={id} label={field.label} value={value} options={dates()} disabled={disabled} invalid={invalid} onChange={onChange} />;
      case "shift":
        return <Shift id={id} label={field.label} value={value} disabled={disabled} onChange={onChange} />;
      case "path":
        return <Combo label={field.label} value={text} options={inPayload().map(({ path, types }) => ({ value: path, detail: types.join(", ") }))} placeholder="any value" disabled={disabled} invalid={invalid} onChange={(path) => onChange(path || undefined)} />;
      case "topic": {
        const known = choices.topics.some((topic) => topic.name === text) || !text;
        return (
          <select id={id} value={text} disabled={disabled} aria-invalid={invalid || undefined} onChange={(event) => onChange(event.target.value || undefined)}>
            <option value="">none</option>
            {choices.topics.map((topic) => <option key={topic.name} value={topic.name}>{topic.name === topic.label ? topic.name : `${topic.name} (${topic.label})`}</option>)}
            {!known && <option value={text}>{text}</option>}
          </select>
        );
      }
      case "zone":
        return <Combo label={field.label} value={text} options={choices.attributes.map((attribute) => ({ value: attribute.name }))} placeholder="timezone" disabled={disabled} invalid={invalid} onChange={(name) => onChange(name || undefined)} />;
      case "filters":
        return <Filters label={field.label} value={value} where={props.where} operators={props.operators} paths={paths} samples={(path) => samplesOf(choices, props.events, path)} disabled={disabled} onChange={onChange} />;
      case "connection":
        return <Combo label={field.label} value={text} options={choices.connections.map(({ name, fields }) => ({ value: name, detail: fields.map((own) => own.name).join(", ") }))} placeholder="which connection?" disabled={disabled} invalid={invalid} onChange={onChange} />;
      case "fields":
        if (ownFields === undefined) return <Attributes value={value} names={[]} noun="field" disabled={disabled} onChange={onChange} />;
        return <ConnectionFields value={value} fields={ownFields} paths={[...paths, ...snippets]} disabled={disabled} onChange={onChange} />;
      case "branches":
        return <Branches value={value} disabled={disabled} onChange={props.onBranches} />;
      case "attributes":
        return <Attributes value={value} names={choices.attributes.map((attribute): Option => ({ value: attribute.name }))} noun="attribute" disabled={disabled} onChange={onChange} />;
      default:
        return <JsonInput label={field.label} value={value} orText={false} disabled={disabled} onChange={onChange} />;
    }
  }
}
