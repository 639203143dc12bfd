// A text with suggestions: typed or chosen, by mouse or keyboard.
import { useId, useRef, useState, type KeyboardEvent } from "react";

export interface Option {
  value: string;
  detail?: string;
}

interface Props {
  label: string;
  value: string;
  options: Option[];
  onChange: (value: string) => void;
  onPick?: (value: string) => void; // when it is chosen or entered, not while it is typed
  placeholder?: string;
  disabled?: boolean;
  invalid?: boolean;
}

const MOST = 60;

export function Combo({ label, value, options, onChange, onPick, placeholder, disabled, invalid }: Props) {
  const id = useId();
  const input = useRef<HTMLInputElement>(null);
  const [open, setOpen] = useState(false);
  const [at, setAt] = useState(-1);
  const [typed, setTyped] = useState(false);
  const wanted = typed ? value.toLowerCase() : "";
  const shown = options.filter((each) => each.value.toLowerCase().includes(wanted)).slice(0, MOST);

  const pick = (chosen: string) => {
    onChange(chosen);
    onPick?.(chosen);
    setOpen(false);
    setTyped(false);
    setAt(-1);
  };

  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      setOpen(true);
      setAt((now) => Math.min(Math.max(now + (event.key === "ArrowDown" ? 1 : -1), 0), shown.length - 1));
      event.preventDefault();
    } else if (event.key === "Enter") {
      pick(open && shown[at] ? shown[at].value : value);
      event.preventDefault();
    } else if (event.key === "Escape" && open) {
      setOpen(false);
      event.stopPropagation();
    }
  };

  return (
    <span className="ewc-combo">
      <input
        ref={input}
        role="combobox"
        aria-label={label}
        aria-expanded={open && shown.length > 0}
        aria-controls={id}
        aria-autocomplete="list"
        aria-activedescendant={open && at >= 0 ? `${id}-${at}` : undefined}
        aria-invalid={invalid || undefined}
        autoComplete="off"
        spellCheck={false}
        value={value}
        placeholder={placeholder}
        disabled={disabled}
        onFocus={() => setOpen(true)}
        onClick={() => setOpen(true)}
        onBlur={() => { setOpen(false); setTyped(false); }}
        onChange={(event) => { setTyped(true); setOpen(true); setAt(-1); onChange(event.target.value); }}
        onKeyDown={onKeyDown}
      />
      {open && shown.length > 0 && (
        <ul id={id} role="listbox" className="ewc-options" aria-label={label}>
          {shown.map((each, index) => (
            <li
              key={each.value}
              id={`${id}-${index}`}
              role="option"
              aria-selected={index === at}
              onMouseDown={(event) => { event.preventDefault(); pick(each.value); }}
            >
              <span>{each.value}</span>
              {each.detail && <small>{each.detail}</small>}
            </li>
          ))}
        </ul>
      )}
    </span>
  );
}
