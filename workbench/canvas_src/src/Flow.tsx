// The graph, drawn by React Flow: what is dragged lives here until it is let go, everything else comes from the draft.
import {
  Background,
  BackgroundVariant,
  Controls,
  MarkerType,
  MiniMap,
  ReactFlow,
  useNodesState,
  useReactFlow,
  type Connection,
  type EdgeChange,
  type FinalConnectionState,
  type NodeChange,
  type Viewport,
} from "@xyflow/react";
import { useCallback, useEffect, useMemo, useRef, useState, type DragEvent, type RefObject } from "react";
import { useStage, useView } from "./use";
import { WIDTH, add, connect, isTrigger, keysById, mayConnect, move, pointOf, type Cards } from "./graph";
import { StepCard, type StepData, type StepNode } from "./StepCard";
import { WayEdge, type Way } from "./WayEdge";
import type { Sheet, Trial } from "./types";

const TYPES = { step: StepCard };
const EDGE_TYPES = { way: WayEdge };
const MAP_FROM = 16; // nodes: a map covers the cards of a small graph
export const DRAGGED = "application/x-workbench-kind";

export function Flow({ dark, cardOf, put }: { dark: boolean; cardOf: Cards; put: (key: string) => void }) {
  const stage = useStage();
  const { desk, selected, select, target, aim, trial } = stage;
  const view = useView(desk);
  const { sheet, lanes, remarks, counts, readOnly } = view;
  const flow = useReactFlow();
  const known = useRef(new Map<string, { parts: unknown[]; data: StepData }>());
  const dragging = useRef(false);
  const frame = useRef<HTMLDivElement>(null);
  useHome(frame);

  const open = useMemo(() => openWays(sheet, cardOf), [sheet.nodes, sheet.edges, cardOf]);
  const wanted = useMemo<StepNode[]>(() => {
    const byKey = Map.groupBy(remarks, (each) => each.key);
    return [...sheet.nodes].map(([key, step]) => {
      const card = cardOf(key);
      const data = kept(known.current, key, [
        card, byKey.get(key)?.map((each) => each.message).join("\n"), counts.nodes?.[key],
        trial ? (trial.marks[key] ?? "none") : undefined, open.get(key), target?.key === key ? target.handle : undefined, readOnly,
      ], () => ({
        card,
        trigger: isTrigger(step),
        remarks: byKey.get(key) ?? NONE,
        count: counts.nodes?.[key],
        mark: trial ? (trial.marks[key] ?? "none") : undefined,
        offset: trial?.offsets[key] ?? "",
        open: open.get(key) ?? NONE,
        aimed: target?.key === key ? target.handle : undefined,
        aim: (handle) => aim({ key, handle }),
        readOnly,
      }));
      const label = `${card.kind}: ${card.title.join(" ")}`;
      return { id: key, type: "step", position: pointOf(step), data, width: WIDTH, height: card.height, ariaLabel: label };
    });
  }, [sheet.nodes, cardOf, remarks, counts, trial, open, target, readOnly, view.kinds]);

  const [nodes, setNodes, applyToNodes] = useNodesState<StepNode>(wanted);
  useEffect(() => {
    setNodes((shown) => {
      const before = new Map(shown.map((each) => [each.id, each]));
      return wanted.map((each) => {
        const own = before.get(each.id);
        const isSelected = selected.includes(each.id);
        if (!own) return { ...each, selected: isSelected };
        const position = dragging.current && own.dragging ? own.position : each.position;
        const still = own.position.x === position.x && own.position.y === position.y;
        if (own.data === each.data && still && own.height === each.height && !!own.selected === isSelected) return own;
        return { ...own, ...each, position, selected: isSelected };
      });
    });
  }, [wanted, selected, setNodes]);

  const [dragged, setDragged] = useState<ReadonlySet<string>>(STILL);
  const edges = useMemo(() => drawnEdges(sheet, cardOf, trial).map((edge) => {
    const free = dragged.has(edge.source) || dragged.has(edge.target);
    return { ...edge, data: { lane: free ? undefined : lanes[edge.id] }, selected: selected.includes(edge.id) };
  }), [sheet.nodes, sheet.edges, cardOf, trial, lanes, dragged, selected]);

  const selecting = useCallback((changes: (NodeChange<StepNode> | EdgeChange<Way>)[]) => {
    const picked = changes.filter((each) => each.type === "select");
    if (picked.length) select((now) => picked.reduce((so, { id, selected: on }) => [...so.filter((each) => each !== id), ...(on ? [id] : [])], now));
  }, [select]);

  /** Moves by arrow keys: they end as they begin. */
  const stepping = useCallback((changes: NodeChange<StepNode>[]) => {
    const moved = changes.flatMap((each) => (each.type === "position" && each.position && !each.dragging ? [[each.id, each.position]] : []));
    if (moved.length) desk.edit(move(desk.current().sheet, Object.fromEntries(moved)), "steps");
  }, [desk]);

  const onConnect = useCallback(({ source, sourceHandle, target: to }: Connection) => {
    desk.edit(connect(desk.current().sheet, { key: source, handle: sourceHandle }, to));
  }, [desk]);

  const onConnectEnd = useCallback((_: unknown, state: FinalConnectionState) => {
    if (!state.isValid && state.fromNode && !state.toNode) aim({ key: state.fromNode.id, handle: state.fromHandle?.id ?? null });
  }, [aim]);

  const onDrop = (event: DragEvent) => {
    const kind = view.kinds.find((each) => each.kind === event.dataTransfer.getData(DRAGGED));
    if (!kind || readOnly) return;
    event.preventDefault();
    const { x, y } = flow.screenToFlowPosition({ x: event.clientX, y: event.clientY });
    const added = add(sheet, kind, cardOf, target, { x: x - WIDTH / 2, y: y - 24 });
    desk.edit(added.patch);
    put(added.key);
  };

  return (
    <ReactFlow<StepNode, Way>
      ref={frame}
      nodes={nodes}
      edges={edges}
      nodeTypes={TYPES}
      edgeTypes={EDGE_TYPES}
      onNodesChange={(changes) => {
        selecting(changes);
        applyToNodes(changes.filter((each) => each.type !== "select"));
        if (!dragging.current) stepping(changes);
      }}
      onEdgesChange={selecting}
      onNodeDragStart={(_, __, moved) => {
        dragging.current = true;
        setDragged(new Set(moved.map((each) => each.id)));
      }}
      onNodeDragStop={(_, __, moved) => {
        dragging.current = false;
        setDragged(STILL);
        desk.edit(move(sheet, Object.fromEntries(moved.map((each) => [each.id, each.position]))));
      }}
      onNodeClick={() => stage.target && aim(null)}
      onConnect={onConnect}
      onConnectEnd={onConnectEnd}
      isValidConnection={({ source, target: to }) => mayConnect(sheet, source, to)}
      onDragOver={(event) => event.preventDefault()}
      onDrop={onDrop}
      nodesDraggable={!readOnly}
      nodesConnectable={!readOnly}
      edgesReconnectable={false}
      connectionRadius={36}
      deleteKeyCode={null}
      panActivationKeyCode={null}
      zoomOnScroll={false}
      preventScrolling={false}
      zoomActivationKeyCode={["Control", "Meta"]}
      minZoom={0.1}
      maxZoom={1.6}
      colorMode={dark ? "dark" : "light"}
      defaultEdgeOptions={EDGE}
      aria-label="The automation as a graph"
    >
      <Background variant={BackgroundVariant.Dots} gap={20} size={1.2} />
      <Controls showInteractive={false} fitViewOptions={FIT} />
      {sheet.nodes.size >= MAP_FROM && <MiniMap<StepNode> pannable zoomable nodeColor={(node) => node.data.card.color} />}
    </ReactFlow>
  );
}

