// Small hooks shared by the components.
import { createContext, useContext, useEffect, useState, useSyncExternalStore } from "react";
import type { Desk, View } from "./desk";
import type { End } from "./graph";
import type { Sample, Trial } from "./types";

/** What is being tried: which sample, and what somebody has changed about it. */
export interface Tried {
  event: string;
  payload: string;
  person: string;
  label: string; // of the person
}

/** What this view is at: it is nobody else's business, so no part of the draft. */
export interface Stage {
  desk: Desk;
  selected: string[];
  select: (keys: string[] | ((now: string[]) => string[])) => void;
  target: End | null;
  aim: (end: End | null) => void;
  samples: Sample[];
  tried: Tried | null;
  try: (tried: Tried) => void;
  trial: Trial | null;
  show: (trial: Trial | null) => void;
}

export const StageContext = createContext<Stage | null>(null);

export function useStage(): Stage {
  const stage = useContext(StageContext);
  if (!stage) throw new Error("outside of a canvas");
  return stage;
}

export function useView(desk: Desk): View {
  return useSyncExternalStore(desk.subscribe, desk.current);
}

/** The value as it was `pause` ms ago, unless it has changed since. */
export function useSettled<T>(value: T, pause: number): T {
  const [settled, settle] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => settle(value), pause);
    return () => clearTimeout(timer);
  }, [value, pause]);
  return settled;
}

/** Whether the page around is dark: JupyterLab says so, elsewhere the system does. */
export function useDark(): boolean {
  const [dark, setDark] = useState(isDark);
  useEffect(() => {
    const look = () => setDark(isDark());
    const observer = new MutationObserver(look);
    observer.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light"] });
    const system = matchMedia("(prefers-color-scheme: dark)");
    system.addEventListener("change", look);
    return () => {
      observer.disconnect();
      system.removeEventListener("change", look);
    };
  }, []);
  return dark;
}

function isDark(): boolean {
  const light = document.body.dataset.jpThemeLight;
  return light === undefined ? matchMedia("(prefers-color-scheme: dark)").matches : light === "false";
}
