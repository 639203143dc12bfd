// The icons of the cards. The static picture uses the same SVG (workbench/display/icons.json).
import icons from "../../display/icons.json";

const ICONS: Record<string, string> = icons;

export function Icon({ name, size = 18 }: { name: string; size?: number }) {
  return (
    <svg className="ewc-icon" width={size} height={size} viewBox="-10 -10 20 20" aria-hidden="true">
      {/* Safe: the SVG is bundled at build time; no text of a draft gets here. */}
      <g dangerouslySetInnerHTML={{ __html: ICONS[name] ?? ICONS.alert! }} />
    </svg>
  );
}
