// A message as the contact would receive it. The HTML of an email is untrusted: it is shown in a sandbox without scripts or network.
import { useMemo } from "react";
import type { Message, Verdict } from "../types";

export function MessageBox({ message }: { message: Message }) {
  return (
    <div className="ewc-toast">
      <b>{message.title}</b>
      {message.html ? <Html html={message.body} /> : <div className="ewc-text">{message.body}</div>}
      <small>{message.destination}</small>
    </div>
  );
}

function Html({ html }: { html: string }) {
  const page = useMemo(() => sanitized(html), [html]);
  return <iframe className="ewc-mail" title="The email" sandbox="" srcDoc={page} referrerPolicy="no-referrer" />;
}

/**
 * The page without scripts, links and remote resources. DOMParser makes an inert document: parsing it loads and runs nothing.
 * The sandbox and the content security policy are a second line of defence.
 */
function sanitized(html: string): string {
  const page = new DOMParser().parseFromString(html, "text/html");
  for (const element of page.querySelectorAll("script, meta, base, link, iframe, frame, object, embed, form, portal")) element.remove();
  for (const element of page.querySelectorAll("*")) {
    for (const name of element.getAttributeNames()) {
      const value = element.getAttribute(name) ?? "";
      if (ACTIVE.test(name) || (SOURCE.test(name) && !/^data:image\//i.test(value))) element.removeAttribute(name);
      else if (name === "style") element.setAttribute(name, withoutRequests(value));
    }
    if (element.localName === "style") element.textContent = withoutRequests(element.textContent ?? "");
  }
  return `<!doctype html><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="${POLICY}">${page.documentElement.outerHTML}`;
}

/** A style sheet without anything that loads a resource. */
function withoutRequests(css: string): string {
  return css.replace(/\\/g, "").replace(/@import[^;]*;?/gi, "").replace(/(url|image-set|src)\s*\([^)]*\)?/gi, "none");
}

const SOURCE = /^(src|srcset|poster|data|imagesrcset|lowsrc|dynsrc)$/i;
const ACTIVE = /^(on.*|(.*:)?href|action|formaction|ping|target|srcdoc|background)$/i;
const POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; font-src data:; form-action 'none'; base-uri 'none'";

export function Verdicts({ verdicts }: { verdicts: Verdict[] }) {
  if (!verdicts.length) return null;
  return (
    <ul className="ewc-verdicts">
      {verdicts.map((verdict, index) => (
        <li key={index}><span className={verdict.passed ? "ewc-good" : "ewc-bad"}>{verdict.passed ? "✓" : "✗"}</span> {verdict.condition}: <span className="ewc-soft">{verdict.actual}</span></li>
      ))}
    </ul>
  );
}
