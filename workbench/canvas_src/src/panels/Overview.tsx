// The panel while nothing is selected: counts, diagnostics, and how to begin.
import { eventsOf } from "../graph";
import { useCanvas, useCanvasState } from "../hooks";
import { DiagnosticList } from "./StepPanel";

export function Overview({ goTo }: { goTo: (key: string) => void }) {
  const { store, selected } = useCanvas();
  const { counts, diagnostics, draft, readOnly } = useCanvasState(store);
  if (selected.length > 1) {
    return (
      <div className="ewc-form">
        <h3>{selected.length} selected</h3>
        <p className="ewc-soft">Drag moves them, Delete removes them, Ctrl+C and Ctrl+V make copies.</p>
      </div>
    );
  }
  return (
    <div className="ewc-form">
      <h3>Automation</h3>
      {counts.headline && <p data-testid="headline">{counts.headline}{counts.atRemovedSteps ? `; ${counts.atRemovedSteps} at steps that the draft does not contain` : ""}.</p>}
      <DiagnosticList diagnostics={diagnostics} goTo={goTo} />
      {!diagnostics.length && draft.nodes.size > 0 && <p className="ewc-good-note">Ready to publish</p>}
      {!readOnly && (
        <ul className="ewc-soft ewc-hints">
          {!draft.nodes.size && <li>Choose on the left what starts it.</li>}
          {draft.nodes.size > 0 && !eventsOf(draft).length && <li>Click the first card and choose the event that starts it.</li>}
          <li>Click a step on the left to add it at the open end.</li>
          <li>Drag from the dot below a card to connect it to another step.</li>
          <li>Press <kbd>?</kbd> for all keyboard shortcuts.</li>
        </ul>
      )}
    </div>
  );
}
