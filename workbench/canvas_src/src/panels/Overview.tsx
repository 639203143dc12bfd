// What is shown while nothing is selected: how it is doing, what is wrong, how to begin.
import { eventsOf } from "../graph";
import { useStage, useView } from "../use";
import { Remarks } from "./StepPanel";

export function Overview({ go }: { go: (key: string) => void }) {
  const { desk, selected } = useStage();
  const { counts, remarks, sheet, readOnly } = useView(desk);
  if (selected.length > 1) return <div className="ewc-form"><h3>{selected.length} selected</h3><p className="ewc-soft">Drag moves them, Delete removes them, Ctrl+C and Ctrl+V make copies.</p></div>;
  return (
    <div className="ewc-form">
      <h3>Automation</h3>
      {counts.headline && <p data-testid="headline">{counts.headline}{counts.elsewhere ? `; ${counts.elsewhere} at steps that are no longer in the draft` : ""}.</p>}
      <Remarks remarks={remarks} go={go} />
      {!remarks.length && <p className="ewc-good-note">Ready to publish</p>}
      {!readOnly && (
        <ul className="ewc-soft ewc-hints">
          {!eventsOf(sheet).length && <li>Click the first card and choose the event that starts it.</li>}
          <li>Click a step on the left to add it at the open end.</li>
          <li>Drag from the dot below a card to connect it to another step.</li>
          <li>Press <kbd>?</kbd> for all keyboard shortcuts.</li>
        </ul>
      )}
    </div>
  );
}
