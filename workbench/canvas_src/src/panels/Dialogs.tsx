// Dialogs: the impact of publishing, questions before work is lost, and the keyboard shortcuts.
import { useEffect, useLayoutEffect, useRef, useState, type FormEvent, type ReactNode } from "react";
import { Combo } from "../fields/Combo";
import { Labelled } from "../fields/Labelled";
import { KEYS } from "../keys";
import type { Impact, Moves, Recipients, Stop } from "../types";
import { useCanvas, useCanvasState } from "../hooks";
import { DiagnosticList } from "./StepPanel";

export function Dialog({ title, close, wide, children }: { title: string; close: () => void; wide?: boolean; children: ReactNode }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => {
    const shown = dialog.current!;
    shown.showModal();
    return () => shown.close(); // before it is removed: only then the focus returns to where it was
  }, []);
  return (
    <dialog ref={dialog} className={`ewc-dialog${wide ? " ewc-wide" : ""}`} aria-label={title} onClose={close} onCancel={close}>
      <h3>{title}</h3>
      {children}
    </dialog>
  );
}

const CONSENTS = {
  every_event: "Start on every event",
  accept_dropped: "Drop what is unknown: operators of filters, the kind of the first step",
};

export function PublishDialog({ close, goTo }: { close: () => void; goTo: (key: string) => void }) {
  const { store } = useCanvas();
  const { diagnostics, status } = useCanvasState(store);
  const [impact, setImpact] = useState<Impact | null>(null);
  const [moves, setMoves] = useState<Moves | null>(null);
  const [move, setMove] = useState(false);
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  const [agreed, setAgreed] = useState<string[]>([]);
  const errors = diagnostics.filter((diagnostic) => diagnostic.level === "error");
  const consents = [...new Set(diagnostics.flatMap((diagnostic) => diagnostic.consent ?? []))];
  const agrees = consents.every((consent) => agreed.includes(consent));
  useEffect(() => {
    store.request<Impact>("impact").then((impact) => {
      setImpact(impact);
      // Every entry is simulated, which can take seconds; publishing does not wait for it.
      if (impact.rows.length > 0) return store.request<Moves>("moves").then(setMoves);
    }).catch((error: Error) => setError(error.message));
  }, [store]);
  const publish = async () => {
    setBusy(true);
    await store.change("publish", { agreed, move });
    close();
  };
  return (
    <Dialog title={`Publish “${status.name}”`} close={close}>
      {error && <p className="ewc-wrong">{error}</p>}
      {errors.length > 0 && <p>Fix these errors before publishing:</p>}
      <DiagnosticList diagnostics={diagnostics} goTo={(key) => { close(); goTo(key); }} />
      {!errors.length && consents.map((consent) => (
        <label key={consent} className="ewc-switch">
          <input type="checkbox" checked={agreed.includes(consent)} onChange={(event) => setAgreed(event.target.checked ? [...agreed, consent] : agreed.filter((other) => other !== consent))} /> {CONSENTS[consent]}
        </label>
      ))}
      {!errors.length && impact && (
        <div data-testid="impact">
          <p>{impact.summary}</p>
          {impact.headline && <p><b>{impact.headline}</b></p>}
          {impact.rows.length > 0 && <Table columns={impact.columns ?? []} rows={impact.rows} />}
        </div>
      )}
      {!errors.length && impact && impact.rows.length > 0 && (moves ? (
        <div data-testid="moves">
          {moves.movable > 0 && (
            <label className="ewc-switch">
              <input type="checkbox" checked={move} onChange={(event) => setMove(event.target.checked)} /> Move waiting entries to the new version
            </label>
          )}
          <p>{moves.headline}</p>
          {moves.tables.map(({ title, columns, rows }) => (
            <div key={columns.join()}>{title && <p>{title}</p>}<Table columns={columns} rows={rows} /></div>
          ))}
        </div>
      ) : !error && <p>Simulating the entries on the new version …</p>)}
      <div className="ewc-ends">
        <button type="button" className="ewc-button" onClick={close}>Cancel</button>
        <button type="button" className="ewc-button ewc-primary" disabled={busy || errors.length > 0 || !agrees} onClick={() => void publish()}>{busy ? "Publishing …" : "Publish"}</button>
      </div>
    </Dialog>
  );
}

