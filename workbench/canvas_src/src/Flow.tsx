// The graph, drawn by React Flow. Positions during a drag live here; everything else comes from the draft.
import {
  Background,
  BackgroundVariant,
  Controls,
  MarkerType,
  MiniMap,
  ReactFlow,
  useKeyPress,
  useNodesState,
  useReactFlow,
  type Connection,
  type EdgeChange,
  type FinalConnectionState,
  type NodeChange,
  type Viewport,
} from "@xyflow/react";
import { useCallback, useEffect, useMemo, useRef, useState, type DragEvent, type RefObject } from "react";
import { CARD_WIDTH, addStep, connect, edgesFrom, isTrigger, keysById, mayConnect, move, pointOf, type Cards } from "./graph";
import { useCanvas, useCanvasState } from "./hooks";
import { StepCard, type StepData, type StepNode } from "./StepCard";
import { StepEdge, type DrawnEdge } from "./StepEdge";
import type { Draft, Simulation } from "./types";

const NODE_TYPES = { step: StepCard };
const EDGE_TYPES = { step: StepEdge };
const MINIMAP_MIN_NODES = 16; // in a smaller graph the minimap would only cover cards
export const DRAGGED_KIND = "application/x-workbench-kind"; // MIME type of a kind that is dragged from the palette
export const FIT = { maxZoom: 1, padding: 0.12 };

