// One field of a form: the control its kind asks for, what is wrong with it, and a word of help.
import { useId, useState, type ReactNode } from "react";
import type { Choices, Field, Json, Obj, Remark } from "../types";
import { Branches } from "./Branches";
import { Combo, type Option } from "./Combo";
import { Filters, pathsOf, samplesOf, walletsOf } from "./Filters";
import { Attributes, JsonField, Whole, eventOptions } from "./Others";
import { Span } from "./Span";
import { Template } from "./Template";

interface Props {
  field: Field;
  value: Json | undefined;
  events: string[]; // whose values filters and texts can look at
  withContact: boolean;
  choices: Choices;
  operators: string[];
  remarks: Remark[];
  disabled: boolean;
  onChange: (value: Json | undefined) => void;
  onBranches: (branches: Obj[], renamed?: { from: string; to: string }) => void;
}

export function Control(props: Props) {
  const { field, value, choices, disabled, onChange } = props;
  const id = useId();
  const invalid = props.remarks.some((each) => each.level === "error");
  const paths = pathsOf(choices, props.events, props.withContact);
  const text = typeof value === "string" ? value : "";
  const [begun] = useState(value !== undefined);
  if (field.control === "json") {
    return (
      <details className="ewc-field" open={begun || invalid || undefined}>
        <summary>{field.label}</summary>
        <Labelled hint={field.hint} remarks={props.remarks}>{control()}</Labelled>
      </details>
    );
  }
  const alone = { line: id, text: id, span: id, number: id, no: id }[field.control]; // controls that a label can name
  return (
    <Labelled label={field.label} hint={field.hint} htmlFor={alone} remarks={props.remarks}>
      {control()}
    </Labelled>
  );

  function control(): ReactNode {
    switch (field.control) {
      case "line":
      case "text":
        return <Template id={id} label={field.label} value={text} paths={paths} long={field.control === "text"} disabled={disabled} invalid={invalid} onChange={onChange} />;
      case "json":
        return <JsonField label={field.label} value={value} orText={field.name === "body"} disabled={disabled} onChange={onChange} />;
      case "tag":
        return <Combo label={field.label} value={text} options={choices.tags.map((each) => ({ value: each }))} disabled={disabled} invalid={invalid} onChange={onChange} />;
      case "event":
        return <Combo label={field.label} value={text} options={eventOptions(choices)} placeholder="which event?" disabled={disabled} invalid={invalid} onChange={onChange} />;
      case "span":
        return <Span id={id} label={field.label} value={value} disabled={disabled} onChange={onChange} />;
      case "word":
        return <Combo label={field.label} value={text} options={[]} disabled={disabled} invalid={invalid} onChange={(typed) => onChange(typed.trim() === typed ? typed : typed.trim())} />;
      case "wallet":
        return <Combo label={field.label} value={text} options={walletsOf(choices, props.events)} placeholder="which parameter?" disabled={disabled} invalid={invalid} onChange={onChange} />;
      case "number":
        return <Whole id={id} value={value} disabled={disabled} invalid={invalid} onChange={onChange} />;
      case "no":
        return <input id={id} type="checkbox" checked={value === true} disabled={disabled} onChange={(event) => onChange(event.target.checked)} />;
      case "filters":
        return <Filters label={field.label} value={value} operators={props.operators} paths={paths} samples={(path) => samplesOf(choices, props.events, path)} disabled={disabled} onChange={onChange} />;
      case "branches":
        return <Branches value={value} disabled={disabled} onChange={props.onBranches} />;
      case "attributes":
        return <Attributes value={value} names={choices.attributes.map((each): Option => ({ value: each.name }))} disabled={disabled} onChange={onChange} />;
      default:
        return <JsonField label={field.label} value={value} orText={false} disabled={disabled} onChange={onChange} />;
    }
  }
}

export function Labelled({ label, hint, htmlFor, remarks = [], children }: { label?: string; hint?: string; htmlFor?: string; remarks?: Remark[]; children: ReactNode }) {
  return (
    <div className="ewc-field">
      {htmlFor ? <label htmlFor={htmlFor}>{label}</label> : label && <span className="ewc-caption">{label}</span>}
      {children}
      {remarks.map((each) => <span key={each.message} className={each.level === "error" ? "ewc-wrong" : "ewc-doubtful"}>{each.message}</span>)}
      {hint && <small className="ewc-soft">{hint}</small>}
    </div>
  );
}
