import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { gzipSync } from "node:zlib";

import { build } from "esbuild";

import * as client from "../sinews.js";
import { folder, serve } from "./server.js";

const run = promisify(execFile);
const root = fileURLToPath(new URL("..", import.meta.url));
const limit = { timeout: 300_000 };
const flags = process.execArgv.filter((flag) => flag === "--experimental-websocket");
/** Programs of other runtimes, and their arguments before a script. Their packages have a folder for each platform. */
const RUNTIMES = [
  ["deno", "node_modules/@deno/*/deno", ["run", "--allow-net", "--allow-read"]],
  ["bun", "node_modules/@oven/*/bin/bun", ["run"]],
];

const cleanups = [];
let project;
let packed;
let server;

// The package as npm would publish it, in an empty project without a network.
before(async () => {
  const scope = { after: (cleanup) => cleanups.push(cleanup) };
  project = folder(scope);
  server = await serve(scope, ["--streams", folder(scope), "--history", "chat.>=100"]);
  const { stdout } = await run("npm", ["pack", "--json", "--pack-destination", project], { cwd: root });
  [packed] = Object.values(JSON.parse(stdout));
  writeFileSync(join(project, "package.json"), JSON.stringify({ private: true, type: "module" }));
  const install = ["install", "--offline", "--ignore-scripts", "--no-audit", "--no-fund", join(project, packed.filename)];
  await run("npm", install, { cwd: project });
}, limit);

after(async () => {
  for (const cleanup of cleanups.reverse()) await cleanup();
});

/** Pages of the book whose programs run like those of the README. A copy of the package is not beside the book. */
const BOOK = process.env.SINEWS_BOOK ?? join(root, "../../docs/book/src");
const PAGES = ["presence", "history"].map((name) => join(BOOK, `server/${name}.md`));

/** The code blocks of documents in a language, for this server. */
function blocks(language, ...documents) {
  const readme = [join(root, "README.md"), ...documents].map((path) => readFileSync(path, "utf8")).join("\n");
  const found = readme.matchAll(new RegExp(`^\`\`\`${language}\n(.*?)^\`\`\``, "gms"));
  return [...found].map(([, code]) => code.replaceAll("ws://127.0.0.1:8080/ws", server.url));
}

test("the package contains the client, its types and its licenses", limit, () => {
  const names = packed.files.map(({ path }) => path).sort();
  const built = ["core", "sinews"].flatMap((name) => ["cjs", "d.cts", "d.ts", "js"].map((end) => `${name}.${end}`));
  assert.deepEqual(names, ["LICENSE-APACHE", "LICENSE-MIT", "README.md", ...built, "package.json"].sort());
});

test("the server serves the file of the package", limit, async () => {
  for (const name of ["sinews.js", "sinews.d.ts"]) {
    const served = await (await fetch(`${server.http}/${name}`)).text();
    assert.equal(served, readFileSync(join(project, "node_modules/@sinews/client", name), "utf8"));
  }
});

test("the installed package is imported by its name", limit, async () => {
  const script = "import * as client from '@sinews/client'; console.log(Object.keys(client).join())";
  const { stdout } = await run(process.execPath, ["--input-type=module", "--eval", script], { cwd: project });
  assert.equal(stdout.trim(), "Client,CoreClient,SinewsError,connect");
  const core = "import * as core from '@sinews/client/core'; console.log(Object.keys(core).join())";
  assert.equal((await run(process.execPath, ["--input-type=module", "--eval", core], { cwd: project })).stdout.trim(), "Client,SinewsError,connect");
});

test("each program of the README and of the book runs", limit, async () => {
  const programs = blocks("js", ...PAGES);
  assert.equal(programs.length, 6 + PAGES.length);
  for (const [number, program] of programs.entries()) {
    const file = join(project, `readme-${number}.js`);
    writeFileSync(file, program);
    const { stdout } = await run(process.execPath, [...flags, "--no-warnings", file], { cwd: project, timeout: 120_000 });
    assert.notEqual(stdout, "", `program ${number} prints nothing`);
  }
});

