// An edge: it leaves and enters cards vertically, and passes beside the cards in between on the route that Python computed.
import { BaseEdge, type Edge, type EdgeProps } from "@xyflow/react";
import type { Route } from "./types";

export type DrawnEdge = Edge<{ route: Route | undefined; branch: number }, "step">; // branch: its number, 0 if it is the only one

const ARROWHEAD = 5; // pixels
const LABEL_GAP = 24; // between a label and the card

export function StepEdge({ sourceX, sourceY, targetX, targetY, data, markerEnd, interactionWidth }: EdgeProps<DrawnEdge>) {
  let [x, y] = [sourceX, sourceY];
  let path = `M${x} ${y}`;
  for (const [routeX, top, bottom] of data?.route ?? []) {
    path += curve(x, y, routeX, top) + `V${bottom}`;
    [x, y] = [routeX, bottom];
  }
  path += curve(x, y, targetX, targetY - ARROWHEAD);
  const label = data?.branch ? { label: data.branch, labelX: targetX, labelY: targetY - LABEL_GAP } : {};
  return <BaseEdge path={path} markerEnd={markerEnd} interactionWidth={interactionWidth} {...label} />;
}

function curve(x: number, y: number, toX: number, toY: number): string {
  const bend = toY >= y ? (toY - y) / 2 : Math.max(60, (y - toY) / 3); // wider for an edge that leads upwards
  return `C${x} ${y + bend} ${toX} ${toY - bend} ${toX} ${toY}`;
}
