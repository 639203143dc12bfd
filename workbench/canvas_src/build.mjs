// Builds the canvas into one ES module and one style sheet without external dependencies. canvas.sources contains a digest of the
// sources; a test compares it, so that a change cannot be committed without its build.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const outdir = "../static";

await build({
  entryPoints: { canvas: "src/index.tsx" },
  outdir,
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

const files = readdirSync("src", { recursive: true, withFileTypes: true }).filter((file) => file.isFile());
const sources = ["build.mjs", "package-lock.json", "../display/icons.json", ...files.map((file) => `${file.parentPath}/${file.name}`)];
const digest = createHash("sha256");
for (const path of sources.sort()) digest.update(`${path}\n`).update(readFileSync(path));
writeFileSync(`${outdir}/canvas.sources`, `${digest.digest("hex")}\n`);
