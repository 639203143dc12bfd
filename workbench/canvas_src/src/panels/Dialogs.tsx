// Dialogs: the impact of publishing, questions before work is lost, keyboard shortcuts.
import { useEffect, useRef, useState, type ReactNode } from "react";
import { KEYS } from "../keys";
import type { Impact } from "../types";
import { useStage, useView } from "../use";
import { Remarks } from "./StepPanel";

export function Dialog({ title, close, children }: { title: string; close: () => void; children: ReactNode }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    if (!dialog.current?.open) dialog.current?.showModal();
  }, []);
  return (
    <dialog ref={dialog} className="ewc-dialog" aria-label={title} onClose={close} onCancel={close}>
      <h3>{title}</h3>
      {children}
    </dialog>
  );
}

export function PublishDialog({ close, go }: { close: () => void; go: (key: string) => void }) {
  const { desk } = useStage();
  const { remarks, status } = useView(desk);
  const [impact, setImpact] = useState<Impact | null>(null);
  const [wrong, setWrong] = useState("");
  const [busy, setBusy] = useState(false);
  const errors = remarks.filter((each) => each.level === "error");
  useEffect(() => {
    desk.ask<Impact>("impact").then(setImpact, (error: Error) => setWrong(error.message));
  }, [desk]);
  const publish = async () => {
    setBusy(true);
    await desk.do("publish");
    close();
  };
  return (
    <Dialog title={`Publish “${status.name}”`} close={close}>
      {wrong && <p className="ewc-wrong">{wrong}</p>}
      {errors.length > 0 && <p>Fix these errors before publishing:</p>}
      <Remarks remarks={remarks} go={(key) => { close(); go(key); }} />
      {!errors.length && impact && (
        <div data-testid="impact">
          <p>{impact.says}</p>
          {impact.headline && <p><b>{impact.headline}</b></p>}
          {impact.rows.length > 0 && (
            <table className="ewc-table">
              <thead><tr>{impact.columns?.map((each) => <th key={each}>{each}</th>)}</tr></thead>
              <tbody>{impact.rows.map((row, index) => <tr key={index}>{row.map((cell, at) => <td key={at}>{cell}</td>)}</tr>)}</tbody>
            </table>
          )}
        </div>
      )}
      <div className="ewc-ends">
        <button type="button" className="ewc-button" onClick={close}>Cancel</button>
        <button type="button" className="ewc-button ewc-primary" disabled={busy || errors.length > 0} onClick={() => void publish()}>{busy ? "Publishing …" : "Publish"}</button>
      </div>
    </Dialog>
  );
}

/** A question before something is lost or stopped; `other` is an alternative. */
export function Question({ title, text, yes, act, other, otherwise, close }: { title: string; text: string; yes: string; act: () => void; other?: string; otherwise?: () => void; close: () => void }) {
  return (
    <Dialog title={title} close={close}>
      <p>{text}</p>
      <div className="ewc-ends">
        <button type="button" className="ewc-button" onClick={close}>Cancel</button>
        {other && <button type="button" className="ewc-button" onClick={() => { otherwise?.(); close(); }}>{other}</button>}
        <button type="button" className="ewc-button ewc-primary" onClick={() => { act(); close(); }}>{yes}</button>
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
