// The console: each call by its form, and each program that it offers to copy, run against the server.
import { copyFileSync, mkdirSync, symlinkSync, writeFileSync } from "node:fs";
import { delimiter, dirname, join, resolve } from "node:path";

import { FLAGS } from "../../examples/testing/programs.js";
import { KEY } from "./dashboard.js";
import { PROGRAM, ROOT, contains, eventually, expect, hasProgram, launch, retry, run, shows, visit } from "./world.js";

const RUNNERS = { curl: "curl", javascript: "node", python: "python3" };

/** The calls whose programs end, with their fields and a part of the output of curl, JavaScript and Python. */
const ENDING = [
  ["publish", { topic: "lobby", data: '{"eur": [1, null, true]}' }, ["", "delivered to", ""]],
  ["history", { topic: "lobby", last: "3" }, ['"eur":[1,null,true]', "eur", "'eur': [1, None, True]"]],
  ["leave", { topic: "lobby" }, ['"id":2', "", '"id":2']],
  ["members", { topic: "lobby" }, ['"members":', "", ""]],
  ["set", { topic: "players", ttl: "60000" }, ['"key":"anna"', "", '"key":"anna"']],
  ["delete", { topic: "players" }, ['"key":"anna"', "deleted", '"key":"anna"']],
  ["append", { key: "a b" }, ['"offset":', "", '"offset":']],
  ["read", {}, ['"item":7', "item: 7", "'item': 7"]],
];
/** The calls whose programs run until they are stopped. */
const LASTING = [
  ["subscribe", ["news", "news", "news"]],
  ["watch", ['"n":1', "n: 1", "'n': 1"]],
  ["join", ["ack", "present until", "ack"]],
];
/** Programs of Python that need the package `websockets`. */
const ON_WEBSOCKETS = ["leave", "join"];

/** Characters that end a literal, or begin something else, in one of the languages. */
const HARD = '@it\'s "quoted"# "## $HOME `id` $(id) \\n \\u0041 %s {x} ${1} <b>\nline 2 é😀 */ //';