/** Shows where one looks at first, also in a frame that gets its size later, until somebody looks elsewhere. */
function useHome(frame: RefObject<HTMLDivElement | null>) {
  const flow = useReactFlow<StepNode>();
  const shown = useRef<Viewport>(null);
  useEffect(() => {
    const sized = new ResizeObserver(() => {
      const { clientWidth, clientHeight } = frame.current!;
      if (!clientWidth || !clientHeight || (shown.current && !same(shown.current, flow.getViewport()))) return;
      shown.current = home(flow.getNodesBounds(flow.getNodes()), frame.current!);
      void flow.setViewport(shown.current);
    });
    sized.observe(frame.current!);
    return () => sized.disconnect();
  }, [flow, frame]);
}

export const FIT = { maxZoom: 1, padding: 0.12 };
/** Where one looks at first: everything, or the beginning of what would be too small to read. */
function home(all: { x: number; y: number; width: number; height: number }, { clientWidth, clientHeight }: HTMLElement): Viewport {
  const fitting = Math.min(clientWidth / all.width, clientHeight / all.height) * 0.88;
  const zoom = Math.min(Math.max(fitting, 0.5), 1);
  const y = fitting < zoom ? MARGIN : (clientHeight - all.height * zoom) / 2;
  return { x: clientWidth / 2 - (all.x + all.width / 2) * zoom, y: y - all.y * zoom, zoom };
}

