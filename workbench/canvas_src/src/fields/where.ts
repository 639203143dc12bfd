// `where`, an expression beside the filters. Comparisons joined by “and” are edited as rows, all others as text.
import { displayText, isNumber, parseNumber } from "../json";
import type { Json, Obj, Operator } from "../types";

const PREFIX = "where ";
export const GREATER = `${PREFIX}>`;
// An unfinished path, such as `order.`, stays a row: the check reports it.
const COMPARISON = /^([\p{L}\p{N}_.]*) (>=?|<=?) (-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|"(?:[^"\\]|\\.)*")$/u;

/** Operators that rows have in addition to those of filters; they are written into `where`. */
export const COMPARISONS: Operator[] = [
  { name: GREATER, label: "is greater than", operand: "value" },
  { name: `${PREFIX}>=`, label: "is at least", operand: "value" },
  { name: `${PREFIX}<`, label: "is less than", operand: "value" },
  { name: `${PREFIX}<=`, label: "is at most", operand: "value" },
];

/** The rows of an expression, or null if rows cannot show it. */
export function rowsOf(where: string): Obj[] | null {
  const rows = where.trim() === "" ? [] : where.split(" and ").map(rowOf);
  return rows.every((row) => row !== null) ? rows : null;
}

/** The rows that stay filters, and the expression of the others. A row that cannot be compared becomes “is”. */
export function fromRows(rows: Obj[]): { filters: Obj[]; where: string | undefined } {
  const filters: Obj[] = [];
  const comparisons: string[] = [];
  for (const row of rows) {
    const text = isComparison(row.operator) ? `${row.path} ${String(row.operator).slice(PREFIX.length)} ${literal(row.value)}` : "";
    if (rowOf(text)) comparisons.push(text);
    else filters.push(isComparison(row.operator) ? { ...row, operator: "eq" } : row);
  }
  return { filters, where: comparisons.length ? comparisons.join(" and ") : undefined };
}

export function isComparison(operator: Json | undefined): boolean {
  return typeof operator === "string" && operator.startsWith(PREFIX);
}

function rowOf(text: string): Obj | null {
  const match = COMPARISON.exec(text);
  if (!match) return null;
  const [, path = "", sign = "", value = ""] = match;
  try {
    return { path, operator: PREFIX + sign, value: parseNumber(value) ?? JSON.parse(value) };
  } catch {
    return null;
  }
}

function literal(value: Json | undefined): string {
  return isNumber(value) ? displayText(value) : JSON.stringify(value ?? "");
}
