// The texts of a message in other locales: fields like those of the default texts for each.
import { useState } from "react";
import { isObject } from "../json";
import type { Diagnostic, Field, Json, Obj } from "../types";
import { Combo, type Option } from "./Combo";
import { Labelled } from "./Labelled";
import { Template } from "./Template";

interface Props {
  name: string; // of the field
  value: Json | undefined;
  texts: Field[];
  partial: boolean; // a locale has only those that differ
  known: string[]; // locales of other messages
  paths: Option[];
  diagnostics: Diagnostic[];
  disabled: boolean;
  onChange: (value: Json | undefined) => void;
}

export function Locales({ name, value, texts, partial, known, paths, diagnostics, disabled, onChange }: Props) {
  const locales = isObject(value) ? value : {};
  const [added, setAdded] = useState("");
  const at = (field: string) => diagnostics.filter((diagnostic) => diagnostic.field === field);
  const add = (locale: string) => {
    setAdded("");
    const blank = partial ? {} : Object.fromEntries(texts.map((text) => [text.name, ""]));
    if (locale.trim() && !(locale.trim() in locales)) onChange({ ...locales, [locale.trim()]: blank });
  };
  const withText = (own: Obj, text: string, typed: string) => {
    const { [text]: _, ...others } = own;
    return partial && !typed ? others : { ...own, [text]: typed };
  };
  const remove = (locale: string) => {
    const { [locale]: _, ...rest } = locales;
    onChange(Object.keys(rest).length ? rest : undefined);
  };
  return (
    <div className="ewc-filters">
      {Object.entries(locales).map(([locale, written]) => {
        const own: Obj = isObject(written) ? written : {};
        return (
          <div className="ewc-filter" role="group" aria-label={`Texts in ${locale}`} key={locale}>
            <span className="ewc-row"><b>{locale}</b>
              <button type="button" className="ewc-x" aria-label={`Remove ${locale}`} disabled={disabled} onClick={() => remove(locale)}>×</button></span>
            <Labelled diagnostics={at(`${name}.${locale}`)}>
              {texts.map((text) => {
                const [label, wrong] = [`${text.label} in ${locale}`, at(`${name}.${locale}.${text.name}`)];
                const id = `${name}-${locale}-${text.name}`;
                return (
                  <Labelled key={text.name} label={label} htmlFor={id} diagnostics={wrong}>
                    <Template id={id} label={label} value={typeof own[text.name] === "string" ? String(own[text.name]) : ""} paths={paths} long={text.control === "text"} disabled={disabled} invalid={wrong.length > 0}
                      onChange={(typed) => onChange({ ...locales, [locale]: withText(own, text.name, typed) })} />
                  </Labelled>
                );
              })}
            </Labelled>
          </div>
        );
      })}
      {!disabled && <Combo label="Locale to add" value={added} options={known.filter((locale) => !(locale in locales)).map((locale) => ({ value: locale }))} placeholder="de, or de-AT" onChange={setAdded} onPick={add} />}
    </div>
  );
}
