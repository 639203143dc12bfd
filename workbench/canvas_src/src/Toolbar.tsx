// The toolbar: the name and status of the automation, and the actions on the whole of it.
import { useRef, type FocusEvent, type KeyboardEvent, type ReactNode } from "react";
import { DISPLAYS, type DisplayName } from "./panels/Displays";
import type { CanvasState } from "./store";

export interface ToolbarActions {
  undo: () => void;
  redo: () => void;
  arrange: () => void;
  fit: () => void;
  fullScreen: () => void;
  test: () => void;
  save: () => void;
  publish: () => void;
  toggleActive: () => void;
  help: () => void;
  stop: () => void;
  broadcast?: () => void; // if the automation starts from broadcasts
  display: (name: DisplayName) => void;
}

const SWITCHES = { live: "Pause", paused: "Resume", off: "Activate" };

export function Toolbar({ state, actions, testing, showOverview }: { state: CanvasState; actions: ToolbarActions; testing: boolean; showOverview: () => void }) {
  const { status, diagnostics, readOnly } = state;
  const errors = diagnostics.filter((diagnostic) => diagnostic.level === "error").length;
  const warnings = diagnostics.length - errors;
  const problems = [count(errors, "error"), count(warnings, "warning")].filter(Boolean).join(", ");
  return (
    <header className="ewc-bar">
      <span className="ewc-name">{status.name}</span>
      {status.pills.map((pill) => <span key={pill.text} className={`ewc-pill ewc-pill-${pill.look}`}>{pill.text}</span>)}
      {readOnly && <span className="ewc-pill">read only</span>}
      <button type="button" className={`ewc-problems${errors ? " ewc-has-errors" : ""}`} onClick={showOverview} data-testid="problems">{problems || "No problems"}</button>
      <span className="ewc-space" />
      <span className="ewc-tools" role="toolbar" aria-label="Canvas">
        {!readOnly && <Tool label="Undo" keys="Ctrl+Z" disabled={!state.canUndo} onPress={actions.undo}><path d="M-2-6-7-1-2 4M-7-1H3a5 5 0 0 1 0 9" /></Tool>}
        {!readOnly && <Tool label="Redo" keys="Ctrl+Shift+Z" disabled={!state.canRedo} onPress={actions.redo}><path d="M2-6 7-1 2 4M7-1H-3a5 5 0 0 0 0 9" /></Tool>}
        {!readOnly && <Tool label="Lay out" keys="L" onPress={actions.arrange}><path d="M-3-8H3V-4H-3zM-8 4H-2V8H-8zM2 4H8V8H2zM0-4V0M-5 4V0H5V4" /></Tool>}
        <Tool label="Zoom to fit" keys="F" onPress={actions.fit}><path d="M-7-3V-7H-3M3-7H7V-3M7 3V7H3M-3 7H-7V3" /></Tool>
        <Tool label="Full screen" keys="" onPress={actions.fullScreen}><path d="M1-1 7-7M2-7H7V-2M-1 1-7 7M-7 2V7H-2" /></Tool>
        <Tool label="Keyboard shortcuts" keys="?" onPress={actions.help}><path d="M-3-4a3 3 0 1 1 4 3q-1 .6-1 2.5M0 6V6.4" /></Tool>
      </span>
      {status.connected && <More readOnly={readOnly} display={actions.display} stop={actions.stop} broadcast={actions.broadcast} />}
      <button type="button" className="ewc-button" aria-pressed={testing} onClick={actions.test}>Test</button>
      {!readOnly && status.connected && (
        <>
          <button type="button" className="ewc-button" onClick={actions.save}>Save</button>
          {status.state !== "draft" && <button type="button" className="ewc-button" onClick={actions.toggleActive}>{SWITCHES[status.state]}</button>}
          <button type="button" className="ewc-button ewc-primary" onClick={actions.publish}>Publish</button>
        </>
      )}
    </header>
  );
}

/** A menu of what a notebook displays for an automation, and the stop of everything. */
function More({ readOnly, display, stop, broadcast }: { readOnly: boolean; display: (name: DisplayName) => void; stop: () => void; broadcast?: () => void }) {
  const menu = useRef<HTMLDetailsElement>(null);
  const close = () => menu.current?.removeAttribute("open");
  const onBlur = (event: FocusEvent) => { if (!menu.current?.contains(event.relatedTarget)) close(); };
  const leave = () => {
    close();
    menu.current?.querySelector("summary")?.focus();
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key !== "Escape") return;
    leave();
    event.stopPropagation();
  };
  const names = (Object.keys(DISPLAYS) as DisplayName[]).filter((name) => name !== "send_test" || !readOnly);
  return (
    <details ref={menu} className="ewc-more-menu" onBlur={onBlur} onKeyDown={onKeyDown}>
      <summary className="ewc-button">More</summary>
      <div>
        {!readOnly && broadcast && <button type="button" onClick={() => { leave(); broadcast(); }}>Send the broadcast</button>}
        {names.map((name) => <button key={name} type="button" onClick={() => { leave(); display(name); }}>{DISPLAYS[name]}</button>)}
        {!readOnly && <button type="button" onClick={() => { leave(); stop(); }}>Stop everything</button>}
      </div>
    </details>
  );
}

function Tool({ label, keys, disabled, onPress, children }: { label: string; keys: string; disabled?: boolean; onPress: () => void; children: ReactNode }) {
  return (
    <button type="button" className="ewc-tool" aria-label={label} title={keys ? `${label} (${keys})` : label} disabled={disabled} onClick={onPress}>
      <svg width="18" height="18" viewBox="-10 -10 20 20" fill="none" stroke="currentColor" strokeWidth="1.8" strokeLinecap="round" strokeLinejoin="round" aria-hidden="true">{children}</svg>
    </button>
  );
}

function count(number: number, noun: string): string {
  return number ? `${number} ${noun}${number === 1 ? "" : "s"}` : "";
}
