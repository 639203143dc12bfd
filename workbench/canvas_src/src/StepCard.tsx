// A node: its card, its outgoing edges, its problems, the number of entries, and its mark in a test.
import { Handle, Position, useUpdateNodeInternals, type Node, type NodeProps } from "@xyflow/react";
import { memo, useEffect } from "react";
import { Icon } from "./Icon";
import type { Card, Count, Mark, Remark, Way } from "./types";

export interface StepData extends Record<string, unknown> {
  card: Card;
  trigger: boolean;
  remarks: Remark[];
  count: Count | undefined;
  mark: Mark | "none" | undefined; // "none": a trial went by
  offset: string;
  open: readonly (string | null)[]; // ways that lead nowhere yet
  aimed: string | null | undefined; // the way at which the next step will be put
  aim: (handle: string | null) => void;
  readOnly: boolean;
}

export type StepNode = Node<StepData, "step">;

const MARKS: Record<Mark, string> = { done: "✓", failed: "✗", waiting: "⏲", skipped: "»", goal: "⚑" };
const MARK_WORDS: Record<Mark, string> = {
  done: "done",
  failed: "failed",
  waiting: "waiting",
  skipped: "skipped",
  goal: "goal reached",
};

export const StepCard = memo(function StepCard({ id, data, selected }: NodeProps<StepNode>) {
  const { card, remarks, mark } = data;
  const measure = useUpdateNodeInternals();
  const ways = card.ways.map((way) => way.handle).join("\n");
  useEffect(() => measure(id), [id, ways, card.height, measure]); // React Flow looks for the ends of edges only when told
  const errors = remarks.filter((each) => each.level === "error");
  const worst = errors.length ? "error" : remarks.length ? "warning" : null;
  const faded = mark === "none";
  return (
    <div className={`ewc-card${faded ? " ewc-faded" : ""}${selected ? " ewc-selected" : ""}`} style={{ background: faded ? undefined : card.color }}>
      {!data.trigger && <Handle type="target" position={Position.Top} className="ewc-in" />}
      <span className="ewc-disc"><Icon name={card.icon} /></span>
      <div className="ewc-kind"><span>{card.kind}</span>{data.offset && <b>{data.offset}</b>}</div>
      {card.title.map((line, index) => <div className="ewc-title" key={index}>{line}</div>)}
      {card.lines.length > 0 && <div className="ewc-lines">{card.lines.map((line, index) => <div key={index}>{line}</div>)}</div>}
      {worst && (
        <span className={`ewc-badge ewc-${worst}${mark && mark !== "none" ? " ewc-left" : ""}`} title={remarks.map((each) => each.message).join("\n")} data-testid="problem">
          <span aria-hidden="true">!</span>
          <span className="ewc-sr">{remarks.map((each) => each.message).join("; ")}</span>
        </span>
      )}
      {mark && mark !== "none" && <span className={`ewc-badge ewc-mark-${mark}`} aria-label={MARK_WORDS[mark]}>{MARKS[mark]}</span>}
      {!card.ways.length && <Handle type="source" position={Position.Bottom} className="ewc-in" isConnectable={false} />}
      <Counted count={data.count} />
      {card.ways.map((way, index) => <WayOut key={way.handle ?? ""} way={way} share={(index + 1) / (card.ways.length + 1)} data={data} />)}
    </div>
  );
});

function Counted({ count }: { count: Count | undefined }) {
  if (!count || !(count.live || count.passed || count.failed)) return null;
  const title = count.outcomes.map((each) => `${each.says}: ${each.count}`).join("\n");
  return (
    <div className="ewc-counts" title={title}>
      {count.live > 0 && <span className="ewc-live" data-testid="live">● {count.live.toLocaleString()} here</span>}
      {count.passed > 0 && <span data-testid="passed">✓ {count.passed.toLocaleString()}</span>}
      {count.failed > 0 && <span className="ewc-failed" data-testid="failed">✗ {count.failed.toLocaleString()}</span>}
    </div>
  );
}

function WayOut({ way, share, data }: { way: Way; share: number; data: StepData }) {
  const open = data.open.includes(way.handle);
  const aimed = data.aimed !== undefined && data.aimed === way.handle;
  const left = `${share * 100}%`;
  return (
    <>
      <Handle
        type="source"
        position={Position.Bottom}
        id={way.handle ?? undefined}
        className={`ewc-out${open ? " ewc-open" : ""}`}
        style={{ left }}
        data-way={way.handle ?? ""}
        title={open ? "Drag to a step, or click and choose the next step" : "Drag to connect it to another step, or click to insert a step"}
        onClick={() => data.aim(way.handle)}
      />
      {way.label && <span className="ewc-way" style={{ left }}>{way.label}</span>}
      {open && !data.readOnly && <span className={`ewc-plus${aimed ? " ewc-aimed" : ""}${way.label ? " ewc-lower" : ""}`} style={{ left }} aria-hidden="true">+</span>}
    </>
  );
}
