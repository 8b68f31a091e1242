// Generates the files for CommonJS beside the modules, before the package is packed: `npm pack` runs it.
import { readFileSync, writeFileSync } from "node:fs";

const file = (name) => new URL(name, import.meta.url);
const read = (name) => readFileSync(file(name), "utf8");

for (const name of ["sinews", "core"]) {
  const exported = [];
  const text = read(`${name}.js`)
    .replace(/^import (\{.*\}) from "\.\/(\w+)\.js";$/gm, (_, names, from) => `const ${names} = require("./${from}.cjs");`)
    .replace(/^export (?=(?:class|function) (\w+))/gm, (_, declared) => (exported.push(declared), ""))
    .replace(/^export \{ (.*) \};$/gm, (_, names) => {
      exported.push(...names.split(", ").map((one) => one.split(" as ").reverse().join(": ")));
      return "";
    });
  if (/^(?:import|export) /m.test(text)) throw new Error(`${name}.js has an import or export of another form`);
  writeFileSync(file(`${name}.cjs`), `"use strict";\n${text}\nmodule.exports = { ${exported.join(", ")} };\n`);
  writeFileSync(file(`${name}.d.cts`), read(`${name}.d.ts`).replaceAll('"./sinews.js"', '"./sinews.cjs"'));
}
