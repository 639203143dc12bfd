// The test panel: a simulation with one event, in words; the graph shows its path. Nothing is sent.
import { useState } from "react";
import { useCanvas } from "../hooks";
import { MessageBox, Verdicts } from "./Message";
import { SampleForm } from "./Sample";

const FIRST_STEPS = 12;

export function TestPanel({ run, busy, close }: { run: () => void; busy: boolean; close: () => void }) {
  const { simulation, select } = useCanvas();
  const [showAll, setShowAll] = useState(false);
  const steps = simulation?.steps ?? [];
  const shown = showAll ? steps : steps.slice(0, FIRST_STEPS);
  return (
    <div className="ewc-form" data-testid="simulation">
      <h3>Test<button type="button" className="ewc-quiet" onClick={close}>Close</button></h3>
      <p className="ewc-soft">A simulation with the rules of the engine. Waiting times pass immediately, nothing is sent.</p>
      <SampleForm />
      <button type="button" className="ewc-button ewc-primary" disabled={busy} onClick={run}>{busy ? "Testing …" : "Test again"}</button>
      {simulation && (
        <div aria-live="polite">
          <h4>{simulation.headline} <span className={`ewc-pill ewc-pill-${simulation.look}`}>{simulation.state}</span></h4>
          <p className="ewc-soft">{simulation.reason}</p>
          {simulation.note && <p className="ewc-doubtful">{simulation.note}</p>}
          {simulation.messages.map((message, index) => <MessageBox key={index} message={message} />)}
          {simulation.explanations.map(({ title, verdicts }, index) => <div key={index}><h4>{title}</h4><Verdicts verdicts={verdicts} /></div>)}
          {steps.length > 0 && <h4>Steps</h4>}
          {steps.length > 0 && (
            <ol className="ewc-steps">
              {shown.map((step, index) => (
                <li key={index}>
                  {step.key ? <button type="button" className="ewc-link" onClick={() => select([step.key!])}>{step.node}</button> : step.node}: {step.outcome}
                  {step.detail && `, ${step.detail}`} {step.offset && <span className="ewc-soft">{step.offset}</span>}
                </li>
              ))}
            </ol>
          )}
          {shown.length < steps.length && <button type="button" className="ewc-more" onClick={() => setShowAll(true)}>all {steps.length}</button>}
        </div>
      )}
    </div>
  );
}
