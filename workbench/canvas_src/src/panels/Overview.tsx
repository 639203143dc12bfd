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
      <h3>The automation</h3>
      {counts.headline && <p data-testid="headline">{counts.headline}{counts.elsewhere ? `; ${counts.elsewhere} on the way at steps that are no longer here` : ""}.</p>}
      <Remarks remarks={remarks} go={go} />
      {!remarks.length && <p className="ewc-good-note">Nothing stands against publishing it.</p>}
      {!readOnly && (
        <ul className="ewc-soft ewc-hints">
          {!eventsOf(sheet).length && <li>Click the first card and choose what starts it.</li>}
          <li>Click a step on the left: it is put behind the end that is open.</li>
          <li>Drag from the dot below a card to lead it elsewhere.</li>
          <li>Press <kbd>?</kbd> for all keys.</li>
        </ul>
      )}
    </div>
  );
}
