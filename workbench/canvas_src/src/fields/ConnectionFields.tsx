// The values that a step gives to the fields of its connection.
import { useId } from "react";
import { isObject } from "../json";
import type { Choices, Json, Obj } from "../types";
import type { Option } from "./Combo";
import { JsonInput } from "./Inputs";
import { Labelled } from "./Labelled";
import { Template } from "./Template";

interface Props {
  value: Json | undefined;
  fields: Choices["connections"][number]["fields"]; // of the connection
  paths: Option[];
  disabled: boolean;
  onChange: (value: Obj) => void;
}

export function ConnectionFields({ value, fields, paths, disabled, onChange }: Props) {
  const id = useId();
  const values: Obj = isObject(value) ? value : {};
  // Values of fields that the connection does not have stay until they are emptied.
  const names = [...new Set([...fields.map(({ name }) => name), ...Object.keys(values)])];
  const change = (name: string, next: Json | undefined) => {
    const { [name]: _, ...others } = values;
    onChange(next === undefined || next === "" ? others : { ...values, [name]: next });
  };
  if (names.length === 0) return <span className="ewc-soft">The connection has no fields.</span>;
  return (
    <div className="ewc-filters">
      {names.map((name) => {
        const field = fields.find((own) => own.name === name);
        const label = field === undefined ? `${name} (not in the connection)` : field.required ? name : `${name} (optional)`;
        const own = values[name];
        return (
          <Labelled key={name} label={label} htmlFor={`${id}-${name}`} diagnostics={[]}>
            {own === undefined || typeof own === "string"
              ? <Template id={`${id}-${name}`} label={label} value={own ?? ""} paths={paths} long disabled={disabled} invalid={false} onChange={(next) => change(name, next)} />
              : <JsonInput label={label} value={own} orText={false} disabled={disabled} onChange={(next) => change(name, next)} />}
          </Labelled>
        );
      })}
    </div>
  );
}
