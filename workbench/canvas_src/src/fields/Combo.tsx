// A text field with suggestions: those like the typed text, and last the text itself. The first is highlighted, and Enter takes it.
import { useId, useState, type KeyboardEvent } from "react";
import { byLikeness } from "./likeness";

export interface Option {
  value: string;
  detail?: string;
}

interface Props {
  label: string;
  value: string;
  options: Option[];
  onChange: (value: string) => void;
  onPick?: (value: string) => void; // when a value is chosen or entered, not while it is typed
  exact?: boolean; // Enter takes the typed text: 100 is not a beginning of 1000
  placeholder?: string;
  disabled?: boolean;
  invalid?: boolean;
  autoFocus?: boolean;
}

const MAX_SHOWN = 60;

export function Combo({ label, value, options, onChange, onPick, exact, placeholder, disabled, invalid, autoFocus }: Props) {
  const id = useId();
  const [open, setOpen] = useState(false);
  const [active, setActive] = useState(-1); // index in `shown`
  const [typed, setTyped] = useState(false); // only a typed text filters: an opened field shows all options
  const alike = typed ? byLikeness(value, options) : options;
  const isNew = typed && value.trim() !== "" && alike.length > 0 && !options.some((option) => option.value === value);
  const shown: Option[] = [...alike.slice(0, MAX_SHOWN), ...(isNew ? [{ value, detail: "as typed" }] : [])];

  const pick = (chosen: string) => {
    onChange(chosen);
    onPick?.(chosen);
    setOpen(false);
    setTyped(false);
    setActive(-1);
  };

  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      setOpen(true);
      const step = event.key === "ArrowDown" ? 1 : -1;
      setActive((current) => (current < 0 && step < 0 ? shown.length - 1 : (current + step + shown.length) % Math.max(shown.length, 1)));
      event.preventDefault();
    } else if (event.key === "Enter") {
      pick(open && shown[active] ? shown[active].value : value);
      event.preventDefault();
    } else if (event.key === "Escape" && open) {
      setOpen(false);
      event.stopPropagation();
    }
  };

  return (
    <span className="ewc-combo">
      <input
        role="combobox"
        aria-label={label}
        aria-expanded={open && shown.length > 0}
        aria-controls={id}
        aria-autocomplete="list"
        aria-activedescendant={open && shown[active] ? `${id}-${active}` : undefined}
        aria-invalid={invalid || undefined}
        autoComplete="off"
        spellCheck={false}
        value={value}
        placeholder={placeholder}
        disabled={disabled}
        autoFocus={autoFocus}
        onFocus={() => setOpen(true)}
        onClick={() => setOpen(true)}
        onBlur={() => { setOpen(false); setTyped(false); }}
        onChange={(event) => { setTyped(true); setOpen(true); setActive(exact || !event.target.value.trim() ? -1 : 0); onChange(event.target.value); }}
        onKeyDown={onKeyDown}
      />
      {open && shown.length > 0 && (
        <ul id={id} role="listbox" className="ewc-options" aria-label={label} tabIndex={-1 /* Tab would stop at a list that scrolls */}>
          {shown.map((option, index) => (
            <li
              key={option.value}
              id={`${id}-${index}`}
              role="option"
              aria-selected={index === active}
              onMouseDown={(event) => { event.preventDefault(); pick(option.value); }}
            >
              <span>{option.value}</span>
              {option.detail && <small>{option.detail}</small>}
            </li>
          ))}
        </ul>
      )}
    </span>
  );
}
