// The settings of the automation (`graph.settings`): re-entry, goal, quiet hours, time zone, frequency cap, holdout, locales.
import { useId } from "react";
import { Combo } from "../fields/Combo";
import { Labelled } from "../fields/Labelled";
import { Filters, pathsOf, samplesOf } from "../fields/Filters";
import { eventOptions } from "../fields/Inputs";
import { DurationInput } from "../fields/Duration";
import { ZoneName } from "../fields/Times";
import { isObject } from "../json";
import { localesOf, withField } from "../graph";
import type { Json, Obj } from "../types";
import { useCanvas, useCanvasState } from "../hooks";

const POLICIES: [string, string][] = [
  ["always", "every time"],
  ["once", "once"],
  ["once_per", "once every … days"],
  ["not_while_running", "after the last entry ended"],
];

export function SettingsForm() {
  const { store } = useCanvas();
  const { draft, diagnostics, choices, operators, readOnly } = useCanvasState(store);
  const id = useId();
  const settings = isObject(draft.extra.settings) ? draft.extra.settings : {};
  const ofSetting = (name: string) => diagnostics.filter((diagnostic) => diagnostic.field === `settings.${name}` || diagnostic.field.startsWith(`settings.${name}.`));
  const set = (name: string, value: Json | undefined) => {
    const current = store.current().draft.extra.settings;
    store.edit({ extra: { settings: withField(isObject(current) ? current : {}, name, value) } }, `settings/${name}`);
  };
  const objectOf = (name: string) => (isObject(settings[name]) ? settings[name] : undefined);
  const [reentry, goal, quiet, cap] = ["reentry", "goal", "quietHours", "frequencyCap"].map(objectOf);
  const { holdout, timezone, localeAttribute, defaultLocale } = settings;
  const hasLocales = localesOf(draft).length > 0 || localeAttribute !== undefined || defaultLocale !== undefined;
  const goalEvents = typeof goal?.event === "string" ? [goal.event] : [];
  const policy = String(reentry?.policy ?? "always");
  return (
    <details className="ewc-rules" open={[reentry, goal, quiet, cap, holdout, timezone, localeAttribute, defaultLocale].some(Boolean)}>
      <summary>Rules for the whole automation</summary>
      <Labelled label="A contact enters" htmlFor={`${id}-reentry`} diagnostics={ofSetting("reentry")}>
        <span className="ewc-row">
          <select id={`${id}-reentry`} value={policy} disabled={readOnly} onChange={(event) => set("reentry", reentryFor(event.target.value))}>
            {POLICIES.map(([value, words]) => <option key={value} value={value}>{words}</option>)}
          </select>
          {policy === "once_per" && <input type="number" min={1} max={3650} aria-label="Days" value={Number(reentry?.days ?? 7)} disabled={readOnly} onChange={(event) => set("reentry", { ...reentry, days: Math.round(Number(event.target.value)) })} />}
        </span>
      </Labelled>
      <OptionalSetting label="Goal" on={goal} set={(on) => set("goal", on ? { event: "", filters: [] } : undefined)} disabled={readOnly}>
        <Labelled label="Exit when the contact sends" diagnostics={ofSetting("goal")}>
          <Combo label="Goal" value={String(goal?.event ?? "")} options={eventOptions(choices)} placeholder="which event?" disabled={readOnly} onChange={(event) => set("goal", { ...goal, event })} />
          <Filters label="Goal, only when" value={goal?.filters} where={goal?.where} operators={operators} paths={pathsOf(choices, goalEvents, true)} samples={(path) => samplesOf(choices, goalEvents, path)} disabled={readOnly} onChange={(filters, where) => set("goal", withField({ ...goal, filters }, "where", where))} />
        </Labelled>
      </OptionalSetting>
      <OptionalSetting label="Quiet hours" on={quiet} set={(on) => set("quietHours", on ? { from: "22:00", to: "08:00" } : undefined)} disabled={readOnly}>
        <Labelled label="No in-app messages or emails" diagnostics={ofSetting("quietHours")} hint="In the contact's time zone, from an attribute with a value like Europe/Zurich.">
          <span className="ewc-row">
            {(["from", "to"] as const).map((name) => <input key={name} type="time" aria-label={name} value={String(quiet?.[name] ?? "")} disabled={readOnly} onChange={(event) => set("quietHours", { ...quiet, [name]: event.target.value })} />)}
          </span>
          <ZoneAttribute value={quiet?.timezoneAttribute} onChange={(name) => set("quietHours", { ...quiet, timezoneAttribute: name })} />
        </Labelled>
      </OptionalSetting>
      <OptionalSetting label="Time zone" on={settings.timezone ?? undefined} set={(on) => set("timezone", on ? Intl.DateTimeFormat().resolvedOptions().timeZone : undefined)} disabled={readOnly}>
        <Labelled label="Of contacts without one" diagnostics={ofSetting("timezone")} hint="For quiet hours, a cap by calendar day, and steps that wait until a time. Without this setting it is that of the organization, or UTC.">
          <ZoneName label="Time zone of contacts without one" value={settings.timezone} disabled={readOnly} onChange={(zone) => set("timezone", zone)} />
        </Labelled>
      </OptionalSetting>
      <OptionalSetting label="Frequency cap" on={cap} set={(on) => set("frequencyCap", on ? { messages: 3, seconds: 86_400 } : undefined)} disabled={readOnly}>
        <Labelled label="Maximum messages per" htmlFor={`${id}-cap`} diagnostics={ofSetting("frequencyCap")} hint="Counts messages from all automations. Messages over the limit are skipped.">
          <input type="number" min={1} max={1000} aria-label="Maximum messages" value={Number(cap?.messages ?? 3)} disabled={readOnly} onChange={(event) => set("frequencyCap", { ...cap, messages: Math.round(Number(event.target.value)) })} />
          {cap?.per === undefined && <DurationInput id={`${id}-cap`} label="the cap" value={cap?.seconds} disabled={readOnly} onChange={(seconds) => set("frequencyCap", { ...cap, seconds })} />}
          <label className="ewc-switch"><input type="checkbox" checked={cap?.per !== undefined} disabled={readOnly} onChange={(event) => set("frequencyCap", { messages: cap?.messages ?? 3, ...(event.target.checked ? { per: "day" } : { seconds: 86_400 }) })} /> Calendar day of the contact</label>
          {cap?.per !== undefined && <ZoneAttribute value={cap.timezoneAttribute} onChange={(name) => set("frequencyCap", { ...cap, timezoneAttribute: name })} />}
        </Labelled>
      </OptionalSetting>
      <OptionalSetting label="Holdout" on={holdout ?? undefined} set={(on) => set("holdout", on ? 10 : undefined)} disabled={readOnly}>
        <Labelled label="Percentage of contacts that get nothing" htmlFor={`${id}-holdout`} diagnostics={ofSetting("holdout")} hint="Always the same contacts. The goal is measured for them, too; the difference is the effect of the automation.">
          <input id={`${id}-holdout`} type="number" min={1} max={50} aria-label="Percent held out" value={Number(holdout ?? 10)} disabled={readOnly} onChange={(event) => set("holdout", Math.round(Number(event.target.value)))} />
        </Labelled>
      </OptionalSetting>
      {hasLocales && (
        <>
          <Labelled label="Attribute with the contact’s locale" diagnostics={ofSetting("localeAttribute")} hint="With a value like de or de-AT. Messages with texts in other locales are sent in it.">
            <Combo label="Attribute with the locale" value={String(localeAttribute ?? "locale")} options={choices.attributes.map((attribute) => ({ value: attribute.name }))} disabled={readOnly} onChange={(name) => set("localeAttribute", name === "locale" ? undefined : name)} />
          </Labelled>
          <Labelled label="Locale of the default texts" htmlFor={`${id}-locale`} diagnostics={ofSetting("defaultLocale")}>
            <input id={`${id}-locale`} type="text" value={String(defaultLocale ?? "")} placeholder="en" disabled={readOnly} onChange={(event) => set("defaultLocale", event.target.value.trim() || undefined)} />
          </Labelled>
        </>
      )}
    </details>
  );
}

function ZoneAttribute({ value, onChange }: { value: Json | undefined; onChange: (name: string) => void }) {
  const { store } = useCanvas();
  const { choices, readOnly } = useCanvasState(store);
  return <Combo label="Attribute with the time zone" value={String(value ?? "timezone")} options={choices.attributes.map((attribute) => ({ value: attribute.name }))} disabled={readOnly} onChange={onChange} />;
}

function reentryFor(policy: string): Obj | undefined {
  if (policy === "always") return undefined;
  return policy === "once_per" ? { policy, days: 7 } : { policy };
}

function OptionalSetting({ label, on, set, disabled, children }: { label: string; on: Json | undefined; set: (on: boolean) => void; disabled: boolean; children: React.ReactNode }) {
  return (
    <>
      <label className="ewc-switch"><input type="checkbox" checked={on !== undefined} disabled={disabled} onChange={(event) => set(event.target.checked)} /> {label}</label>
      {on !== undefined && children}
    </>
  );
}
