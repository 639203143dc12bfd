// The event and the contact of a test: a real event, which can be edited.
import { useId, useState } from "react";
import { Combo } from "../fields/Combo";
import { useStage } from "../use";

export function SampleForm({ short }: { short?: boolean }) {
  const { desk, samples, tried, try: take } = useStage();
  const id = useId();
  const [wanted, setWanted] = useState<string | null>(null);
  const [wrong, setWrong] = useState("");
  if (!tried) return null;
  const at = samples.findIndex((each) => each.event === tried.event && each.payload === tried.payload && each.contactId === tried.person);
  const people = [...new Map(samples.filter((each) => each.contactId).map((each) => [each.contactId, each.contact])).entries()];

  const find = async (text: string) => {
    const known = people.find(([, label]) => label === text);
    if (known) { setWrong(""); setWanted(null); take({ ...tried, person: known[0], label: known[1] }); return; }
    if (!text.trim()) { setWrong(""); setWanted(null); take({ ...tried, person: "", label: "" }); return; }
    try {
      const found = await desk.ask<{ id: string; label: string }>("person", { wanted: text });
      take({ ...tried, person: found.id, label: found.label });
      setWanted(null);
      setWrong("");
    } catch (error) {
      setWrong((error as Error).message);
    }
  };

  return (
    <div className="ewc-sample">
      <label htmlFor={id}>Sample event</label>
      <select id={id} value={at} onChange={(event) => {
        const chosen = samples[Number(event.target.value)];
        if (chosen) take({ event: chosen.event, payload: chosen.payload, person: chosen.contactId, label: chosen.contact });
      }}>
        {at < 0 && <option value={-1}>{tried.event}, edited</option>}
        {samples.map((each, index) => <option key={index} value={index}>{each.label}{each.contact ? ` · ${each.contact}` : ""}</option>)}
      </select>
      <span className="ewc-caption">Sample contact</span>
      <Combo label="Sample contact" value={wanted ?? tried.label} options={people.map(([, label]) => ({ value: label }))} placeholder="new contact; or an email, wallet, id"
        onChange={setWanted} onPick={(text) => void find(text)} />
      {wrong && <span className="ewc-wrong">{wrong}</span>}
      {!short && (
        <>
          <label htmlFor={`${id}-payload`}>Payload</label>
          <textarea id={`${id}-payload`} className="ewc-code" rows={6} spellCheck={false} value={tried.payload} onChange={(event) => take({ ...tried, payload: event.target.value })} />
        </>
      )}
    </div>
  );
}
