// The whole: bar, palette, graph, panel, and what stands between them: what is selected, tried, and asked before something is done.
import { ReactFlowProvider, useReactFlow } from "@xyflow/react";
import { useCallback, useEffect, useRef, useState, type ClipboardEvent, type KeyboardEvent } from "react";
import { Banners } from "./Banners";
import { fromText, toText } from "./clipboard";
import type { Desk, View } from "./desk";
import { FIT, Flow } from "./Flow";
import { HEIGHT, WIDTH, add, cardNow, eventsOf, isTrigger, move, openEnd, paste, piece, pointOf, remove, sourceOf, type Cards, type End } from "./graph";
import { actOf, type Act } from "./keys";
import { Palette } from "./Palette";
import { Help, PublishDialog, Question } from "./panels/Dialogs";
import { Overview } from "./panels/Overview";
import { StepPanel } from "./panels/StepPanel";
import { TryPanel } from "./panels/TryPanel";
import { Toolbar, type Deeds } from "./Toolbar";
import type { Card, Kind, Sample, Trial } from "./types";
import { StageContext, useDark, useSettled, useView, type Stage, type Tried } from "./use";

type Asked = "publish" | "pause" | "reload" | "overwrite" | "help" | null;

export function Canvas({ desk, height }: { desk: Desk; height: number }) {
  return (
    <ReactFlowProvider>
      <Whole desk={desk} height={height} />
    </ReactFlowProvider>
  );
}

function Whole({ desk, height }: { desk: Desk; height: number }) {
  const view = useView(desk);
  const { sheet, cards, kinds, readOnly, status } = view;
  const flow = useReactFlow();
  const root = useRef<HTMLDivElement>(null);
  const dark = useDark();
  const [selected, setSelected] = useState<string[]>(() => begun(view));
  const [target, aim] = useState<End | null>(null);
  const [fresh, setFresh] = useState<string | null>(null); // put in just now: its form has the focus
  const [trial, show] = useState<Trial | null>(null);
  const [testing, setTesting] = useState(false);
  const [busy, setBusy] = useState(false);
  const [asked, ask] = useState<Asked>(null);
  const { samples, tried, take, ready } = useSamples(desk, sourceOf(sheet));

  const cardOf: Cards = useCallback((key) => cardNow(cards[key], kinds, sheet.nodes.get(key)), [cards, kinds, sheet.nodes]);
  const one = selected.length === 1 ? selected[0]! : null;
  const end = target ?? openEnd(sheet, cardOf, one) ?? openEnd(sheet, cardOf, null);
  const started = [...sheet.nodes.values()].some(isTrigger);

  const untest = () => {
    setTesting(false);
    show(null);
  };
  const put = (key: string) => {
    setSelected([key]);
    setFresh(key);
    untest();
    aim(null);
  };
  const go = (key: string) => {
    untest();
    setSelected([key]);
    void flow.fitView({ nodes: [{ id: key }], maxZoom: 1, duration: 200, padding: 0.4 });
  };
  const addStep = (kind: Kind) => {
    const added = add(sheet, kind, cardOf, end);
    desk.edit(added.patch);
    put(added.key);
    reveal(pointOf(added.patch.nodes![added.key]!));
  };
  /** Show everything where a new card would be out of sight. */
  const reveal = ({ x, y }: { x: number; y: number }) => {
    const frame = root.current!.querySelector(".ewc-flow")!.getBoundingClientRect();
    const [from, to] = [flow.flowToScreenPosition({ x, y }), flow.flowToScreenPosition({ x: x + WIDTH, y: y + HEIGHT })];
    const seen = from.x >= frame.left && from.y >= frame.top && to.x <= frame.right && to.y <= frame.bottom;
    if (!seen) setTimeout(() => flow.fitView({ ...FIT, duration: 200 }), 60);
  };
  const arrange = async () => {
    const places = await desk.ask<Record<string, { x: number; y: number }>>("arrange");
    desk.edit(move(desk.current().sheet, places));
    setTimeout(() => flow.fitView({ ...FIT, duration: 200 }), 60);
  };
  const test = async () => {
    setTesting(true);
    setBusy(true);
    try {
      const { event, payload, person } = (await ready()) ?? NOTHING;
      show(await desk.ask<Trial>("simulate", { tried: { event, payload, person } }));
      desk.hush();
    } catch (error) {
      show(null);
      desk.say("bad", (error as Error).message);
    }
    setBusy(false);
  };
  const deeds: Deeds = {
    undo: () => desk.undo(),
    redo: () => desk.redo(),
    arrange: () => void arrange(),
    fit: () => void flow.fitView({ ...FIT, duration: 200 }),
    whole: () => void (document.fullscreenElement ? document.exitFullscreen() : root.current?.requestFullscreen()),
    test: () => void test(),
    save: () => void desk.do("save"),
    publish: () => ask("publish"),
    switch: () => (status.active && !status.paused ? ask("pause") : void desk.do(status.paused ? "resume" : "activate")),
    help: () => ask("help"),
  };
  const acts: Record<Act, () => void> = {
    undo: deeds.undo,
    redo: deeds.redo,
    arrange: deeds.arrange,
    fit: deeds.fit,
    test: deeds.test,
    help: deeds.help,
    remove: () => {
      const nodes = selected.filter((key) => sheet.nodes.has(key));
      desk.edit(remove(sheet, nodes, selected.filter((key) => sheet.edges.has(key))));
      setSelected([]);
    },
    all: () => setSelected([...sheet.nodes.keys()]),
    none: () => { setSelected([]); aim(null); },
    duplicate: () => pasteSteps(toText(piece(sheet, selected))),
    palette: () => root.current?.querySelector<HTMLElement>(".ewc-palette button")?.focus(),
    form: () => root.current?.querySelector<HTMLElement>(".ewc-panel input, .ewc-panel textarea, .ewc-panel select")?.focus(),
  };
  const pasteSteps = (text: string) => {
    const found = readOnly ? null : fromText(text);
    if (!found?.steps.length) return;
    const pasted = paste(sheet, found);
    desk.edit(pasted.patch);
    setSelected(pasted.keys);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const act = actOf(event);
    if (!act || (readOnly && CHANGING.has(act)) || (act === "form" && !one)) return;
    event.preventDefault();
    acts[act]();
  };
  const copy = (event: ClipboardEvent, cut: boolean) => {
    if (inField(event) || !selected.length) return;
    event.clipboardData.setData("text/plain", toText(piece(sheet, selected)));
    event.preventDefault();
    if (cut && !readOnly) acts.remove();
  };

  const stage: Stage = { desk, selected, select: setSelected, target, aim, samples, tried, try: take, trial, show };
  const step = one !== null ? sheet.nodes.get(one) : undefined;
  const hint = readOnly ? "" : end ? hintOf(cardOf(end.key), end.handle) : "New steps are not connected.";
  return (
    <StageContext.Provider value={stage}>
      <div
        ref={root}
        className={`ewc${dark ? " ewc-dark" : ""}`}
        style={{ "--ewc-height": `${height}px` } as React.CSSProperties}
        data-unsent={view.unsent}
        tabIndex={-1}
        role="region"
        aria-label={`Canvas: ${status.name}`}
        onKeyDown={onKeyDown}
        onCopy={(event) => copy(event, false)}
        onCut={(event) => copy(event, true)}
        onPaste={(event) => { if (!inField(event)) pasteSteps(event.clipboardData.getData("text/plain")); }}
        onPointerUp={(event) => { if (!root.current?.contains(document.activeElement) && !inField(event)) root.current?.focus({ preventScroll: true }); }}
      >
        <Toolbar view={view} deeds={deeds} testing={testing} overview={() => { untest(); setSelected([]); }} />
        <Banners view={view} desk={desk} reload={() => ask("reload")} overwrite={() => ask("overwrite")} />
        <div className="ewc-body">
          {!readOnly && <Palette kinds={kinds} hint={hint} add={addStep} started={started} />}
          <div className="ewc-flow"><Flow dark={dark} cardOf={cardOf} put={put} /></div>
          <aside className="ewc-panel" aria-label="What is selected">
            {testing ? <TryPanel run={deeds.test} busy={busy} close={untest} />
              : step && one !== null ? <StepPanel key={one} id={one} step={step} focus={fresh === one} />
              : <Overview go={go} />}
          </aside>
        </div>
        {asked === "publish" && <PublishDialog close={() => ask(null)} go={go} />}
        {asked === "help" && <Help close={() => ask(null)} />}
        {asked === "pause" && <Question title="Pause the automation?" text="No event starts it until you resume it, and its entries wait until then. Switching it off cancels them instead." yes="Pause" act={() => void desk.do("pause")} other="Switch off" otherwise={() => void desk.do("deactivate")} close={() => ask(null)} />}
        {asked === "reload" && <Question title="Load the version from the server?" text="Your changes since you opened it are lost." yes="Load" act={() => void desk.do("reload")} close={() => ask(null)} />}
        {asked === "overwrite" && <Question title="Replace the version on the server?" text="The changes that someone else saved are replaced with yours. The published version stays as it is." yes="Replace" act={() => void desk.do("save", { overwrite: true })} close={() => ask(null)} />}
      </div>
    </StageContext.Provider>
  );
}

