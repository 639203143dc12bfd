// The canvas: toolbar, palette, graph and panel, with the state that they share: selection, simulation, and open dialog.
import { ReactFlowProvider, useReactFlow } from "@xyflow/react";
import { useCallback, useEffect, useRef, useState, type ClipboardEvent, type KeyboardEvent } from "react";
import { Banners } from "./Banners";
import { fromText, toText } from "./clipboard";
import { FIT, Flow } from "./Flow";
import { CARD_WIDTH, NEW_CARD_HEIGHT, addStep, cardNow, connect, copySteps, eventsOf, isTrigger, mayConnect, move, openEnd, paste, pointOf, remove, triggerKind, type Cards, type OutputEnd } from "./graph";
import { CanvasContext, sampleOf, useCanvasState, useDark, useDebounced, type CanvasContextValue, type SampleInput } from "./hooks";
import { commandOf, type Command } from "./keys";
import { Palette } from "./Palette";
import { BroadcastDialog, Help, PublishDialog, Question, StopDialog } from "./panels/Dialogs";
import { DISPLAYS, DisplayDialog, type DisplayName } from "./panels/Displays";
import { Overview } from "./panels/Overview";
import { StepPanel } from "./panels/StepPanel";
import { TestPanel } from "./panels/TestPanel";
import type { CanvasState, CanvasStore } from "./store";
import { Toolbar, type ToolbarActions } from "./Toolbar";
import type { Card, Draft, Kind, Sample, Simulation } from "./types";

type DialogName = "publish" | "broadcast" | "pause" | "stop" | "reload" | "overwrite" | "help" | DisplayName;

const ANIMATION_MS = 200;
const RENDER_MS = 60; // React Flow knows the size of a new card only after it has rendered it
const EDITING_COMMANDS = new Set<Command>(["undo", "redo", "remove", "duplicate", "arrange", "focusPalette", "connect"]);

export function Canvas({ store, height }: { store: CanvasStore; height: number }) {
  return (
    <ReactFlowProvider>
      <Editor store={store} height={height} />
    </ReactFlowProvider>
  );
}