export async function consolePage(part) {
  // Where programs run: it has the package of the client.
  const folder = part.folder();
  mkdirSync(join(folder, "node_modules/@sinews"), { recursive: true });
  symlinkSync(join(ROOT, "clients/js"), join(folder, "node_modules/@sinews/client"));
  const server = await part.serve(["--history", "lobby=20", "--history", "literal=20", "--streams", part.folder(), "--api-key", KEY]);
  const page = await part.window();
  const calls = new Console(page, server, folder);
  await part.check("the console executes each call", async () => {
    await calls.open();
    await calls.execute("subscribe", { topic: "lobby" }, "subscribed");
    await contains(page, "#chips", "lobby");
    await calls.execute("publish", { data: '{"eur": 1}' }, "published to 1 subscriber", '{"eur":1}');
    await calls.execute("history", { last: "5" }, '1: {"eur":1}');
    await calls.execute("join", {}, "anna is present");
    await calls.execute("members", {}, 'anna {"name":"Anna"}');
    await calls.execute("leave", {}, "left");
    await calls.execute("watch", {}, "has no keys");
    await calls.execute("set", { data: '{"x": 1}' }, 'anna = {"x":1}');
    await calls.execute("delete", {}, "anna deleted");
    await calls.execute("append", {}, "appended at offset 0 of partition 0");
    await calls.execute("read", {}, '0: {"item":7}');
    await calls.execute("subscribe", { topic: "a.>.b" }, "the wildcard > is valid at the end of a pattern only");
    await page.click("#chips li:first-child button");
    await expect(page.locator("#chips")).not.toHaveText(/^lobby/);
    // The button says so for a moment only.
    await retry(async () => {
      await page.click("#copy");
      await expect(page.locator("#copy")).toHaveText("Copied", { timeout: 500 });
    });
  });
  await part.check("arrow keys select a call, Enter executes it", async () => {
    await calls.open();
    await page.press("#call-subscribe", "ArrowRight");
    await shows(page, "#run", "Publish");
    await page.press("#call-publish", "Tab");
    await expect(page.locator("#field-topic")).toBeFocused();
    await page.press("#field-topic", "Enter");
    await calls.logs("published to 0 subscribers");
  });
  await part.check("markup in a topic stays text on the console", async () => {
    const topic = "<img src=x onerror=window.ran=1>";
    await calls.open();
    await calls.execute("subscribe", { topic }, "subscribed");
    const data = "<script>window.ran=1</script><b>bold</b>";
    await calls.execute("publish", { topic, data }, data);
    await contains(page, "#chips", topic);
    await expect(page.locator("main img, main b b, #log script")).toHaveCount(0);
    expect(await page.evaluate(() => window.ran)).toBe(undefined);
  });
  for (const [language, name] of [["curl", "curl commands work"], ["javascript", "JavaScript works"], ["python", "Python works"]]) {
    await part.check(`the copied ${name}`, async (test) => {
      if (!hasProgram(RUNNERS[language])) return test.skip(`no ${RUNNERS[language]}`);
      await calls.open();
      await programsWork(test, calls, language);
    });
  }
  await part.check("the copied Rust sends the messages of the protocol", async () => {
    await calls.open();
    for (const [call] of [...ENDING, ...LASTING]) {
      const program = await calls.program(call, {}, "rust");
      const messages = rawStrings(program);
      expect(messages.length, program).toBe(program.split("ws.send(").length - 1);
      expect(messages.length, program).toBeGreaterThan(0);
      for (const message of messages) expect(typeof JSON.parse(message).op, program).toBe("string");
    }
  });
  await part.check("the copied Rust compiles, and works", async (test) => {
    if (!hasProgram("cargo")) return test.skip("no cargo");
    await calls.open();
    await rustWorks(test, calls);
  });
  await part.check("quotes and markup in a message are literals of each program", async () => {
    await calls.open();
    await calls.execute("subscribe", { topic: "literal" }, "subscribed");
    for (const language of Object.keys(RUNNERS).filter((language) => hasProgram(RUNNERS[language]))) {
      const data = `${HARD} by ${language}`;
      await calls.output(language, await calls.program("publish", { topic: "literal", data }, language));
      await calls.logs(data);
    }
    const [message] = rawStrings(await calls.program("publish", { topic: "literal", data: HARD }, "rust"));
    expect(JSON.parse(message).data).toBe(HARD);
  });
  await part.check("a stopped server is shown, and the console reconnects", async () => {
    await calls.open();
    await calls.execute("subscribe", { topic: "later" }, "subscribed");
    await server.kill();
    await shows(page, "#state", /^(trying again|connecting)/);
    await server.restart();
    await shows(page, "#state", "connected");
    await calls.execute("publish", { topic: "later", data: "after the restart" }, "after the restart");
  });
}

/** The page, and a folder for its programs. */
class Console {
  constructor(page, server, folder) {
    Object.assign(this, { page, server, folder });
    this.packages = join(folder, "python-packages");
    const env = { PATH: dirname(resolve(PROGRAM)) + delimiter + process.env.PATH, PYTHONPATH: this.packages, SINEWS_API_KEY: KEY };
    this.options = { cwd: folder, env: { ...process.env, ...env } };
  }
  async open() { await visit(this.page, this.server.url("console"), "connected"); }
  async select(call, fields) {
    await this.page.click(`label[for=call-${call}]`);
    for (const [field, value] of Object.entries(fields)) await this.page.fill(`#field-${field}`, value);
  }
  /** Executes a call, and waits for results in the log. */
  async execute(call, fields, ...results) {
    await this.select(call, fields);
    await this.page.click("#run");
    for (const result of results) await this.logs(result);
  }
  logs(text) { return eventually(() => this.page.locator("#log pre").allTextContents()).toContain(text); }
  /** The program of a call. */
  async program(call, fields, language) {
    await this.select(call, fields);
    await this.page.click(`label[for=language-${language}]`);
    return this.page.locator("#code").textContent();
  }
  /** A command that runs a program. */
  command(language, program) {
    if (language === "curl") return ["sh", ["-c", program]];
    if (language === "python") return ["python3", ["-c", program]];
    const file = join(this.folder, "program.mjs");
    writeFileSync(file, program);
    return ["node", ["--no-warnings", ...FLAGS, file]];
  }
  /** Runs a program to its end; returns its output. */
  async output(language, program) { return (await run(...this.command(language, program), this.options)).stdout; }
  /** Whether the package `websockets` is there, or can be installed in the folder of the programs. */
  async hasWebsockets() {
    const isThere = () => this.output("python", "import websockets.sync.client").then(() => true, () => false);
    if (await isThere()) return true;
    await run("python3", ["-m", "pip", "install", "--quiet", "--target", this.packages, "websockets"], { timeout: 120_000 })
      .catch(() => { /* Its absence says so. */ });
    return isThere();
  }
}