export function Flow({ dark, cardOf, onAdded }: { dark: boolean; cardOf: Cards; onAdded: (key: string) => void }) {
  const { store, selected, select, target, setTarget, simulation } = useCanvas();
  const { draft, kinds, routes, diagnostics, counts, readOnly } = useCanvasState(store);
  const flow = useReactFlow();
  const dataCache = useRef<DataCache>(new Map());
  const dragging = useRef(false);
  const frame = useRef<HTMLDivElement>(null);
  useInitialViewport(frame);

  const openHandles = useMemo(() => findOpenHandles(draft, cardOf), [draft.nodes, draft.edges, cardOf]);
  const draftNodes = useMemo<StepNode[]>(() => {
    const diagnosticsByKey = Map.groupBy(diagnostics, (diagnostic) => diagnostic.key);
    return [...draft.nodes].map(([key, step]) => {
      const card = cardOf(key);
      const messages = diagnosticsByKey.get(key)?.map((diagnostic) => diagnostic.message).join("\n");
      const count = counts.nodes?.[key];
      const mark = simulation ? (simulation.marks[key] ?? "none") : undefined;
      const targetHandle = target?.key === key ? target.handle : undefined;
      const data = cachedData(dataCache.current, key, [card, messages, count, mark, openHandles.get(key), targetHandle, readOnly], () => ({
        card,
        trigger: isTrigger(step),
        diagnostics: diagnosticsByKey.get(key) ?? NONE,
        count,
        mark,
        offset: simulation?.offsets[key] ?? "",
        openHandles: openHandles.get(key) ?? NONE,
        targetHandle,
        onTarget: (handle) => setTarget({ key, handle }),
        readOnly,
      }));
      const label = `${card.kind}: ${card.title.join(" ")}`;
      return { id: key, type: "step", position: pointOf(step), data, width: CARD_WIDTH, height: card.height, ariaLabel: label };
    });
  }, [draft.nodes, cardOf, diagnostics, counts, simulation, openHandles, target, readOnly, kinds]);

  const [nodes, setNodes, applyToNodes] = useNodesState<StepNode>(draftNodes);
  useEffect(() => {
    setNodes((current) => {
      const currentById = new Map(current.map((node) => [node.id, node]));
      return draftNodes.map((node) => {
        const drawn = currentById.get(node.id);
        const isSelected = selected.includes(node.id);
        if (!drawn) return { ...node, selected: isSelected };
        // An update from Python must not move a card that the user is dragging.
        const position = dragging.current && drawn.dragging ? drawn.position : node.position;
        const unmoved = drawn.position.x === position.x && drawn.position.y === position.y;
        if (drawn.data === node.data && unmoved && drawn.height === node.height && !!drawn.selected === isSelected) return drawn;
        return { ...drawn, ...node, position, selected: isSelected };
      });
    });
  }, [draftNodes, selected, setNodes]);

  const [dragged, setDragged] = useState<ReadonlySet<string>>(NOTHING_DRAGGED);
  const edges = useMemo(() => drawEdges(draft, cardOf, simulation).map((edge) => {
    const follows = dragged.has(edge.source) || dragged.has(edge.target); // its route is out of date until the card is dropped
    return { ...edge, data: { ...edge.data, route: follows ? undefined : routes[edge.id] }, selected: selected.includes(edge.id) };
  }), [draft.nodes, draft.edges, cardOf, simulation, routes, dragged, selected]);

  const applySelection = useCallback((changes: (NodeChange<StepNode> | EdgeChange<DrawnEdge>)[]) => {
    const selections = changes.filter((change) => change.type === "select");
    if (!selections.length) return;
    select((current) => selections.reduce((keys, { id, selected: on }) => [...keys.filter((key) => key !== id), ...(on ? [id] : [])], current));
  }, [select]);

  /** Save moves by arrow keys. React Flow reports them like a drag, but with neither start nor stop. */
  const saveKeyboardMoves = useCallback((changes: NodeChange<StepNode>[]) => {
    const moves = changes.flatMap((change) => (change.type === "position" && change.position && !change.dragging ? [[change.id, change.position]] : []));
    if (moves.length) store.edit(move(store.current().draft, Object.fromEntries(moves)), "moves");
  }, [store]);

  const addsBranch = useKeyPress(["Control", "Meta"]);
  const onConnect = useCallback(({ source, sourceHandle, target: to }: Connection) => {
    store.edit(connect(store.current().draft, { key: source, handle: sourceHandle }, to, addsBranch));
  }, [store, addsBranch]);

  const onConnectEnd = useCallback((_: unknown, state: FinalConnectionState) => {
    if (!state.isValid && state.fromNode && !state.toNode) setTarget({ key: state.fromNode.id, handle: state.fromHandle?.id ?? null });
  }, [setTarget]);

  const onDrop = (event: DragEvent) => {
    const kind = kinds.find((candidate) => candidate.kind === event.dataTransfer.getData(DRAGGED_KIND));
    if (!kind || readOnly) return;
    event.preventDefault();
    const { x, y } = flow.screenToFlowPosition({ x: event.clientX, y: event.clientY });
    const added = addStep(draft, kind, cardOf, target, { x: x - CARD_WIDTH / 2, y: y - 24 });
    store.edit(added.patch);
    onAdded(added.key);
  };

  return (
    <ReactFlow<StepNode, DrawnEdge>
      ref={frame}
      nodes={nodes}
      edges={edges}
      nodeTypes={NODE_TYPES}
      edgeTypes={EDGE_TYPES}
      onNodesChange={(changes) => {
        applySelection(changes);
        applyToNodes(changes.filter((change) => change.type !== "select"));
        if (!dragging.current) saveKeyboardMoves(changes);
      }}
      onEdgesChange={applySelection}
      onNodeDragStart={(_, __, moved) => {
        dragging.current = true;
        setDragged(new Set(moved.map((node) => node.id)));
      }}
      onNodeDragStop={(_, __, moved) => {
        dragging.current = false;
        setDragged(NOTHING_DRAGGED);
        store.edit(move(draft, Object.fromEntries(moved.map((node) => [node.id, node.position]))));
      }}
      onNodeClick={() => target && setTarget(null)}
      onConnect={onConnect}
      onConnectEnd={onConnectEnd}
      isValidConnection={({ source, target: to }) => mayConnect(draft, source, to)}
      onDragOver={(event) => event.preventDefault()}
      onDrop={onDrop}
      nodesDraggable={!readOnly}
      nodesConnectable={!readOnly}
      edgesReconnectable={false}
      connectionRadius={36}
      deleteKeyCode={null}
      panActivationKeyCode={null}
      zoomOnScroll={false} // the wheel scrolls the notebook
      preventScrolling={false}
      zoomActivationKeyCode={["Control", "Meta"]}
      minZoom={0.1}
      maxZoom={1.6}
      colorMode={dark ? "dark" : "light"}
      defaultEdgeOptions={EDGE_OPTIONS}
      aria-label="The automation as a graph"
    >
      <Background variant={BackgroundVariant.Dots} gap={20} size={1.2} />
      <Controls showInteractive={false} fitViewOptions={FIT} />
      {draft.nodes.size >= MINIMAP_MIN_NODES && <MiniMap<StepNode> pannable zoomable nodeColor={(node) => node.data.card.color} />}
    </ReactFlow>
  );
}

// Constants, because React Flow and the hooks above compare them by identity.
const NONE: never[] = [];
const NOTHING_DRAGGED: ReadonlySet<string> = new Set();
const EDGE_OPTIONS = { interactionWidth: 24 };
const TOP_MARGIN = 24;

