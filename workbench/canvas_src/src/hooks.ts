// Hooks shared by the components.
import { createContext, useContext, useEffect, useState, useSyncExternalStore } from "react";
import type { CanvasState, CanvasStore } from "./store";
import type { OutputEnd } from "./graph";
import type { Sample, Simulation } from "./types";

/** The event and the contact to test with, chosen from the samples and possibly edited. */
export interface SampleInput {
  event: string;
  payload: string;
  contactId: string;
  contact: string; // its label
  locale: string; // of the texts; empty: the contact's
}

/** The sample as Python takes it. */
export function sampleOf({ event, payload, contactId, locale }: SampleInput) {
  return { event, payload, contact: contactId, locale };
}

/** State of this view that is not part of the draft, such as the selection: other views have their own. */
export interface CanvasContextValue {
  store: CanvasStore;
  selected: string[];
  select: (keys: string[] | ((selected: string[]) => string[])) => void;
  target: OutputEnd | null; // the output at which the next step is added
  setTarget: (end: OutputEnd | null) => void;
  samples: Sample[];
  sampleInput: SampleInput | null;
  setSampleInput: (input: SampleInput) => void;
  simulation: Simulation | null;
}

export const CanvasContext = createContext<CanvasContextValue | null>(null);

export function useCanvas(): CanvasContextValue {
  const context = useContext(CanvasContext);
  if (!context) throw new Error("useCanvas() outside of a canvas");
  return context;
}

export function useCanvasState(store: CanvasStore): CanvasState {
  return useSyncExternalStore(store.subscribe, store.current);
}

/** The value, once it has not changed for `pauseMs`. */
export function useDebounced<T>(value: T, pauseMs: number): T {
  const [debounced, setDebounced] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setDebounced(value), pauseMs);
    return () => clearTimeout(timer);
  }, [value, pauseMs]);
  return debounced;
}

/** Whether the page is dark: by the theme of JupyterLab, elsewhere by the setting of the system. */
export function useDark(): boolean {
  const [dark, setDark] = useState(isDark);
  useEffect(() => {
    const refresh = () => setDark(isDark());
    const observer = new MutationObserver(refresh);
    observer.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light"] });
    const system = matchMedia("(prefers-color-scheme: dark)");
    system.addEventListener("change", refresh);
    return () => {
      observer.disconnect();
      system.removeEventListener("change", refresh);
    };
  }, []);
  return dark;
}

function isDark(): boolean {
  const light = document.body.dataset.jpThemeLight;
  return light === undefined ? matchMedia("(prefers-color-scheme: dark)").matches : light === "false";
}
