// A field of a form with its label, its diagnostics, and a hint.
import type { ReactNode } from "react";
import type { Diagnostic } from "../types";

export function Labelled({ label, hint, htmlFor, diagnostics = [], children }: { label?: string; hint?: string; htmlFor?: string; diagnostics?: Diagnostic[]; children: ReactNode }) {
  return (
    <div className="ewc-field">
      {htmlFor ? <label htmlFor={htmlFor}>{label}</label> : label && <span className="ewc-caption">{label}</span>}
      {children}
      {diagnostics.map((diagnostic) => <span key={diagnostic.message} className={diagnostic.level === "error" ? "ewc-wrong" : "ewc-doubtful"}>{diagnostic.message}</span>)}
      {hint && <small className="ewc-soft">{hint}</small>}
    </div>
  );
}