async function programsWork(test, calls, language) {
  const at = Object.keys(RUNNERS).indexOf(language);
  const needsMore = language === "python" && !(await calls.hasWebsockets());
  if (needsMore) test.diagnostic("Python with the package websockets is compiled only: pip install websockets");
  const compiles = (program) => run("python3", ["-c", "import sys; compile(sys.argv[1], 'program', 'exec')", program]);
  for (const [call, fields, expected] of ENDING) {
    const program = await calls.program(call, fields, language);
    if (needsMore && ON_WEBSOCKETS.includes(call)) await compiles(program);
    else expect(await calls.output(language, program), program).toContain(expected[at]);
  }
  for (const [call, expected] of LASTING) {
    const program = await calls.program(call, { topic: "lasting" }, language);
    if (needsMore && ON_WEBSOCKETS.includes(call)) {
      await compiles(program);
      continue;
    }
    const listener = launch(test, ...calls.command(language, program), calls.options);
    await eventually(async () => {
      // The program may subscribe after one of them.
      await calls.server.publish("topics/lasting", "news");
      await calls.execute("set", { topic: "lasting", data: '{"n": 1}' });
      return listener.text;
    }).toContain(expected[at]);
    listener.stop();
  }
}

/** The literals of messages in a program of Rust. */
function rawStrings(program) {
  return [...program.matchAll(/^ *ws\.send\(r(#*)"(.*)"\1\)\.await\?;$/gm)]
    .filter(([, signs, text]) => !text.includes(`"${signs}`)).map(([,, text]) => text);
}

/** A project with the programs of all calls, and the library of this checkout as the first lines of the programs add it. */
async function rustWorks(test, calls) {
  const project = join(calls.folder, "rust");
  mkdirSync(join(project, "src/bin"), { recursive: true });
  writeFileSync(join(project, "Cargo.toml"), `[package]
name = "programs"
version = "0.0.0"
edition = "2024"
[workspace]
[dependencies]
sinews = { path = ${JSON.stringify(join(ROOT, "crates/sinews"))} }
tokio = { version = "1", features = ["macros", "rt"] }
`);
  // The versions of the workspace, which the machine has.
  copyFileSync(join(ROOT, "Cargo.lock"), join(project, "Cargo.lock"));
  const all = [...ENDING, ...LASTING.map(([call]) => [call, { topic: "lasting" }])];
  for (const [call, fields] of all) writeFileSync(join(project, `src/bin/${call}.rs`), await calls.program(call, fields, "rust"));
  // The dependencies are compiled once for all runs.
  const target = join(ROOT, "target/console-programs");
  await run("cargo", ["build", "--quiet", "--offline", "--bins", "--target-dir", target], { cwd: project });
  for (const [call, , [printed]] of ENDING) {
    const { stdout } = await run(join(target, "debug", call));
    // The answers of the protocol at `/ws`.
    expect(stdout, call).toContain(["history", "read"].includes(call) ? printed : '"id":');
    expect(stdout, call).not.toContain('"op":"error"');
  }
  for (const [call] of LASTING) {
    const listener = launch(test, join(target, "debug", call), []);
    await eventually(() => listener.text).toContain('"op":"ack"');
    listener.stop();
  }
}