const MARGIN = 24;
const NONE: never[] = [];
const STILL: ReadonlySet<string> = new Set();
const EDGE = { interactionWidth: 24 };

/** The data of a node, the same object as before unless one of its parts is another: React draws only what has changed. */
function kept(known: Map<string, { parts: unknown[]; data: StepData }>, key: string, parts: unknown[], make: () => StepData): StepData {
  const before = known.get(key);
  if (before && before.parts.every((part, index) => Object.is(part, parts[index]) || same(part, parts[index]))) return before.data;
  const data = make();
  known.set(key, { parts, data });
  return data;
}

function same(one: unknown, other: unknown): boolean {
  return typeof one === "object" && typeof other === "object" && JSON.stringify(one) === JSON.stringify(other);
}

function openWays(sheet: Sheet, cardOf: Cards): Map<string, (string | null)[]> {
  const taken = new Set([...sheet.edges.values()].map((edge) => `${edge.source}/${edge.sourceHandle || ""}`));
  return new Map([...sheet.nodes].map(([key, step]) => [
    key, cardOf(key).ways.map((way) => way.handle).filter((handle) => !taken.has(`${step.id}/${handle ?? ""}`)),
  ]));
}

/** The edges as React Flow takes them; one that leaves by a way that is not there is drawn, too, so that it can be taken out. */
function drawnEdges(sheet: Sheet, cardOf: Cards, trial: Trial | null): Omit<Way, "data">[] {
  const keys = keysById(sheet);
  const followed = new Set(trial?.ways.map((way) => `${way.key}/${way.handle ?? ""}`));
  const drawn = [...sheet.edges].flatMap(([key, edge]) => {
    const [source, target] = [keys.get(edge.source), keys.get(edge.target)];
    if (source === undefined || target === undefined) return [];
    const ways = cardOf(source).ways.map((way) => way.handle);
    const handle = edge.sourceHandle || null;
    const known = ways.includes(handle);
    const strong = followed.has(`${source}/${handle ?? ""}`) && trial?.marks[target] !== undefined;
    const look = !known ? "wrong" : !trial ? "plain" : strong ? "strong" : "faded";
    return [{
      id: key, type: "way" as const, source, target, sourceHandle: known ? handle : (ways[0] ?? null), className: `ewc-edge-${look}`,
      markerEnd: { type: MarkerType.ArrowClosed, width: 14, height: 14, color: look === "strong" ? "#2f9e63" : "#8a93a3" },
      ariaLabel: `from ${edge.source}${edge.sourceHandle ? `, ${edge.sourceHandle},` : ""} to ${edge.target}`,
    }];
  });
  return drawn.sort((one, other) => Number(one.className === STRONG) - Number(other.className === STRONG)); // the path on top
}

const STRONG = "ewc-edge-strong";
