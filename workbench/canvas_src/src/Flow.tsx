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
  type Edge as FlowEdge,
  type FinalConnectionState,
} from "@xyflow/react";
import { useCallback, useEffect, useMemo, useRef, type DragEvent } from "react";
import { useStage, useView } from "./use";
import { WIDTH, add, connect, isTrigger, keysById, mayConnect, move, pointOf, type Ways } from "./graph";
import { StepCard, type StepData, type StepNode } from "./StepCard";
import type { Card, Kind, Sheet, Step } from "./types";

const TYPES = { step: StepCard };
const MAP_FROM = 16; // nodes: a map covers the cards of a small graph
export const DRAGGED = "application/x-workbench-kind";

export function Flow({ dark, ways, put }: { dark: boolean; ways: Ways; put: (key: string) => void }) {
  const stage = useStage();
  const { desk, selected, select, target, aim, trial } = stage;
  const view = useView(desk);
  const { sheet, cards, remarks, counts, readOnly } = view;
  const flow = useReactFlow();
  const known = useRef(new Map<string, { parts: unknown[]; data: StepData }>());
  const dragging = useRef(false);

  const open = useMemo(() => openWays(sheet, ways), [sheet.nodes, sheet.edges, ways]);
  const wanted = useMemo<StepNode[]>(() => {
    const byKey = Map.groupBy(remarks, (each) => each.key);
    return [...sheet.nodes].map(([key, step]) => {
      const card = cards[key] ?? blankCard(view.kinds, step);
      const data = kept(known.current, key, [
        card, byKey.get(key)?.map((each) => each.message).join("\n"), counts.nodes?.[key],
        trial ? (trial.marks[key] ?? "none") : undefined, open.get(key)?.join("\n"), target?.key === key ? target.handle : undefined, readOnly,
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
  }, [sheet.nodes, cards, remarks, counts, trial, open, target, readOnly, view.kinds]);

  const [nodes, setNodes, onNodesChange] = useNodesState<StepNode>(wanted);
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

  const edges = useMemo(() => drawnEdges(sheet, trial && new Set(trial.ways.map((way) => `${way.key}/${way.handle ?? ""}`)), trial?.marks),
    [sheet.nodes, sheet.edges, trial]);

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
    const added = add(sheet, kind, ways, target, { x: x - WIDTH / 2, y: y - 24 });
    desk.edit(added.patch);
    put(added.key);
  };

  return (
    <ReactFlow<StepNode>
      nodes={nodes}
      edges={edges}
      nodeTypes={TYPES}
      onNodesChange={onNodesChange}
      onNodeDragStart={() => { dragging.current = true; }}
      onNodeDragStop={(_, __, moved) => {
        dragging.current = false;
        desk.edit(move(sheet, Object.fromEntries(moved.map((each) => [each.id, each.position]))));
      }}
      onNodeClick={() => stage.target && aim(null)}
      onSelectionChange={({ nodes: picked, edges: lines }) => select([...picked, ...lines].map((each) => each.id))}
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
      fitView
      fitViewOptions={FIT}
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

export const FIT = { maxZoom: 1, padding: 0.12 };
const NONE: never[] = [];
const EDGE = { type: "default", interactionWidth: 24 };

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

export function blankCard(kinds: Kind[], step: Step): Card {
  const kind = kinds.find((each) => each.kind === step.type);
  const ways = kind?.kind === "exit" ? [] : [{ handle: null, label: "" }];
  return { kind: kind?.label ?? step.type, title: [step.id], lines: [], color: kind?.color ?? "#5d6878", icon: kind?.icon ?? "alert", height: 54, ways, valid: true };
}

function openWays(sheet: Sheet, ways: Ways): Map<string, (string | null)[]> {
  const taken = new Set([...sheet.edges.values()].map((edge) => `${edge.source}/${edge.sourceHandle || ""}`));
  return new Map([...sheet.nodes].map(([key, step]) => [
    key, ways(key).map((way) => way.handle).filter((handle) => !taken.has(`${step.id}/${handle ?? ""}`)),
  ]));
}

function drawnEdges(sheet: Sheet, followed: Set<string> | null, marks: Record<string, unknown> | undefined): FlowEdge[] {
  const keys = keysById(sheet);
  return [...sheet.edges].flatMap(([key, edge]) => {
    const [source, target] = [keys.get(edge.source), keys.get(edge.target)];
    if (source === undefined || target === undefined) return [];
    const strong = followed?.has(`${source}/${edge.sourceHandle || ""}`) && marks?.[target] !== undefined;
    const look = !followed ? "plain" : strong ? "strong" : "faded";
    return [{
      id: key, source, target, sourceHandle: edge.sourceHandle || null, className: `ewc-edge-${look}`, zIndex: strong ? 1 : 0,
      markerEnd: { type: MarkerType.ArrowClosed, width: 16, height: 16, color: look === "strong" ? "#2f9e63" : "#8a93a3" },
      ariaLabel: `from ${edge.source}${edge.sourceHandle ? `, ${edge.sourceHandle},` : ""} to ${edge.target}`,
    }];
  });
}
