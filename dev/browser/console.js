// The console: each call by its form, and each program that it offers to copy, run against the server.
import { copyFileSync, mkdirSync, symlinkSync, writeFileSync } from "node:fs";
import { delimiter, dirname, join, resolve } from "node:path";

import { FLAGS, launch } from "../../examples/testing/programs.js";
import { KEY } from "./dashboard.js";
import { examine } from "./axe.js";
import { eventually, expect, retry } from "./page.js";
import { PROGRAM, ROOT, findProgram, run } from "./world.js";

/** The programs that the checks need, and the commands that run a script. */
const LANGUAGES = {
  curl: { name: "curl commands work", needs: "curl", command: ["sh", "-c"] },
  javascript: { name: "JavaScript works", needs: "node", command: ["node", ...FLAGS, "--input-type=module", "-e"] },
  python: { name: "Python works", needs: "python3", command: ["python3", "-c"] },
  rust: { name: "Rust compiles, and works", needs: "cargo" },
};
/** The dependencies of the programs in Rust are compiled once for all runs. */
const RUST_TARGET = join(ROOT, "target/console-programs");

/** The calls whose programs end, with their fields and a part of the output of curl, JavaScript, Python and Rust. */
const ENDING = [
  ["publish", { topic: "lobby", data: '{"eur": [1, null, true]}' }, ["", "delivered to", "", '"id":']],
  ["history", { topic: "lobby", last: "3" }, ['"eur":[1,null,true]', "eur", "'eur': [1, None, True]", '"eur":[1,']],
  ["leave", { topic: "lobby" }, ['"id":2', "", '"id":2', '"id":']],
  ["members", { topic: "lobby" }, ['"members":', "", "", '"id":']],
  ["set", { topic: "players", ttl: "60000" }, ['"key":"anna"', "", '"key":"anna"', '"id":']],
  ["delete", { topic: "players" }, ['"key":"anna"', "deleted", '"key":"anna"', '"id":']],
  ["append", { key: "a b" }, ['"offset":', "", '"offset":', '"id":']],
  ["read", {}, ['"item":7', "item: 7", "'item': 7", '"item":7']],
];
/** The calls whose programs run until they are stopped. */
const LASTING = [
  ["subscribe", ["news", "news", "news", '"op":"ack"']],
  ["watch", ['"n":1', "n: 1", "'n': 1", '"op":"ack"']],
  ["join", ["ack", "present until", "ack", '"op":"ack"']],
];
/** Programs of Python that need the package `websockets`. */
const ON_WEBSOCKETS = ["leave", "join"];

/** Characters that end a literal, or begin something else, in one of the languages. */
const HARD = '@it\'s "quoted"# "## $HOME `id` $(id) \\n \\u0041 %s {x} ${1} <b>\nline 2 é😀 */ //';

