// A message as its receiver would see it. HTML of an email is a stranger's: it is shown where nothing in it can do anything.
import { useMemo } from "react";
import type { Message, Verdict } from "../types";

export function MessageBox({ message }: { message: Message }) {
  return (
    <div className="ewc-toast">
      <b>{message.title}</b>
      {message.html ? <Html html={message.body} /> : <div className="ewc-text">{message.body}</div>}
      <small>{message.where}</small>
    </div>
  );
}

function Html({ html }: { html: string }) {
  const page = useMemo(() => harmless(html), [html]);
  return <iframe className="ewc-mail" title="The email" sandbox="" srcDoc={page} referrerPolicy="no-referrer" />;
}

/** The page without anything that asks the network or leads away: read in a document that loads and runs nothing. */
export function harmless(html: string): string {
  const page = new DOMParser().parseFromString(html, "text/html");
  for (const each of page.querySelectorAll("script, meta, base, link, iframe, frame, object, embed, form, portal")) each.remove();
  for (const each of page.querySelectorAll("*")) {
    for (const name of each.getAttributeNames()) {
      const value = each.getAttribute(name) ?? "";
      if (LEADS_AWAY.test(name) || (LOADS.test(name) && !/^data:image\//i.test(value))) each.removeAttribute(name);
      else if (name === "style") each.setAttribute(name, still(value));
    }
    if (each.localName === "style") each.textContent = still(each.textContent ?? "");
  }
  return `<!doctype html><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="${POLICY}">${page.documentElement.outerHTML}`;
}

/** A style sheet that loads nothing. */
function still(css: string): string {
  return css.replace(/\\/g, "").replace(/@import[^;]*;?/gi, "").replace(/(url|image-set|src)\s*\([^)]*\)?/gi, "none");
}

const LOADS = /^(src|srcset|poster|data|imagesrcset|lowsrc|dynsrc)$/i;
const LEADS_AWAY = /^(on.*|(.*:)?href|action|formaction|ping|target|srcdoc|background)$/i;
const POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; font-src data:; form-action 'none'; base-uri 'none'";

export function Verdicts({ asked }: { asked: Verdict[] }) {
  if (!asked.length) return null;
  return (
    <ul className="ewc-verdicts">
      {asked.map((each, index) => (
        <li key={index}><span className={each.passed ? "ewc-good" : "ewc-bad"}>{each.passed ? "✓" : "✗"}</span> {each.asked}: <span className="ewc-soft">{each.found}</span></li>
      ))}
    </ul>
  );
}
