// Compiles the application into `dist`: `node build.js`.
import { build } from "esbuild";
import { createRequire } from "node:module";
import { dirname } from "node:path";

const path = (name) => new URL(name, import.meta.url).pathname;
const options = { bundle: true, format: "esm", outdir: path("dist"), logLevel: "warning" };
await build({ ...options, entryPoints: [path("server.ts")], platform: "node", packages: "external" });
// `@sinews/react` is a link to a folder of this repository, which may have a React of its own.
const alias = { react: dirname(createRequire(import.meta.url).resolve("react/package.json")) };
await build({ ...options, entryPoints: [path("page.tsx")], minify: true, jsx: "automatic", alias });