const NOTHING: Tried = { event: "event", payload: "{}", person: "", label: "" };

/** What is selected at first: the trigger, where nothing has been written yet. */
function begun({ sheet, readOnly }: View): string[] {
  return !readOnly && sheet.nodes.size === 1 && !eventsOf(sheet).length ? [...sheet.nodes.keys()] : [];
}

const CHANGING = new Set<Act>(["undo", "redo", "remove", "duplicate", "arrange", "palette"]);

function inField(event: { target: EventTarget }): boolean {
  return (event.target as HTMLElement).closest("input, textarea, select, dialog") !== null;
}

function hintOf(card: Card, handle: string | null): string {
  const branch = card.ways.find((way) => way.handle === handle)?.label;
  return `New steps go after “${card.kind}”${branch ? `, “${branch}”` : ""}`;
}

/** Events to try, looked up anew when other events start the automation; and what is chosen from them. */
function useSamples(desk: Desk, events: string) {
  const [samples, setSamples] = useState<Sample[]>([]);
  const [tried, take] = useState<Tried | null>(null);
  const known = useRef<string | null>(null); // the events whose samples these are
  const names = useSettled(events, 300);
  const load = useCallback(async (of: string) => {
    const found = await desk.ask<Sample[]>("samples");
    const first = found[0];
    const chosen = first ? { event: first.event, payload: first.payload, person: first.contactId, label: first.contact } : null;
    known.current = of;
    setSamples(found);
    take(chosen);
    return chosen;
  }, [desk]);
  useEffect(() => {
    void desk.choose();
    if (known.current !== names) load(names).catch(() => undefined); // without samples there is no preview; everything else works
  }, [desk, names, load]);
  const ready = () => (known.current === events ? Promise.resolve(tried) : load(events));
  return { samples, tried, take, ready };
}