async function consolePage(part) {
  // Where programs run: it has the package of the client.
  const folder = part.folder();
  mkdirSync(join(folder, "node_modules/@sinews"), { recursive: true });
  symlinkSync(join(ROOT, "clients/js"), join(folder, "node_modules/@sinews/client"));
  const histories = ["lobby=20", "literal=20"].flatMap((history) => ["--history", history]);
  const server = await part.serve([...histories, "--streams", part.folder(), "--api-key", KEY]);
  const page = await part.window();
  const calls = new Console(page, server, folder);
  const check = (name, body) => part.check(name, async (test) => { await calls.open(); await body(test); });
  await check("the console executes each call", async () => {
    await calls.execute("subscribe", { topic: "lobby" }, "subscribed");
    await page.contains("#chips", "lobby");
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
  await part.examine("on the console with results", page);
  const json = (text) => eventually(() => page.locator("#log .json").allTextContents()).toContainEqual(expect.stringContaining(text));
  await check("the console shows the JSON of a result beside its sentence, also of an error", async () => {
    await calls.execute("publish", { topic: "lobby", data: "x" }, "published to 0 subscribers");
    await json('"reached":0');
    await calls.select("rpc", {});
    await page.click("#run");
    await json('"code":');
  });
  await check("the console executes the calls of the backend, and their programs work", async (test) => {
    await page.selectOption("#operation", "publish");
    await page.click("#run");
    await page.enter("#key", "a-key-that-the-server-does-not-have");
    await page.contains("#key-problem", "Rejected");
    await page.enter("#key", KEY);
    await expect(page.locator("#key-form")).toBeHidden();
    await examine(page);
    await page.click("#run");
    await calls.logs("POST /api/v1/publish: 200");
    await json('"subscribers":0');
    const outputs = { publish: '"topic":"chat.room"', listConnections: '"connections":', setKey: '"key":"anna"', getInfo: '"version":' };
    for (const [operation, output] of Object.entries(outputs)) {
      for (const [language, { needs, command: [command, ...parameters] = [] }] of Object.entries(LANGUAGES)) {
        if (!command || !findProgram(needs)) continue;
        await page.selectOption("#operation", operation);
        await retry(async () => {
          await page.click(`label[for=language-${language}]`);
          await expect(page.locator(`#language-${language}`)).toBeChecked({ timeout: 500 });
        });
        const program = await page.locator("#code").textContent();
        expect((await run(command, [...parameters, program], calls.options)).stdout, program).toContain(output);
      }
    }
    await page.selectOption("#operation", "watchActivity");
    await page.click("#run");
    await calls.logs("start");
    await page.click("#chips button");
    await expect(page.locator("#chips li")).toHaveCount(0);
  });
  await check("arrow keys select a call, Enter executes it", async () => {
    await page.press("#call-subscribe", "ArrowRight");
    await page.shows("#run", "Publish");
    await page.press("#call-publish", "Tab");
    await expect(page.locator("#operation")).toBeFocused();
    await page.press("#operation", "Tab");
    await expect(page.locator("#field-topic")).toBeFocused();
    await page.press("#field-topic", "Enter");
    await calls.logs("published to 0 subscribers");
  });
  await check("markup in a topic stays text on the console", async () => {
    const topic = "<img src=x onerror=window.ran=1>";
    await calls.execute("subscribe", { topic }, "subscribed");
    const data = "<script>window.ran=1</script><b>bold</b>";
    await calls.execute("publish", { topic, data }, data);
    await page.contains("#chips", topic);
    await expect(page.locator("main img, main b b, #log script")).toHaveCount(0);
    expect(await page.evaluate(() => window.ran)).toBe(undefined);
  });
  for (const [language, { name, needs }] of Object.entries(LANGUAGES)) {
    await check(`the copied ${name}`, async (test) => {
      if (!findProgram(needs)) return test.skip(`no ${needs}`);
      if (language === "rust") await compileRust(calls);
      await programsWork(test, calls, language);
    });
  }
  await check("the copied Rust sends the messages of the protocol", async () => {
    for (const [call] of [...ENDING, ...LASTING]) {
      const program = await calls.program(call, {}, "rust");
      const messages = rawStrings(program);
      expect(messages.length, program).toBe(program.split("ws.send(").length - 1);
      expect(messages.length, program).toBeGreaterThan(0);
      for (const message of messages) expect(typeof JSON.parse(message).op, program).toBe("string");
    }
  });
  await check("quotes and markup in a message are literals of each program", async () => {
    await calls.execute("subscribe", { topic: "literal" }, "subscribed");
    for (const [language, { needs, command }] of Object.entries(LANGUAGES)) {
      if (!command || !findProgram(needs)) continue;
      const data = `${HARD} by ${language}`;
      await calls.output("publish", { topic: "literal", data }, language);
      await calls.logs(data);
    }
    const [message] = rawStrings(await calls.program("publish", { topic: "literal", data: HARD }, "rust"));
    expect(JSON.parse(message).data).toBe(HARD);
  });
  await check("a stopped server is shown, and the console reconnects", async () => {
    await calls.execute("subscribe", { topic: "later" }, "subscribed");
    await server.kill();
    await page.shows("#state", /^(trying again|connecting)/);
    await server.restart();
    await page.shows("#state", "connected");
    await calls.execute("publish", { topic: "later", data: "after the restart" }, "after the restart");
  });
}

export { consolePage as console };

class Console {
  constructor(page, server, folder) {
    Object.assign(this, { page, server, folder, packages: join(folder, "python-packages") });
    const PATH = dirname(resolve(PROGRAM)) + delimiter + process.env.PATH;
    this.options = { cwd: folder, env: { ...process.env, PATH, PYTHONPATH: this.packages, SINEWS_API_KEY: KEY } };
  }
  open() { return this.page.visit(this.server.url("console"), "connected"); }
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
  async program(call, fields, language) {
    await this.select(call, fields);
    await this.page.click(`label[for=language-${language}]`);
    return this.page.locator("#code").textContent();
  }
  /** The command that runs the program of a call, and its parameters. */
  async command(call, fields, language) {
    if (language === "rust") return [join(RUST_TARGET, "debug", call), []];
    const [command, ...parameters] = LANGUAGES[language].command;
    return [command, [...parameters, await this.program(call, fields, language)]];
  }
  async output(...program) { return (await run(...await this.command(...program), this.options)).stdout; }
  runPython(...parameters) { return run("python3", parameters, { ...this.options, timeout: 120_000 }); }
  /** Whether the package `websockets` is there, or can be installed in the folder of the programs. */
  async hasWebsockets() {
    const succeeds = (...parameters) => this.runPython(...parameters).then(() => true, () => false);
    const isThere = () => succeeds("-c", "import websockets.sync.client");
    return await isThere()
      || await succeeds("-m", "pip", "install", "--quiet", "--target", this.packages, "websockets") && isThere();
  }
}

async function programsWork(test, calls, language) {
  const at = Object.keys(LANGUAGES).indexOf(language);
  const compiledOnly = language === "python" && !await calls.hasWebsockets() ? ON_WEBSOCKETS : [];
  for (const call of compiledOnly) {
    test.diagnostic(`${call} is compiled only: pip install websockets`);
    const compile = "import sys; compile(sys.argv[1], 'program', 'exec')";
    await calls.runPython("-c", compile, await calls.program(call, {}, language));
  }
  for (const [call, fields, expected] of ENDING.filter(([call]) => !compiledOnly.includes(call))) {
    const output = await calls.output(call, fields, language);
    expect(output, call).toContain(expected[at]);
    expect(output, call).not.toContain('"op":"error"');
  }
  for (const [call, expected] of LASTING.filter(([call]) => !compiledOnly.includes(call))) {
    const listener = launch(test, ...await calls.command(call, { topic: "lasting" }, language), calls.options);
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

/** Compiles the programs of all calls, with the library of this checkout as the first lines of the programs add it. */
async function compileRust(calls) {
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
  for (const [call, fields] of [...ENDING, ...LASTING.map(([call]) => [call, { topic: "lasting" }])]) {
    writeFileSync(join(project, `src/bin/${call}.rs`), await calls.program(call, fields, "rust"));
  }
  await run("cargo", ["build", "--quiet", "--offline", "--bins", "--target-dir", RUST_TARGET], { cwd: project });
}
