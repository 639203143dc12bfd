// A node: its card, its outgoing edges, its problems, the number of entries, and its mark in a test.
import { Handle, Position, useUpdateNodeInternals, type Node, type NodeProps } from "@xyflow/react";
import { memo, useEffect } from "react";
import { Icon } from "./Icon";
import { isPress } from "./keys";
import type { Card, Count, Mark, Diagnostic, Output } from "./types";

export interface StepData extends Record<string, unknown> {
  card: Card;
  trigger: boolean;
  diagnostics: Diagnostic[];
  count: Count | undefined;
  mark: Mark | "none" | undefined; // "none": not on the path of the simulation; undefined: no simulation
  offset: string; // time since the start of the simulation
  openHandles: readonly (string | null)[]; // handles without an edge
  targetHandle: string | null | undefined; // the handle at which the next step is added; undefined: none of this card
  onTarget: (handle: string | null) => void;
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
  const { card, diagnostics, mark } = data;
  const updateInternals = useUpdateNodeInternals();
  const handles = card.outputs.map((output) => output.handle).join("\n");
  // React Flow measures handles once; without this, edges would still start where a renamed or moved handle was.
  useEffect(() => updateInternals(id), [id, handles, card.height, updateInternals]);
  const level = diagnostics.some((diagnostic) => diagnostic.level === "error") ? "error" : "warning";
  const messages = diagnostics.map((diagnostic) => diagnostic.message);
  const faded = mark === "none";
  const shownMark = mark && mark !== "none" ? mark : null;
  return (
    <div className={`ewc-card${faded ? " ewc-faded" : ""}${selected ? " ewc-selected" : ""}`} style={{ background: faded ? undefined : card.color }}>
      {!data.trigger && <Handle type="target" position={Position.Top} className="ewc-in" />}
      <span className="ewc-disc"><Icon name={card.icon} /></span>
      <div className="ewc-kind"><span>{card.kind}</span>{data.offset && <b>{data.offset}</b>}</div>
      {card.title.map((line, index) => <div className="ewc-title" key={index}>{line}</div>)}
      {card.lines.length > 0 && <div className="ewc-lines">{card.lines.map((line, index) => <div key={index}>{line}</div>)}</div>}
      {messages.length > 0 && (
        <span className={`ewc-badge ewc-${level}${shownMark ? " ewc-left" : ""}`} title={messages.join("\n")} data-testid="problem">
          <span aria-hidden="true">!</span>
          <span className="ewc-sr">{messages.join("; ")}</span>
        </span>
      )}
      {shownMark && <span className={`ewc-badge ewc-mark-${shownMark}`} aria-label={MARK_WORDS[shownMark]}>{MARKS[shownMark]}</span>}
      {!card.outputs.length && <Handle type="source" position={Position.Bottom} className="ewc-in" isConnectable={false} />}
      <CountBadge count={data.count} />
      {card.outputs.map((output, index) => <OutputHandle key={output.handle ?? ""} output={output} index={index} of={card.outputs.length} data={data} />)}
    </div>
  );
});

function CountBadge({ count }: { count: Count | undefined }) {
  if (!count || !(count.live || count.passed || count.failed)) return null;
  const lines = count.messages.length ? count.messages : count.outcomes.map(({ outcome, count }): [string, number] => [outcome, count]);
  const title = lines.map(([word, number]) => `${word}: ${number.toLocaleString()}`).join("\n");
  return (
    <div className="ewc-counts" title={title}>
      {count.live > 0 && <span className="ewc-live" data-testid="live">● {count.live.toLocaleString()} here</span>}
      {count.figures.map(([word, number]) => <span key={word} className={word === "bounced" || word === "complaints" ? "ewc-failed" : undefined} data-testid={word}>{number.toLocaleString()} {word}</span>)}
      {!count.figures.length && count.passed > 0 && <span data-testid="passed">✓ {count.passed.toLocaleString()}</span>}
      {count.failed > 0 && <span className="ewc-failed" data-testid="failed">✗ {count.failed.toLocaleString()}</span>}
    </div>
  );
}

function OutputHandle({ output, index, of, data }: { output: Output; index: number; of: number; data: StepData }) {
  const isOpen = data.openHandles.includes(output.handle);
  const isTarget = data.targetHandle === output.handle;
  // Each output gets an equal part of the card's width, and its label stays inside: labels never touch. Python routes edges
  // from the same places (edge_routes in document.py).
  const left = `${((index + 0.5) / of) * 100}%`;
  const maxWidth = `calc(${100 / of}% - 8px)`;
  const { kind, title } = data.card;
  const label = `${isOpen ? "Add" : "Insert"} a step after ${kind}: ${title.join(" ")}${output.label && `, ${output.label}`}`;
  return (
    <>
      <Handle
        type="source"
        position={Position.Bottom}
        id={output.handle ?? undefined}
        className={`ewc-out${isOpen ? " ewc-open" : ""}`}
        style={{ left }}
        data-handle={output.handle ?? ""}
        role="button"
        aria-label={label}
        tabIndex={data.readOnly ? -1 : 0}
        title={isOpen ? "Drag to a step, or click and choose the next step" : "Drag to connect it to another step, or click to insert a step"}
        onClick={() => data.onTarget(output.handle)}
        onKeyDown={(event) => isPress(event) && data.onTarget(output.handle)}
      />
      {output.label && <span className="ewc-output" style={{ left, maxWidth }}>{output.label}</span>}
      {isOpen && !data.readOnly && <span className={`ewc-plus${isTarget ? " ewc-target" : ""}${output.label ? " ewc-lower" : ""}`} style={{ left }} aria-hidden="true">+</span>}
    </>
  );
}
