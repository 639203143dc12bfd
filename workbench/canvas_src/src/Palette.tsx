// The palette: click a kind to add a step at the open output, or drag it anywhere.
import type { KeyboardEvent } from "react";
import { DRAGGED_KIND } from "./Flow";
import { Icon } from "./Icon";
import type { Kind } from "./types";

export function Palette({ kinds, hint, add, hasTrigger }: { kinds: Kind[]; hint: string; add: (kind: Kind) => void; hasTrigger: boolean }) {
  const offered = kinds.filter((kind) => (kind.group === "Triggers") !== hasTrigger);
  const groups = [...Map.groupBy(offered, (kind) => kind.group)];
  return (
    <nav className="ewc-palette" aria-label="Steps to add" onKeyDown={moveFocus}>
      {groups.map(([group, members]) => (
        <div key={group} role="group" aria-label={group}>
          <div className="ewc-group">{group}</div>
          {members.map((kind) => (
            <button
              key={kind.kind}
              type="button"
              draggable
              data-kind={kind.kind}
              tabIndex={kind === offered[0] ? 0 : -1} // one stop of Tab; the arrow keys reach the others
              title={`${kind.about}. ${hint}`}
              onClick={() => add(kind)}
              onDragStart={(event) => {
                event.dataTransfer.setData(DRAGGED_KIND, kind.kind);
                event.dataTransfer.effectAllowed = "copy";
              }}
            >
              <span className="ewc-swatch" style={{ background: kind.color }}><Icon name={kind.icon} size={15} /></span>
              <span className="ewc-label">{kind.label}</span>
            </button>
          ))}
        </div>
      ))}
      <p className="ewc-soft ewc-label" aria-live="polite">{hint}</p>
    </nav>
  );
}

function moveFocus(event: KeyboardEvent<HTMLElement>): void {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step) return;
  const buttons = [...event.currentTarget.querySelectorAll("button")];
  const index = buttons.indexOf(document.activeElement as HTMLButtonElement);
  buttons[(index + step + buttons.length) % buttons.length]?.focus();
  event.preventDefault();
}
