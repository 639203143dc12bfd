// Builds the canvas into one ES module and one style sheet that need nothing from outside, and notes what they were built from.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const into = "../static";

await build({
  entryPoints: { canvas: "src/index.tsx" },
  outdir: into,
  bundle: true,
  format: "esm",
  minify: true,
  target: "es2022",
  jsx: "automatic",
  define: { "process.env.NODE_ENV": '"production"' },
  legalComments: "linked",
  charset: "utf8",
  logLevel: "warning",
});

const modules = readdirSync("src", { recursive: true, withFileTypes: true }).filter((each) => each.isFile());
const sources = ["build.mjs", "package-lock.json", "../display/looks.json", ...modules.map((each) => `${each.parentPath}/${each.name}`)];
const digest = createHash("sha256");
for (const path of sources.sort()) digest.update(`${path}\n`).update(readFileSync(path));
writeFileSync(`${into}/canvas.sources`, `${digest.digest("hex")}\n`);
