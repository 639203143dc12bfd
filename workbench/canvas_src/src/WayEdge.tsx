// An edge: upright out of one card and into the next, beside the cards that stand in between.
import { BaseEdge, type Edge, type EdgeProps } from "@xyflow/react";
import type { Lane } from "./types";

export interface WayData extends Record<string, unknown> {
  lane: Lane | undefined;
}

export type Way = Edge<WayData, "way">;

export function WayEdge({ sourceX, sourceY, targetX, targetY, data, markerEnd, interactionWidth }: EdgeProps<Way>) {
  const end = targetY - 5;
  let [x, y] = [sourceX, sourceY];
  let path = `M${x} ${y}`;
  for (const [middle, top, bottom] of data?.lane ?? []) {
    path += curve(x, y, middle, top) + `V${bottom}`;
    [x, y] = [middle, bottom];
  }
  return <BaseEdge path={path + curve(x, y, targetX, end)} markerEnd={markerEnd} interactionWidth={interactionWidth} />;
}

function curve(x: number, y: number, toX: number, toY: number): string {
  const half = toY >= y ? (toY - y) / 2 : Math.max(60, (y - toY) / 3);
  return `C${x} ${y + half} ${toX} ${toY - half} ${toX} ${toY}`;
}
