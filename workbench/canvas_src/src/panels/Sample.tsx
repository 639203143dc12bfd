// The sample event and the sample contact: real ones, which the user can edit.
import { useId, useState } from "react";
import { Combo } from "../fields/Combo";
import { localesOf } from "../graph";
import { useCanvas, useCanvasState } from "../hooks";

export function SampleForm({ short }: { short?: boolean }) {
  const { store, samples, sampleInput, setSampleInput } = useCanvas();
  const { draft } = useCanvasState(store);
  const id = useId();
  const [query, setQuery] = useState<string | null>(null);
  const [error, setError] = useState("");
  if (!sampleInput) return null;
  const chosen = samples.findIndex((sample) => sample.event === sampleInput.event && sample.payload === sampleInput.payload && sample.contactId === sampleInput.contactId);
  const locales = localesOf(draft).length ? [...new Set([...localesOf(draft), sampleInput.locale])].filter((locale) => locale && locale !== "default") : [];
  const contacts = [...new Map(samples.filter((sample) => sample.contactId).map((sample) => [sample.contactId, sample.contact])).entries()];

  const setContact = (contactId: string, contact: string) => {
    setSampleInput({ ...sampleInput, contactId, contact });
    setQuery(null);
    setError("");
  };
  const findContact = async (text: string) => {
    const listed = contacts.find(([, label]) => label === text);
    if (listed) return setContact(...listed);
    if (!text.trim()) return setContact("", "");
    try {
      const contact = await store.request<{ id: string; label: string }>("contact", { query: text });
      setContact(contact.id, contact.label);
    } catch (reason) {
      setError((reason as Error).message);
    }
  };

  const isStart = samples.length > 0 && samples.every((sample) => sample.event === draft.trigger.type); // only its contact differs
  return (
    <div className="ewc-sample">
      {!isStart && (
        <>
          <label htmlFor={id}>Sample event</label>
          <select id={id} value={chosen} onChange={(change) => {
            const sample = samples[Number(change.target.value)];
            if (sample) setSampleInput({ ...sampleInput, event: sample.event, payload: sample.payload, contactId: sample.contactId, contact: sample.contact });
          }}>
            {chosen < 0 && <option value={-1}>{sampleInput.event}, edited</option>}
            {samples.map((sample, index) => <option key={index} value={index}>{sample.label}{sample.contact ? ` · ${sample.contact}` : ""}</option>)}
          </select>
        </>
      )}
      <span className="ewc-caption">Sample contact</span>
      <Combo exact label="Sample contact" value={query ?? sampleInput.contact} options={contacts.map(([, label]) => ({ value: label }))} placeholder="new contact; or an email, wallet, id"
        onChange={setQuery} onPick={(text) => void findContact(text)} />
      {error && <span className="ewc-wrong">{error}</span>}
      {locales.length > 0 && (
        <>
          <label htmlFor={`${id}-locale`}>Texts in</label>
          <select id={`${id}-locale`} value={sampleInput.locale} onChange={(change) => setSampleInput({ ...sampleInput, locale: change.target.value })}>
            <option value="">the locale of the contact</option>
            <option value="default">no locale: the default texts</option>
            {locales.map((locale) => <option key={locale}>{locale}</option>)}
          </select>
        </>
      )}
      {!short && !isStart && (
        <>
          <label htmlFor={`${id}-payload`}>Payload</label>
          <textarea id={`${id}-payload`} className="ewc-code" rows={6} spellCheck={false} value={sampleInput.payload} onChange={(change) => setSampleInput({ ...sampleInput, payload: change.target.value })} />
        </>
      )}
    </div>
  );
}
