// Banners: the kernel does not answer, someone else changed the automation, the result of the last action.
import { useEffect } from "react";
import type { Desk, View } from "./desk";

const LONG = 6_000;

export function Banners({ view, desk, reload, overwrite }: { view: View; desk: Desk; reload: () => void; overwrite: () => void }) {
  const { alive, unsent, status, notice } = view;
  useEffect(() => {
    if (notice?.look !== "good") return;
    const timer = setTimeout(() => desk.hush(), LONG);
    return () => clearTimeout(timer);
  }, [notice, desk]);
  return (
    <div aria-live="polite">
      {!alive && (
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
          <button type="button" className="ewc-x" aria-label="Dismiss" onClick={() => desk.hush()}>×</button>
        </div>
      )}
    </div>
  );
}