function Editor({ store, height }: { store: CanvasStore; height: number }) {
  const state = useCanvasState(store);
  const { draft, cards, kinds, readOnly, status } = state;
  const flow = useReactFlow();
  const root = useRef<HTMLDivElement>(null);
  const dark = useDark();
  const [selected, setSelected] = useState<string[]>(() => initialSelection(state));
  const [target, setTarget] = useState<OutputEnd | null>(null);
  const [focusedKey, setFocusedKey] = useState<string | null>(null); // its form gets the focus when it opens: a step just added, or opened with Enter
  const [simulation, setSimulation] = useState<Simulation | null>(null);
  const [testing, setTesting] = useState(false);
  const [busy, setBusy] = useState(false);
  const [dialog, setDialog] = useState<DialogName | null>(null);
  const { samples, sampleInput, setSampleInput, currentInput } = useSamples(store, draft);

  const cardOf: Cards = useCallback((key) => cardNow(cards[key], kinds, draft.nodes.get(key)), [cards, kinds, draft.nodes]);
  const selectedKey = selected.length === 1 ? selected[0]! : null;
  const end = target ?? openEnd(draft, cardOf, selectedKey) ?? openEnd(draft, cardOf, null);
  const hasTrigger = [...draft.nodes.values()].some(isTrigger);

  const closeTest = () => {
    setTesting(false);
    setSimulation(null);
  };
  const closeDialog = () => setDialog(null);
  const selectAdded = (key: string) => {
    setSelected([key]);
    setFocusedKey(key);
    closeTest();
    setTarget(null);
  };
  const goTo = (key: string) => {
    closeTest();
    setSelected([key]);
    void flow.fitView({ nodes: [{ id: key }], maxZoom: 1, duration: ANIMATION_MS, padding: 0.4 });
  };
  const fit = () => void flow.fitView({ ...FIT, duration: ANIMATION_MS });
  const addFromPalette = (kind: Kind) => {
    const added = addStep(draft, kind, cardOf, end);
    store.edit(added.patch);
    selectAdded(added.key);
    const { x, y } = pointOf(added.patch.nodes![added.key]!);
    const frame = root.current!.querySelector(".ewc-flow")!.getBoundingClientRect();
    const [from, to] = [flow.flowToScreenPosition({ x, y }), flow.flowToScreenPosition({ x: x + CARD_WIDTH, y: y + NEW_CARD_HEIGHT })];
    const visible = from.x >= frame.left && from.y >= frame.top && to.x <= frame.right && to.y <= frame.bottom;
    if (!visible) setTimeout(fit, RENDER_MS);
  };
  const arrange = async () => {
    const places = await store.request<Record<string, { x: number; y: number }>>("arrange");
    store.edit(move(store.current().draft, places));
    setTimeout(fit, RENDER_MS);
  };
  const test = async () => {
    setSelected([]);
    setTesting(true);
    setBusy(true);
    try {
      setSimulation(await store.request<Simulation>("simulate", { sample: sampleOf((await currentInput()) ?? EMPTY_INPUT) }));
      store.clearNotice();
    } catch (error) {
      setSimulation(null);
      store.notify("bad", (error as Error).message);
    }
    setBusy(false);
  };
  const toggleActive = () => {
    if (status.state === "live") setDialog("pause");
    else void store.change(status.state === "paused" ? "resume" : "activate");
  };
  const actions: ToolbarActions = {
    undo: () => store.undo(),
    redo: () => store.redo(),
    arrange: () => void arrange(),
    fit,
    fullScreen: () => void (document.fullscreenElement ? document.exitFullscreen() : root.current?.requestFullscreen()),
    test: () => void test(),
    save: () => void store.change("save"),
    publish: () => setDialog("publish"),
    toggleActive,
    help: () => setDialog("help"),
    stop: () => setDialog("stop"),
    broadcast: triggerKind(draft) === "broadcast" ? () => setDialog("broadcast") : undefined,
    display: setDialog,
  };
  const pasteSteps = (text: string) => {
    const copied = readOnly ? null : fromText(text);
    if (!copied?.steps.length) return;
    const pasted = paste(draft, cardOf, copied);
    store.edit(pasted.patch);
    setSelected(pasted.keys);
  };
  const focus = (selector: string) => root.current?.querySelector<HTMLElement>(selector)?.focus();
  const focusedCard = () => document.activeElement?.closest<HTMLElement>(".react-flow__node")?.dataset.id;
  const connectFocused = (isBranch: boolean) => {
    const key = focusedCard();
    if (!target || !key || !mayConnect(draft, target.key, key)) return;
    store.edit(connect(draft, target, key, isBranch));
    setTarget(null);
  };
  const commands: Record<Command, () => void> = {
    undo: actions.undo,
    redo: actions.redo,
    arrange: actions.arrange,
    fit: actions.fit,
    test: actions.test,
    help: actions.help,
    remove: () => {
      root.current?.focus({ preventScroll: true }); // a removed card would take the focus with it
      store.edit(remove(draft, selected.filter((key) => draft.nodes.has(key)), selected.filter((key) => draft.edges.has(key))));
      setSelected([]);
    },
    selectAll: () => setSelected([...draft.nodes.keys()]),
    clearSelection: () => { setSelected([]); setTarget(null); },
    duplicate: () => pasteSteps(toText(copySteps(draft, selected))),
    connect: () => connectFocused(false),
    connectBranch: () => connectFocused(true),
    focusPalette: () => focus(".ewc-palette button"),
    focusCard: () => (selectedKey === null ? root.current?.focus() : focus(`.react-flow__node[data-id="${CSS.escape(selectedKey)}"]`)),
    focusForm: () => {
      const key = focusedCard();
      if (!key || key === selectedKey) return focus(".ewc-panel input, .ewc-panel textarea, .ewc-panel select");
      setSelected([key]);
      setFocusedKey(key);
    },
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const command = commandOf(event);
    if (!command || (readOnly && EDITING_COMMANDS.has(command)) || (command === "focusForm" && !selectedKey && !focusedCard())) return;
    event.preventDefault();
    commands[command]();
  };
  const onCopy = (event: ClipboardEvent, cut: boolean) => {
    if (isInField(event) || !selected.length) return;
    event.clipboardData.setData("text/plain", toText(copySteps(draft, selected)));
    event.preventDefault();
    if (cut && !readOnly) commands.remove();
  };
  // A click on the graph focuses nothing, and without focus inside the canvas its shortcuts would go to JupyterLab.
  const onPointerUp = (event: { target: EventTarget }) => {
    if (!root.current?.contains(document.activeElement) && !isInField(event)) root.current?.focus({ preventScroll: true });
  };

  // A button that removes itself, such as a link to another panel, takes the focus with it.
  const onClick = ({ target }: { target: EventTarget }) => {
    setTimeout(() => { if (!(target as Node).isConnected && document.activeElement === document.body) root.current?.focus({ preventScroll: true }); });
  };

  const context: CanvasContextValue = { store, selected, select: setSelected, target, setTarget, samples, sampleInput, setSampleInput, simulation };
  const step = selectedKey !== null ? draft.nodes.get(selectedKey) : undefined;
  const hint = readOnly ? "" : !hasTrigger ? "Choose what starts the automation." : end ? insertionHint(cardOf(end.key), end.handle) : "New steps are not connected.";
  return (
    <CanvasContext.Provider value={context}>
      <div
        ref={root}
        className={`ewc${dark ? " ewc-dark" : ""}`}
        style={{ "--ewc-height": `${height}px` } as React.CSSProperties}
        data-unsent={state.unsent}
        tabIndex={-1}
        role="region"
        aria-label={`Canvas: ${status.name}`}
        onKeyDown={onKeyDown}
        onCopy={(event) => onCopy(event, false)}
        onCut={(event) => onCopy(event, true)}
        onPaste={(event) => { if (!isInField(event)) pasteSteps(event.clipboardData.getData("text/plain")); }}
        onPointerUp={onPointerUp}
        onClick={onClick}
      >
        <Toolbar state={state} actions={actions} testing={testing} showOverview={() => { closeTest(); setSelected([]); }} />
        <Banners state={state} store={store} reload={() => setDialog("reload")} overwrite={() => setDialog("overwrite")} />
        <div className="ewc-body">
          {!readOnly && <Palette kinds={kinds} hint={hint} add={addFromPalette} hasTrigger={hasTrigger} />}
          <div className="ewc-flow"><Flow dark={dark} cardOf={cardOf} onAdded={selectAdded} /></div>
          <aside className="ewc-panel" aria-label="Selection">
            {step && selectedKey !== null ? <StepPanel key={selectedKey} id={selectedKey} step={step} focus={focusedKey === selectedKey} testAgain={testing ? actions.test : undefined} />
              : testing ? <TestPanel run={actions.test} busy={busy} close={closeTest} />
              : <Overview goTo={goTo} />}
          </aside>
        </div>
        {dialog === "publish" && <PublishDialog close={closeDialog} goTo={goTo} />}
        {dialog !== null && dialog in DISPLAYS && <DisplayDialog name={dialog as DisplayName} close={closeDialog} />}
        {dialog === "help" && <Help close={closeDialog} />}
        {dialog === "pause" && (
          <Question title="Pause the automation?" close={closeDialog} yes="Pause" onYes={() => void store.change("pause")}
            alternative="Switch off" onAlternative={() => void store.change("deactivate")}
            text="No event starts it until you resume it, and its entries wait until then. Switching it off cancels them instead." />
        )}
        {dialog === "stop" && <StopDialog close={closeDialog} />}
        {dialog === "broadcast" && <BroadcastDialog close={closeDialog} />}
        {dialog === "reload" && (
          <Question title="Load the version from the server?" close={closeDialog} yes="Load" onYes={() => void store.change("reload")}
            text="Your changes since you opened it are lost." />
        )}
        {dialog === "overwrite" && (
          <Question title="Replace the version on the server?" close={closeDialog} yes="Replace" onYes={() => void store.change("save", { overwrite: true })}
            text="The changes that someone else saved are replaced with yours. The published version stays as it is." />
        )}
      </div>
    </CanvasContext.Provider>
  );
}

