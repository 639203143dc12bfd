// The preview of one step with the sample event, computed by the interpreter of the engine whenever one of the two changes.
import { useEffect, useState } from "react";
import type { Preview, Step } from "../types";
import { useSettled, useStage, useView } from "../use";
import { MessageBox, Verdicts } from "./Message";
import { SampleForm } from "./Sample";

const PAUSE = 250;

export function PreviewBox({ id, step }: { id: string; step: Step }) {
  const { desk, tried } = useStage();
  const { sheet } = useView(desk);
  const [preview, setPreview] = useState<Preview | null>(null);
  const [wrong, setWrong] = useState("");
  const written = useSettled(step.data, PAUSE);
  const trigger = useSettled(sheet.trigger, PAUSE);
  const given = useSettled(tried, PAUSE);
  useEffect(() => {
    if (!given) return;
    let gone = false;
    desk.ask<Preview>("preview", { key: id, tried: { event: given.event, payload: given.payload, person: given.person } }).then(
      (value) => { if (!gone) { setPreview(value); setWrong(""); } },
      (error: Error) => { if (!gone) { setPreview(null); setWrong(error.message); } },
    );
    return () => { gone = true; };
  }, [desk, id, written, trigger, given]);
  if (!tried) return null;
  return (
    <section className="ewc-preview" aria-label="Preview">
      <h4>Preview</h4>
      <SampleForm short />
      <div aria-live="polite">
        {wrong && <p className="ewc-wrong">{wrong}</p>}
        {preview?.error && <p className="ewc-wrong" data-testid="preview-error">This would fail: {preview.error}</p>}
        {preview?.note && <p className="ewc-doubtful">{preview.note}</p>}
        {(preview?.title || preview?.body) && <MessageBox message={preview} />}
        {preview?.says && <p>{preview.says}</p>}
        {preview && <Verdicts asked={preview.asked} />}
      </div>
    </section>
  );
}
