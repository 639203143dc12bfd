// Banners: the kernel does not answer, someone else changed the automation, the result of the last action.
import { useEffect } from "react";
import type { CanvasStore, CanvasState } from "./store";

const NOTICE_MS = 6_000; // an error stays until it is dismissed

export function Banners({ state, store, reload, overwrite }: { state: CanvasState; store: CanvasStore; reload: () => void; overwrite: () => void }) {
  const { kernelAlive, unsent, status, notice } = state;
  useEffect(() => {
    if (notice?.look !== "good") return;
    const timer = setTimeout(() => store.clearNotice(), NOTICE_MS);
    return () => clearTimeout(timer);
  }, [notice, store]);
  return (
    <div aria-live="polite">
      {!kernelAlive && (
        <div className="ewc-banner ewc-banner-bad" role="alert">
          The kernel does not answer. {unsent ? "Your last changes have not reached it; they are sent again when it does. " : ""}If it was restarted, run the cell again.
        </div>
      )}
      {status.stale && (
        <div className="ewc-banner ewc-banner-warn" data-testid="stale">
          <span>{status.stale}</span>
          <button type="button" className="ewc-button" onClick={reload}>Load theirs</button>
          <button type="button" className="ewc-button" onClick={overwrite}>Keep mine</button>
        </div>
      )}
      {notice && (
        <div className={`ewc-banner ewc-banner-${notice.look}`} data-testid="notice">
          <span>{notice.text}</span>
          <button type="button" className="ewc-x" aria-label="Dismiss" onClick={() => store.clearNotice()}>×</button>
        </div>
      )}
    </div>
  );
}