const EMPTY_INPUT: SampleInput = { event: "event", payload: "{}", contactId: "", contact: "", locale: "" };

/** The initial selection: the trigger of an empty automation, so that its form asks for the event. */
function initialSelection({ draft, readOnly }: CanvasState): string[] {
  return !readOnly && draft.nodes.size === 1 && !eventsOf(draft).length ? [...draft.nodes.keys()] : [];
}

function isInField(event: { target: EventTarget }): boolean {
  return (event.target as HTMLElement).closest("input, textarea, select, dialog") !== null;
}

function insertionHint(card: Card, handle: string | null): string {
  const branch = card.outputs.find((output) => output.handle === handle)?.label;
  return `New steps go after “${card.kind}”${branch ? `, “${branch}”` : ""}`;
}

/** The sample events, loaded again when the trigger changes, and the sample that is chosen or edited. */
function useSamples(store: CanvasStore, draft: Draft) {
  const [samples, setSamples] = useState<Sample[]>([]);
  const [sampleInput, showInput] = useState<SampleInput | null>(null);
  const [key, events] = [JSON.stringify(draft.trigger), eventsOf(draft).join()];
  const loadedKey = useRef<string | null>(null);
  const own = useRef<{ events: string; input: SampleInput }>(null); // the choice of the user stays until the events change
  const settledKey = useDebounced(key, 300);
  const load = async (): Promise<SampleInput | null> => {
    const loaded = await store.request<Sample[]>("samples");
    const { event, payload, contactId, contact } = loaded[0] ?? EMPTY_INPUT;
    const input = own.current?.events === events ? own.current.input : { event, payload, contactId, contact, locale: "" };
    loadedKey.current = key;
    setSamples(loaded);
    showInput(input);
    return input;
  };
  useEffect(() => {
    void store.loadChoices();
    if (loadedKey.current !== key) load().catch(() => undefined); // without samples only the preview is missing
  }, [store, settledKey]);
  const setSampleInput = (input: SampleInput) => {
    own.current = { events, input };
    showInput(input);
  };
  /** The input for a test; waits for the samples of a trigger that was changed a moment ago. */
  const currentInput = () => (loadedKey.current === key ? Promise.resolve(sampleInput) : load());
  return { samples, sampleInput, setSampleInput, currentInput };
}
