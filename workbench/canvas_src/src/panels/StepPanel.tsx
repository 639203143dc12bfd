// The panel of one step: its form, its problems, and a preview with a sample event.
import { useEffect, useRef } from "react";
import { Control } from "../fields/Control";
import { Events } from "../fields/Inputs";
import { Labelled } from "../fields/Labelled";
import { eventsOf, isTrigger, localesOf, remove, setBranches, setEvents, setForking, triggerKind, withField } from "../graph";
import { Icon } from "../Icon";
import type { Count, Field, Json, Kind, Obj, Diagnostic, Step } from "../types";
import { useCanvas, useCanvasState } from "../hooks";
import { PreviewBox } from "./Preview";
import { SettingsForm } from "./Settings";

interface Props {
  id: string;
  step: Step;
  focus: boolean;
  testAgain?: () => void; // while a test is open
}

export function StepPanel({ id, step, focus, testAgain }: Props) {
  const { store, select } = useCanvas();
  const { draft, kinds, cards, diagnostics, counts, readOnly } = useCanvasState(store);
  const trigger = isTrigger(step);
  const kind = kinds.find((kind) => kind.kind === (trigger ? triggerKind(draft) : step.type));
  const stepDiagnostics = diagnostics.filter((diagnostic) => diagnostic.key === id);
  const fields = kind?.fields ?? [];
  const ofField = (field: Field) => stepDiagnostics.filter((diagnostic) => diagnostic.field === field.name || (field.control === "filters" && diagnostic.field === "where") || diagnostic.field.startsWith(`${field.name}[`) || diagnostic.field.startsWith(`${field.name}.`));
  const rest = stepDiagnostics.filter((diagnostic) => !fields.some((field) => ofField(field).includes(diagnostic)));
  const form = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (focus) form.current?.querySelector<HTMLElement>("input, textarea, select")?.focus();
  }, [id, focus]);
  return (
    <div className="ewc-form" ref={form}>
      {testAgain && <button type="button" className="ewc-button" onClick={testAgain}>Test again</button>}
      <h3>
        <span className="ewc-swatch" style={{ background: cards[id]?.color ?? kind?.color }}><Icon name={kind?.icon ?? "alert"} size={15} /></span>
        {kind?.label ?? step.type}
        {!readOnly && <button type="button" className="ewc-quiet" onClick={() => { select([]); store.edit(remove(draft, [id])); }}>Remove</button>}
      </h3>
      <p className="ewc-soft">{kind ? kind.about : "This kind of step is unknown; it is kept unchanged."} <code>{step.id}</code></p>
      <DiagnosticList diagnostics={rest} />
      {fields.map((field) => <StepField key={field.name} id={id} step={step} kind={kind} field={field} texts={fields.filter((other) => other.control === "line" || other.control === "text")} awaits={fields.find((other) => other.control === "event")?.name} diagnostics={ofField(field)} />)}
      {counts.nodes?.[id] && <Outcomes count={counts.nodes[id]} />}
      {trigger && <SettingsForm />}
      <PreviewBox id={id} step={step} />
    </div>
  );
}

function StepField({ id, step, kind, field, texts, awaits, diagnostics }: { id: string; step: Step; kind?: Kind; field: Field; texts: Field[]; awaits?: string; diagnostics: Diagnostic[] }) {
  const { store } = useCanvas();
  const { draft, choices, operators, readOnly } = useCanvasState(store);
  const trigger = isTrigger(step);
  const data: Obj = trigger ? draft.trigger : (step.data ?? {});
  const triggerEvents = eventsOf(draft);
  if (field.control === "events") {
    return (
      <Labelled label={field.label} hint={field.hint} diagnostics={diagnostics}>
        <Events names={triggerEvents} choices={choices} disabled={readOnly} onChange={(names) => store.edit(setEvents(store.current().draft, names))} />
      </Labelled>
    );
  }
  const awaited = awaits === undefined ? undefined : data[awaits];
  const change = (value: Json | undefined, where?: Json) => {
    const current = store.current().draft;
    const owner: Obj = (trigger ? current.trigger : current.nodes.get(id)?.data) ?? {};
    const changed = withField(field.control === "filters" ? withField(owner, "where", where) : owner, field.name, value);
    const changedStep = { ...(current.nodes.get(id) ?? step), data: changed };
    const patch = trigger ? { trigger: changed } : kind?.fork ? setForking(current, id, kind, changedStep) : { nodes: { [id]: changedStep } };
    store.edit(patch, `${id}/${field.name}`);
  };
  return (
    <Control field={field} value={data[field.name]} connection={data.connection} own={data.fields} where={data.where} texts={texts} locales={localesOf(draft)} events={typeof awaited === "string" ? [awaited] : triggerEvents} withContact={!trigger} choices={choices} operators={operators} diagnostics={diagnostics} disabled={readOnly}
      onChange={change} onBranches={(branches, renamed) => store.edit(setBranches(store.current().draft, id, field.name, branches, renamed), `${id}/${field.name}`)} />
  );
}

export function DiagnosticList({ diagnostics, goTo }: { diagnostics: Diagnostic[]; goTo?: (key: string) => void }) {
  return (
    <>
      {diagnostics.map((diagnostic) => (
        <div key={`${diagnostic.key}${diagnostic.field}${diagnostic.message}`} className={`ewc-note ewc-note-${diagnostic.level}`}>
          <b>{diagnostic.level === "error" ? "Error: " : "Warning: "}</b>
          {goTo && diagnostic.key && <button type="button" className="ewc-link" onClick={() => goTo(diagnostic.key!)}>{diagnostic.key}</button>} {diagnostic.message}
        </div>
      ))}
    </>
  );
}

function Outcomes({ count }: { count: Count }) {
  return (
    <div>
      <h4>{count.messages.length ? "Messages" : "Outcomes"}</h4>
      <table className="ewc-table"><tbody>
        <tr><td>here now</td><td>{count.live.toLocaleString()}</td></tr>
        {count.messages.map(([word, number]) => <tr key={word}><td>{word}</td><td>{number.toLocaleString()}</td></tr>)}
        {!count.messages.length && count.outcomes.map((outcome) => <tr key={outcome.outcome}><td>{outcome.outcome}</td><td>{outcome.count.toLocaleString()}</td></tr>)}
      </tbody></table>
    </div>
  );
}
