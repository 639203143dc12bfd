// JSON with exact numbers. A number that JavaScript would change travels as its digits: {"$exact": "1.0"} (see document.py).
import type { Json, Obj } from "./types";

const NUMBER = /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/;

export function isNumber(value: Json | undefined): boolean {
  return typeof value === "number" || digitsOf(value) !== null;
}

/** The number in a text, or null if it is not a number. */
export function parseNumber(text: string): Json | null {
  const digits = text.trim();
  if (!NUMBER.test(digits)) return null;
  const number = Number(digits);
  return String(number) === digits ? number : { $exact: digits };
}

export function isObject(value: Json | undefined): value is Obj {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function digitsOf(value: Json | undefined): string | null {
  const digits = isObject(value) && Object.keys(value).length === 1 ? value.$exact : null;
  return typeof digits === "string" ? digits : null;
}

/** A value for people to read: texts without quotes, everything else as JSON. */
export function displayText(value: Json | undefined): string {
  if (value === undefined) return "";
  return typeof value === "string" ? value : formatJson(value);
}

/** The JSON text of a value, every number in its own digits. */
export function formatJson(value: Json, indent = ""): string {
  const digits = digitsOf(value);
  if (digits !== null) return digits;
  const deeper = `${indent}  `;
  if (Array.isArray(value)) return bracketed("[", value.map((item) => formatJson(item, deeper)), "]", indent);
  if (!isObject(value)) return JSON.stringify(value);
  const object = isObject(value.$object) && Object.keys(value).length === 1 ? value.$object : value;
  const members = Object.entries(object).map(([name, member]) => `${JSON.stringify(name)}: ${formatJson(member, deeper)}`);
  return bracketed("{", members, "}", indent);
}

function bracketed(open: string, parts: string[], close: string, indent: string): string {
  if (!parts.length) return open + close;
  return `${open}\n${indent}  ${parts.join(`,\n${indent}  `)}\n${indent}${close}`;
}

/** The value of a JSON text; throws the SyntaxError of the browser. */
export function parseJson(text: string): Json {
  JSON.parse(text); // first as it is, so that the position in an error refers to what the user typed
  // Outside of strings every number is a token of its own, so it can be replaced with its digits in quotes.
  const exact = text.replace(/"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*/g, (token) => {
    if (token.startsWith('"') || String(Number(token)) === token) return token;
    return `{"$exact":"${token}"}`;
  });
  return JSON.parse(exact) as Json;
}
