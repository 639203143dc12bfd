// Builds the canvas into one ES module and one style sheet that need nothing from outside.
import { build } from "esbuild";

const into = process.argv[2] ?? "../static";

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
