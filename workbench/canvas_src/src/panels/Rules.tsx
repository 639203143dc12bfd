// What holds for the automation as a whole: who enters again, the goal, quiet hours, the cap, the holdout (`graph.settings`).
import { useId } from "react";
import { Combo } from "../fields/Combo";
import { Labelled } from "../fields/Control";
import { Filters, pathsOf, samplesOf } from "../fields/Filters";
import { eventOptions } from "../fields/Others";
import { Span } from "../fields/Span";
import { isObject } from "../exact";
import { put } from "../graph";
import type { Json, Obj } from "../types";
import { useStage, useView } from "../use";

const POLICIES: [string, string][] = [
  ["always", "every time"],
  ["once", "once"],
  ["once_per", "once every … days"],
  ["not_while_running", "after the last entry ended"],
];

export function Rules() {
  const { desk } = useStage();
  const { sheet, remarks, choices, operators, readOnly } = useView(desk);
  const id = useId();
  const settings = isObject(sheet.beside.settings) ? sheet.beside.settings : {};
  const of = (name: string) => remarks.filter((each) => each.field === `settings.${name}` || each.field.startsWith(`settings.${name}.`));
  const set = (name: string, value: Obj | number | undefined) => {
    const now = desk.current().sheet.beside.settings;
    desk.edit({ beside: { settings: put(isObject(now) ? now : {}, name, value) } }, `settings/${name}`);
  };
  const object = (name: string) => (isObject(settings[name]) ? settings[name] : undefined);
  const [reentry, goal, quiet, cap] = ["reentry", "goal", "quietHours", "frequencyCap"].map(object);
  const holdout = settings.holdout;
  const waited = typeof goal?.event === "string" ? [goal.event] : [];
  const policy = String(reentry?.policy ?? "always");
  return (
    <details className="ewc-rules" open={[reentry, goal, quiet, cap, holdout].some(Boolean)}>
      <summary>Rules for the whole automation</summary>
      <Labelled label="A contact enters" htmlFor={`${id}-reentry`} remarks={of("reentry")}>
        <span className="ewc-row">
          <select id={`${id}-reentry`} value={policy} disabled={readOnly} onChange={(event) => set("reentry", entering(event.target.value))}>
            {POLICIES.map(([value, words]) => <option key={value} value={value}>{words}</option>)}
          </select>
          {policy === "once_per" && <input type="number" min={1} max={3650} aria-label="Days" value={Number(reentry?.days ?? 7)} disabled={readOnly} onChange={(event) => set("reentry", { ...reentry, days: Math.round(Number(event.target.value)) })} />}
        </span>
      </Labelled>
      <Switched label="Goal" on={goal} set={(on) => set("goal", on ? { event: "", filters: [] } : undefined)} disabled={readOnly}>
        <Labelled label="Exit when the contact sends" remarks={of("goal")}>
          <Combo label="Goal" value={String(goal?.event ?? "")} options={eventOptions(choices)} placeholder="which event?" disabled={readOnly} onChange={(event) => set("goal", { ...goal, event })} />
          <Filters label="Goal, only when" value={goal?.filters} operators={operators} paths={pathsOf(choices, waited, true)} samples={(path) => samplesOf(choices, waited, path)} disabled={readOnly} onChange={(filters) => set("goal", { ...goal, filters })} />
        </Labelled>
      </Switched>
      <Switched label="Quiet hours" on={quiet} set={(on) => set("quietHours", on ? { from: "22:00", to: "08:00" } : undefined)} disabled={readOnly}>
        <Labelled label="No in-app messages or emails" remarks={of("quietHours")} hint="In the contact's time zone, from an attribute with a value like Europe/Zurich; UTC if it is not set.">
          <span className="ewc-row">
            {(["from", "to"] as const).map((name) => <input key={name} type="time" aria-label={name} value={String(quiet?.[name] ?? "")} disabled={readOnly} onChange={(event) => set("quietHours", { ...quiet, [name]: event.target.value })} />)}
          </span>
          <Combo label="Attribute with the time zone" value={String(quiet?.timezoneAttribute ?? "timezone")} options={choices.attributes.map((each) => ({ value: each.name }))} disabled={readOnly} onChange={(name) => set("quietHours", { ...quiet, timezoneAttribute: name })} />
        </Labelled>
      </Switched>
      <Switched label="Frequency cap" on={cap} set={(on) => set("frequencyCap", on ? { messages: 3, seconds: 86_400 } : undefined)} disabled={readOnly}>
        <Labelled label="Maximum messages per" htmlFor={`${id}-cap`} remarks={of("frequencyCap")} hint="Counts messages from all automations. Messages over the limit are skipped.">
          <input type="number" min={1} max={1000} aria-label="Messages" value={Number(cap?.messages ?? 3)} disabled={readOnly} onChange={(event) => set("frequencyCap", { ...cap, messages: Math.round(Number(event.target.value)) })} />
          <Span id={`${id}-cap`} label="the cap" value={cap?.seconds} disabled={readOnly} onChange={(seconds) => set("frequencyCap", { ...cap, seconds })} />
        </Labelled>
      </Switched>
      <Switched label="Holdout" on={holdout ?? undefined} set={(on) => set("holdout", on ? 10 : undefined)} disabled={readOnly}>
        <Labelled label="Percentage of contacts that get nothing" htmlFor={`${id}-holdout`} remarks={of("holdout")} hint="Always the same contacts. The goal is measured for them, too; the difference is the effect of the automation.">
          <input id={`${id}-holdout`} type="number" min={1} max={50} aria-label="Percent held out" value={Number(holdout ?? 10)} disabled={readOnly} onChange={(event) => set("holdout", Math.round(Number(event.target.value)))} />
        </Labelled>
      </Switched>
    </details>
  );
}

function entering(policy: string): Obj | undefined {
  if (policy === "always") return undefined;
  return policy === "once_per" ? { policy, days: 7 } : { policy };
}

function Switched({ label, on, set, disabled, children }: { label: string; on: Json | undefined; set: (on: boolean) => void; disabled: boolean; children: React.ReactNode }) {
  return (
    <>
      <label className="ewc-switch"><input type="checkbox" checked={on !== undefined} disabled={disabled} onChange={(event) => set(event.target.checked)} /> {label}</label>
      {on !== undefined && children}
    </>
  );
}
