// What a notebook displays in a cell, on the canvas: a backtest, a test send, the versions, and the automations.
import { useEffect, useState, type FormEvent } from "react";
import { sampleOf, useCanvas, useCanvasState } from "../hooks";
import { Dialog } from "./Dialogs";
import { SampleForm } from "./Sample";

export const DISPLAYS = {
  send_test: "Send a test",
  backtest: "Backtest",
  versions: "Versions",
  automations: "All automations",
};
export type DisplayName = keyof typeof DISPLAYS;

export function DisplayDialog({ name, close }: { name: DisplayName; close: () => void }) {
  const { store, sampleInput } = useCanvas();
  const { choices, status } = useCanvasState(store);
  const [html, setHtml] = useState("");
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  const [days, setDays] = useState(30);
  const [compares, setCompares] = useState(false);
  const [to, setTo] = useState<Record<string, string>>({});
  const hasForm = name === "send_test" || name === "backtest";

  const load = async () => {
    const sample = sampleInput ? sampleOf(sampleInput) : { event: "event" };
    const addresses = Object.fromEntries(Object.entries(to).filter(([, address]) => address.trim()));
    setBusy(true);
    setError("");
    setHtml("");
    try {
      setHtml(await store.request<string>("display", { of: name, days, against: compares ? "published" : null, sample, to: addresses }));
    } catch (reason) {
      setError((reason as Error).message);
    }
    setBusy(false);
  };
  useEffect(() => {
    if (!hasForm) void load();
  }, []);
  const onSubmit = (event: FormEvent) => {
    event.preventDefault();
    void load();
  };

  return (
    <Dialog title={DISPLAYS[name]} close={close} wide>
      {hasForm && (
        <form className="ewc-form" onSubmit={onSubmit}>
          {name === "backtest" && (
            <>
              <p className="ewc-soft">What this draft would have done with the stored events. Nothing is sent.</p>
              <label className="ewc-row">Days <input type="number" min={1} required value={days} onChange={(event) => setDays(Number(event.target.value))} /></label>
              {status.state !== "draft" && <label className="ewc-switch"><input type="checkbox" checked={compares} onChange={(event) => setCompares(event.target.checked)} /> Compare with the published version</label>}
            </>
          )}
          {name === "send_test" && (
            <>
              <p className="ewc-soft">The messages for the sample event, sent to you. Contacts receive nothing.</p>
              <SampleForm short />
              {choices.channels.map(({ address, noun }) => (
                <label key={address} className="ewc-field">
                  <span className="ewc-caption">Send {noun} to</span>
                  <input type="text" value={to[address] ?? ""} onChange={(event) => setTo({ ...to, [address]: event.target.value })} />
                </label>
              ))}
            </>
          )}
          <div className="ewc-ends">
            <button type="submit" className="ewc-button ewc-primary" disabled={busy}>{name === "backtest" ? "Run the backtest" : "Send the test"}</button>
          </div>
        </form>
      )}
      <div aria-live="polite" data-testid="display">
        {busy && <p className="ewc-soft">Please wait …</p>}
        {error && <p className="ewc-wrong">{error}</p>}
        {/* Safe: the templates of Python escape every value, as for the output of a cell. */}
        {html && <div dangerouslySetInnerHTML={{ __html: html }} />}
      </div>
      <div className="ewc-ends"><button type="button" className="ewc-button" onClick={close}>Close</button></div>
    </Dialog>
  );
}
