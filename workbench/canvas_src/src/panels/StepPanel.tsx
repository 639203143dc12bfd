// The panel of one step: its form, its problems, and a preview with a sample event.
import { useEffect, useRef } from "react";
import { Control, Labelled } from "../fields/Control";
import { Events } from "../fields/Others";
import { eventsOf, isTrigger, put, remove, setBranches, setEvents, setField, triggerKind } from "../graph";
import { Icon } from "../Icon";
import type { Count, Field, Json, Obj, Remark, Step } from "../types";
import { useStage, useView } from "../use";
import { PreviewBox } from "./Preview";
import { Rules } from "./Rules";

export function StepPanel({ id, step, focus }: { id: string; step: Step; focus: boolean }) {
  const { desk, select } = useStage();
  const { sheet, kinds, cards, remarks, counts, readOnly } = useView(desk);
  const trigger = isTrigger(step);
  const kind = kinds.find((each) => each.kind === (trigger ? triggerKind(sheet) : step.type));
  const own = remarks.filter((each) => each.key === id);
  const fields = kind?.fields ?? [];
  const of = (field: Field) => own.filter((each) => each.field === field.name || each.field.startsWith(`${field.name}[`) || each.field.startsWith(`${field.name}.`));
  const rest = own.filter((each) => !fields.some((field) => of(field).includes(each)));
  const form = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (focus) form.current?.querySelector<HTMLElement>("input, textarea, select")?.focus();
  }, [id, focus]);
  return (
    <div className="ewc-form" ref={form}>
      <h3>
        <span className="ewc-swatch" style={{ background: cards[id]?.color ?? kind?.color }}><Icon name={kind?.icon ?? "alert"} size={15} /></span>
        {kind?.label ?? step.type}
        {!readOnly && <button type="button" className="ewc-quiet" onClick={() => { select([]); desk.edit(remove(sheet, [id])); }}>Remove</button>}
      </h3>
      <p className="ewc-soft">{kind ? kind.about : "This kind of step is unknown; it is kept unchanged."} <code>{step.id}</code></p>
      <Remarks remarks={rest} />
      {fields.map((field) => <StepField key={field.name} id={id} step={step} field={field} remarks={of(field)} />)}
      {counts.nodes?.[id] && <Outcomes count={counts.nodes[id]} />}
      {trigger && <Rules />}
      <PreviewBox id={id} step={step} />
    </div>
  );
}

function StepField({ id, step, field, remarks }: { id: string; step: Step; field: Field; remarks: Remark[] }) {
  const { desk } = useStage();
  const { sheet, choices, operators, readOnly } = useView(desk);
  const trigger = isTrigger(step);
  const data: Obj = trigger ? sheet.trigger : (step.data ?? {});
  const starting = eventsOf(sheet);
  if (field.control === "events") {
    return (
      <Labelled label={field.label} hint={field.hint} remarks={remarks}>
        <Events names={starting} choices={choices} disabled={readOnly} onChange={(names) => desk.edit(setEvents(desk.current().sheet, names))} />
      </Labelled>
    );
  }
  const waited = step.type === "wait_for_event" && typeof data.event === "string" ? [data.event] : null;
  const change = (value: Json | undefined) => {
    const now = desk.current().sheet;
    const patch = trigger ? { trigger: put(now.trigger, field.name, value) } : setField(now, id, field.name, value);
    desk.edit(patch, `${id}/${field.name}`);
  };
  return (
    <Control field={field} value={data[field.name]} events={waited ?? starting} withContact={!trigger} choices={choices} operators={operators} remarks={remarks} disabled={readOnly}
      onChange={change} onBranches={(branches, renamed) => desk.edit(setBranches(desk.current().sheet, id, branches, renamed), `${id}/branches`)} />
  );
}

export function Remarks({ remarks, go }: { remarks: Remark[]; go?: (key: string) => void }) {
  return (
    <>
      {remarks.map((each) => (
        <div key={`${each.key}${each.field}${each.message}`} className={`ewc-note ewc-note-${each.level}`}>
          <b>{each.level === "error" ? "Error: " : "Warning: "}</b>
          {go && each.key && <button type="button" className="ewc-link" onClick={() => go(each.key!)}>{each.key}</button>} {each.message}
        </div>
      ))}
    </>
  );
}

function Outcomes({ count }: { count: Count }) {
  return (
    <div>
      <h4>Outcomes</h4>
      <table className="ewc-table"><tbody>
        <tr><td>here now</td><td>{count.live.toLocaleString()}</td></tr>
        {count.outcomes.map((each) => <tr key={each.says}><td>{each.says}</td><td>{each.count.toLocaleString()}</td></tr>)}
      </tbody></table>
    </div>
  );
}
