// The preview of one step with the sample event, computed again whenever one of the two changes.
import { useEffect, useState } from "react";
import { sampleOf, useCanvas, useCanvasState, useDebounced } from "../hooks";
import type { Preview, Step } from "../types";
import { MessageBox, Verdicts } from "./Message";
import { SampleForm } from "./Sample";

const PAUSE_MS = 250; // after the last keystroke

export function PreviewBox({ id, step }: { id: string; step: Step }) {
  const { store, sampleInput } = useCanvas();
  const { draft } = useCanvasState(store);
  const [preview, setPreview] = useState<Preview | null>(null);
  const [error, setError] = useState("");
  const data = useDebounced(step.data, PAUSE_MS);
  const trigger = useDebounced(draft.trigger, PAUSE_MS);
  const settings = useDebounced(draft.extra.settings, PAUSE_MS);
  const input = useDebounced(sampleInput, PAUSE_MS);
  useEffect(() => {
    if (!input) return;
    let outdated = false; // a newer request is under way: its answer may arrive before this one
    store.request<Preview>("preview", { key: id, sample: sampleOf(input) }).then(
      (value) => { if (!outdated) { setPreview(value); setError(""); } },
      (reason: Error) => { if (!outdated) { setPreview(null); setError(reason.message); } },
    );
    return () => { outdated = true; };
  }, [store, id, data, trigger, settings, input]);
  if (!sampleInput) return null;
  return (
    <section className="ewc-preview" aria-label="Preview">
      <h4>Preview</h4>
      <SampleForm short />
      <div aria-live="polite">
        {error && <p className="ewc-wrong">{error}</p>}
        {preview?.error && <p className="ewc-wrong" data-testid="preview-error">This would fail: {preview.error}</p>}
        {preview?.note && <p className="ewc-doubtful">{preview.note}</p>}
        {(preview?.title || preview?.body) && <MessageBox message={preview} />}
        {preview?.text && <p>{preview.text}</p>}
        {preview && <Verdicts verdicts={preview.verdicts} />}
      </div>
    </section>
  );
}
