// The test panel: a simulation with one event, on the graph and in words. Nothing is sent.
import { useState } from "react";
import type { Trial } from "../types";
import { useStage } from "../use";
import { MessageBox, Verdicts } from "./Message";
import { SampleForm } from "./Sample";

export function TryPanel({ run, busy, close }: { run: () => void; busy: boolean; close: () => void }) {
  const { trial, select } = useStage();
  const [all, setAll] = useState(false);
  return (
    <div className="ewc-form" data-testid="trial">
      <h3>Test<button type="button" className="ewc-quiet" onClick={close}>Close</button></h3>
      <p className="ewc-soft">A simulation with the rules of the engine. Waiting times pass immediately, nothing is sent.</p>
      <SampleForm />
      <button type="button" className="ewc-button ewc-primary" disabled={busy} onClick={run}>{busy ? "Testing …" : "Test again"}</button>
      {trial && (
        <div aria-live="polite">
          <h4>{trial.headline} <span className={`ewc-pill ewc-pill-${trial.look}`}>{trial.state}</span></h4>
          <p className="ewc-soft">{trial.reason}</p>
          {trial.note && <p className="ewc-doubtful">{trial.note}</p>}
          {trial.messages.map((each, index) => <MessageBox key={index} message={each} />)}
          {trial.whys.map((each, index) => <div key={index}><h4>{each.title}</h4><Verdicts asked={each.asked} /></div>)}
          {trial.steps.length > 0 && <Steps trial={trial} all={all} more={() => setAll(true)} go={(key) => select([key])} />}
        </div>
      )}
    </div>
  );
}

const SHOWN = 12;

function Steps({ trial, all, more, go }: { trial: Trial; all: boolean; more: () => void; go: (key: string) => void }) {
  const shown = all ? trial.steps : trial.steps.slice(0, SHOWN);
  return (
    <>
      <h4>Steps</h4>
      <ol className="ewc-steps">
        {shown.map((each, index) => (
          <li key={index}>
            {each.key ? <button type="button" className="ewc-link" onClick={() => go(each.key!)}>{each.node}</button> : each.node}: {each.says}
            {each.detail && `, ${each.detail}`} {each.offset && <span className="ewc-soft">{each.offset}</span>}
          </li>
        ))}
      </ol>
      {shown.length < trial.steps.length && <button type="button" className="ewc-more" onClick={more}>all {trial.steps.length}</button>}
    </>
  );
}