/** Set the viewport when the frame gets a size, and again when it is resized, until the user moves the viewport. */
function useInitialViewport(frame: RefObject<HTMLDivElement | null>) {
  const flow = useReactFlow<StepNode>();
  const shown = useRef<Viewport>(null);
  useEffect(() => {
    const observer = new ResizeObserver(() => {
      const { clientWidth, clientHeight } = frame.current!;
      if (!clientWidth || !clientHeight || (shown.current && !isEqual(shown.current, flow.getViewport()))) return;
      shown.current = initialViewport(flow.getNodesBounds(flow.getNodes()), frame.current!);
      void flow.setViewport(shown.current);
    });
    observer.observe(frame.current!);
    return () => observer.disconnect();
  }, [flow, frame]);
}

/** The viewport that shows the whole graph, or the start of a graph that would be too small to read. */
function initialViewport(bounds: { x: number; y: number; width: number; height: number }, { clientWidth, clientHeight }: HTMLElement): Viewport {
  const fitting = Math.min(clientWidth / bounds.width, clientHeight / bounds.height) * 0.88;
  const zoom = Math.min(Math.max(fitting, 0.5), 1);
  const y = fitting < zoom ? TOP_MARGIN : (clientHeight - bounds.height * zoom) / 2;
  return { x: clientWidth / 2 - (bounds.x + bounds.width / 2) * zoom, y: y - bounds.y * zoom, zoom };
}

type DataCache = Map<string, { parts: unknown[]; data: StepData }>;

/** The data of a node: the same object as long as its parts are equal, so that React draws only the cards that changed. */
function cachedData(cache: DataCache, key: string, parts: unknown[], make: () => StepData): StepData {
  const cached = cache.get(key);
  if (cached && cached.parts.every((part, index) => Object.is(part, parts[index]) || isEqual(part, parts[index]))) return cached.data;
  const data = make();
  cache.set(key, { parts, data });
  return data;
}

function isEqual(a: unknown, b: unknown): boolean {
  return typeof a === "object" && typeof b === "object" && JSON.stringify(a) === JSON.stringify(b);
}

function findOpenHandles(draft: Draft, cardOf: Cards): Map<string, (string | null)[]> {
  const connected = new Set([...draft.edges.values()].map((edge) => `${edge.source}/${edge.sourceHandle || ""}`));
  return new Map([...draft.nodes].map(([key, step]) => [
    key, cardOf(key).outputs.map((output) => output.handle).filter((handle) => !connected.has(`${step.id}/${handle ?? ""}`)),
  ]));
}

/** The edges as React Flow takes them. An edge with an unknown handle is drawn too, so that the user can remove it. */
function drawEdges(draft: Draft, cardOf: Cards, simulation: Simulation | null): (Omit<DrawnEdge, "data"> & { data: { branch: number } })[] {
  const keys = keysById(draft);
  const path = new Set(simulation?.path.map((end) => `${end.key}/${end.handle ?? ""}`));
  const drawn = [...draft.edges].flatMap(([key, edge]) => {
    const [source, target] = [keys.get(edge.source), keys.get(edge.target)];
    if (source === undefined || target === undefined) return [];
    const handles = cardOf(source).outputs.map((output) => output.handle);
    const handle = edge.sourceHandle || null;
    const isKnown = handles.includes(handle);
    const isTaken = path.has(`${source}/${handle ?? ""}`) && simulation?.marks[target] !== undefined;
    const branches = edgesFrom(draft, { key: source, handle });
    const branch = branches.length > 1 ? branches.findIndex(([other]) => other === key) + 1 : 0;
    const look = !isKnown ? "wrong" : !simulation ? "plain" : isTaken ? "strong" : "faded";
    return [{
      id: key, type: "step" as const, source, target, sourceHandle: isKnown ? handle : (handles[0] ?? null), className: `ewc-edge-${look}`,
      markerEnd: { type: MarkerType.ArrowClosed, width: 14, height: 14, color: look === "strong" ? "#2f9e63" : "#8a93a3" },
      data: { branch },
      ariaLabel: `from ${edge.source}${edge.sourceHandle ? `, ${edge.sourceHandle},` : ""} to ${edge.target}${branch ? `, branch ${branch} of ${branches.length}` : ""}`,
    }];
  });
  const isStrong = (edge: { className: string }) => edge.className === "ewc-edge-strong";
  return drawn.sort((a, b) => Number(isStrong(a)) - Number(isStrong(b))); // the path of the simulation on top
}