function Table({ columns, rows }: { columns: string[]; rows: string[][] }) {
  return (
    <table className="ewc-table">
      <thead><tr>{columns.map((column) => <th key={column}>{column}</th>)}</tr></thead>
      <tbody>{rows.map((row, index) => <tr key={index}>{row.map((cell, at) => <td key={at}>{cell}</td>)}</tr>)}</tbody>
    </table>
  );
}

interface QuestionProps {
  title: string;
  text: string;
  yes: string;
  onYes: () => void;
  alternative?: string;
  onAlternative?: () => void;
  close: () => void;
}

/** A question before something is lost or stopped. `alternative`: the label of a third button. */
export function Question({ title, text, yes, onYes, alternative, onAlternative, close }: QuestionProps) {
  return (
    <Dialog title={title} close={close}>
      <p>{text}</p>
      <div className="ewc-ends">
        <button type="button" className="ewc-button" onClick={close}>Cancel</button>
        {alternative && <button type="button" className="ewc-button" onClick={() => { onAlternative?.(); close(); }}>{alternative}</button>}
        <button type="button" className="ewc-button ewc-primary" onClick={() => { onYes(); close(); }}>{yes}</button>
      </div>
    </Dialog>
  );
}

/** Stops all automations of the organization, or resumes them. */
export function StopDialog({ close }: { close: () => void }) {
  const { store } = useCanvas();
  const [stop, setStop] = useState<Stop | null>(null);
  useEffect(() => {
    store.request<Stop>("stop").then(setStop, (error: Error) => { close(); store.notify("bad", error.message); });
  }, [store]);
  if (!stop) return null;
  const verb = stop.stopped ? "Resume" : "Stop";
  return (
    <Question title={`${verb} everything?`} close={close} yes={`${verb} everything`} text={stop.text}
      onYes={() => void store.change(stop.stopped ? "resume_all" : "stop_all")} />
  );
}

/** Starts the automation for the contacts of a segment, after their number was shown. */
export function BroadcastDialog({ close }: { close: () => void }) {
  const { store } = useCanvas();
  const { choices } = useCanvasState(store);
  const [segment, setSegment] = useState("");
  const [recipients, setRecipients] = useState<Recipients | null>(null);
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  const choose = (name: string) => {
    setSegment(name);
    setRecipients(null);
  };
  const count = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    setError("");
    try {
      setRecipients(await store.request<Recipients>("recipients", { segment: segment.trim() }));
    } catch (reason) {
      setError((reason as Error).message);
    }
    setBusy(false);
  };
  const send = async () => {
    setBusy(true);
    await store.change("broadcast", { segment: segment.trim(), counted: recipients!.counted });
    close();
  };
  return (
    <Dialog title="Send the broadcast" close={close}>
      <p className="ewc-soft">It starts the published version for each contact, now.</p>
      <form className="ewc-form" onSubmit={(event) => void count(event)}>
        <Labelled label="To the segment" hint="Leave empty for all contacts.">
          <Combo label="Segment" value={segment} options={choices.segments.map((name) => ({ value: name }))} placeholder="all contacts" onChange={choose} />
        </Labelled>
        <div className="ewc-ends">
          <button type="submit" className="ewc-button" disabled={busy}>Count the contacts</button>
        </div>
      </form>
      <div aria-live="polite" data-testid="recipients">
        {error && <p className="ewc-wrong">{error}</p>}
        {recipients && <p><b>{recipients.text}</b></p>}
        {recipients?.warnings.map((warning) => <div key={warning} className="ewc-note"><b>Warning: </b>{warning}</div>)}
      </div>
      <div className="ewc-ends">
        <button type="button" className="ewc-button" onClick={close}>Cancel</button>
        <button type="button" className="ewc-button ewc-primary" disabled={busy || !recipients} onClick={() => void send()}>Send</button>
      </div>
    </Dialog>
  );
}

export function Help({ close }: { close: () => void }) {
  return (
    <Dialog title="Keyboard shortcuts" close={close}>
      <table className="ewc-table"><tbody>{KEYS.map(([keys, what]) => <tr key={keys}><td><kbd>{keys}</kbd></td><td>{what}</td></tr>)}</tbody></table>
      <div className="ewc-ends"><button type="button" className="ewc-button ewc-primary" onClick={close}>Close</button></div>
    </Dialog>
  );
}
