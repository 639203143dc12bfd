// The kinds of steps: click one to add it at the open end, or drag it anywhere.
import type { KeyboardEvent } from "react";
import { DRAGGED } from "./Flow";
import { Icon } from "./Icon";
import type { Kind } from "./types";

export function Palette({ kinds, hint, add, started }: { kinds: Kind[]; hint: string; add: (kind: Kind) => void; started: boolean }) {
  const offered = kinds.filter((each) => (each.group === "Triggers") !== started);
  const groups = [...Map.groupBy(offered, (each) => each.group)];
  return (
    <nav className="ewc-palette" aria-label="Steps to add" onKeyDown={walk}>
      {groups.map(([group, members]) => (
        <div key={group} role="group" aria-label={group}>
          <div className="ewc-group">{group}</div>
          {members.map((each) => (
            <button
              key={each.kind}
              type="button"
              draggable
              data-kind={each.kind}
              title={`${each.about}. ${hint}`}
              onClick={() => add(each)}
              onDragStart={(event) => {
                event.dataTransfer.setData(DRAGGED, each.kind);
                event.dataTransfer.effectAllowed = "copy";
              }}
            >
              <span className="ewc-swatch" style={{ background: each.color }}><Icon name={each.icon} size={15} /></span>
              <span className="ewc-label">{each.label}</span>
            </button>
          ))}
        </div>
      ))}
      <p className="ewc-soft ewc-label" aria-live="polite">{hint}</p>
    </nav>
  );
}

function walk(event: KeyboardEvent<HTMLElement>): void {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step) return;
  const buttons = [...event.currentTarget.querySelectorAll("button")];
  const at = buttons.indexOf(document.activeElement as HTMLButtonElement);
  buttons[(at + step + buttons.length) % buttons.length]?.focus();
  event.preventDefault();
}