test("the types accept programs, and find errors", limit, async () => {
  const compiler = join(root, "node_modules/typescript/bin/tsc");
  const programs = { "types.ts": readFileSync(new URL("types.ts", import.meta.url), "utf8") };
  for (const [number, program] of blocks("ts").entries()) programs[`readme-${number}.ts`] = program;
  assert.equal(Object.keys(programs).length, 4);
  for (const [name, program] of Object.entries(programs)) writeFileSync(join(project, name), program);
  // The same program as a module, and as CommonJS, which has no `await` outside of functions.
  const commonJs = `${programs["types.ts"].replace("\nconst client: Client", "\nexport async function main() {$&")}}\n`;
  writeFileSync(join(project, "types.cts"), commonJs);
  for (const [resolution, files] of [
    [["--module", "nodenext"], [...Object.keys(programs), "types.cts"]],
    [["--module", "node16"], [...Object.keys(programs), "types.cts"]],
    [["--module", "esnext", "--moduleResolution", "bundler"], Object.keys(programs)],
  ]) {
    const options = ["--noEmit", "--strict", "--target", "es2022", "--lib", "es2022,dom", "--types", "", "--ignoreConfig", ...resolution];
    const result = await run(process.execPath, [compiler, ...options, ...files], { cwd: project }).catch((error) => error);
    assert.equal(result.stdout, "", "errors of the compiler");
  }
});

test("the types name the methods of the client, and no others", limit, () => {
  const types = readFileSync(join(root, "sinews.d.ts"), "utf8");
  for (const [name, fields] of [["CoreClient", ["onstatus"]], ["Client", []]]) {
    const declared = new RegExp(`export class ${name}(?: extends \\w+)? \\{(.*?)^\\}`, "ms").exec(types)[1].matchAll(/^  (?:readonly )?(\w+)[(<:]/gm);
    const methods = Object.getOwnPropertyNames(client[name].prototype).filter((method) => !method.startsWith("_"));
    assert.deepEqual([...declared].map(([, method]) => method).sort(), [...methods, ...fields].sort());
  }
});

test("CommonJS requires the package and its smaller entry, and imports it", limit, async () => {
  const imports = "import('@sinews/client').then(({ connect }) => console.log(typeof connect))";
  const requires = "console.log(typeof require('@sinews/client').connect)";
  const core = "const { connect, Client } = require('@sinews/client/core'); console.log(typeof connect === 'function' && 'function', Client.prototype.stream ?? '')";
  const manifest = "console.log(typeof require('@sinews/client/package.json').version === 'string' && 'function')";
  for (const program of [imports, requires, core, manifest]) {
    const { stdout } = await run(process.execPath, ["--no-warnings", "--input-type=commonjs", "--eval", program], { cwd: project });
    assert.equal(stdout.trim(), "function");
  }
});

test("the program of CommonJS is that of the module", limit, async () => {
  const script = fileURLToPath(new URL("smoke.cjs", import.meta.url));
  const { stdout } = await run(process.execPath, [...flags, "--no-warnings", script, join(project, "node_modules/@sinews/client"), server.url]);
  assert.equal(stdout.trim(), "ok");
});

/** Limits of a minified bundle, compressed by gzip, in bytes: the next smallest client has 13.4 KB. */
const SIZES = { "sinews.js": 13_200, "core.js": 8_700 };

for (const [name, most] of Object.entries(SIZES)) {
  const options = { bundle: true, minify: true, format: "esm", target: "es2022", write: false };
  const { outputFiles: [{ contents, text }] } = await build({ ...options, entryPoints: [join(root, name)] });
  const size = gzipSync(contents, { level: 9 }).length;
  test(`${name} has ${contents.length} bytes minified, ${size} compressed, at most ${most}`, () => {
    assert.ok(size <= most);
    // Streams and HTTP.
    assert.equal(/application\/x-ndjson|onassigned/.test(text), name === "sinews.js");
  });
}

/** The first of the installed programs of a runtime that runs on this machine, or the one on the path. */
async function find(name, pattern) {
  const [before, after] = pattern.split("*");
  const folders = existsSync(join(root, before)) ? readdirSync(join(root, before)) : [];
  for (const program of [...folders.map((platform) => join(root, before, platform + after)), name]) {
    if (await run(program, ["--version"]).then(() => true, () => false)) return program;
  }
  return null;
}

for (const [name, pattern, options] of RUNTIMES) {
  test(`every kind of request works in ${name}`, limit, async (t) => {
    const program = await find(name, pattern);
    if (!program) return t.skip(`no ${name} for this machine (npm ci)`);
    const own = await serve(t, ["--streams", folder(t)]);
    const script = fileURLToPath(new URL("smoke.js", import.meta.url));
    const module = join(project, "node_modules/@sinews/client/sinews.js");
    const result = await run(program, [...options, script, module, own.url], { timeout: 180_000 });
    assert.equal(result.stdout.trim(), "ok");
  });
}
