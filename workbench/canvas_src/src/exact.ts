// Numbers that JavaScript would change travel as their digits: {"$exact": "1.0"} (workbench/canvas/document.py).
import type { Json, Obj } from "./types";

const NUMBER = /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/;

export function isNumber(value: Json | undefined): boolean {
  return typeof value === "number" || digitsOf(value) !== null;
}

/** The number somebody typed, or null when it is none. */
export function numberOf(text: string): Json | null {
  const digits = text.trim();
  if (!NUMBER.test(digits)) return null;
  const number = Number(digits);
  return String(number) === digits ? number : { $exact: digits };
}

export function isObject(value: Json | undefined): value is Obj {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function digitsOf(value: Json | undefined): string | null {
  const only = isObject(value) && Object.keys(value).length === 1 ? value.$exact : null;
  return typeof only === "string" ? only : null;
}

/** A value as a person reads it: texts as they are, everything else as JSON. */
export function written(value: Json | undefined): string {
  if (value === undefined) return "";
  return typeof value === "string" ? value : json(value);
}

/** JSON text of a value, every number in its own digits. */
export function json(value: Json, indent = ""): string {
  const digits = digitsOf(value);
  if (digits !== null) return digits;
  const deeper = `${indent}  `;
  if (Array.isArray(value)) return bracketed("[", value.map((each) => json(each, deeper)), "]", indent);
  if (!isObject(value)) return JSON.stringify(value);
  const inside = isObject(value.$object) && Object.keys(value).length === 1 ? value.$object : value;
  const members = Object.entries(inside).map(([name, each]) => `${JSON.stringify(name)}: ${json(each, deeper)}`);
  return bracketed("{", members, "}", indent);
}

function bracketed(open: string, parts: string[], close: string, indent: string): string {
  if (!parts.length) return open + close;
  return `${open}\n${indent}  ${parts.join(`,\n${indent}  `)}\n${indent}${close}`;
}

/** The value of a JSON text; throws a SyntaxError with the browser's own words. */
export function parse(text: string): Json {
  JSON.parse(text);
  return JSON.parse(marked(text)) as Json;
}

/** Puts digits in quotes where JavaScript would change the number: outside of texts every number is a token of its own. */
function marked(text: string): string {
  return text.replace(/"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*/g, (token) => {
    if (token.startsWith('"') || String(Number(token)) === token) return token;
    return `{"$exact":"${token}"}`;
  });
}
