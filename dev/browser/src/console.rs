//! The console: each call by its form, and each program that it offers to copy, run against the server.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
};

use serde_json::Value;

use crate::{
    host::{Failure, Server, Tools, ensure, go_through, until},
    streams::Directory,
    webdriver::{Driver, Session},
};

struct World<'d> {
    server: Server,
    session: Session<'d>,
    binary: PathBuf,
    /// Where programs run: it has the package of the client.
    folder: Directory,
    _streams: Directory,
}

/// The function of a check.
type Check = fn(&mut World<'_>) -> Result<(), Failure>;

const CHECKS: &[(&str, Check)] = &[
    ("the console executes each call", forms_work),
    ("arrow keys select a call, Enter executes it", keyboard_works),
    ("markup in a topic stays text on the console", markup_stays_text),
    ("the copied curl commands work", |w| programs_work(w, "curl")),
    ("the copied JavaScript works", |w| programs_work(w, "javascript")),
    ("the copied Python works", |w| programs_work(w, "python")),
    ("the copied Rust sends the messages of the protocol", rust_is_literal),
    ("the copied Rust compiles, and works", rust_works),
    ("quotes and markup in a message are literals of each program", texts_are_literals),
    ("a stopped server is shown, and the console reconnects", restart_is_survived),
];

/// Folder of Python packages beside the programs.
const PACKAGES: &str = "python-packages";

/// A key of the HTTP API, which programs read from their environment.
const KEY: &str = "an-api-key-of-the-browser-checks";

/// Runs all checks and returns the numbers of passed and failed checks.
pub(crate) fn run(binary: &Path, tools: &Tools) -> Result<[usize; 2], Failure> {
    let (streams, folder) = (Directory::new("console-streams")?, Directory::new("console-programs")?);
    let package = PathBuf::from(folder.path()).join("node_modules/@sinews");
    fs::create_dir_all(&package)?;
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/js").canonicalize()?;
    std::os::unix::fs::symlink(client, package.join("client"))?;
    let options =
        ["--history", "lobby=20", "--history", "literal=20", "--streams", &streams.path(), "--api-key", KEY];
    let server = Server::start_with(binary, &options)?;
    let driver = Driver::start(tools)?;
    let session = Session::start(&driver, 1180, 760)?;
    let mut world = World { server, session, binary: binary.canonicalize()?, folder, _streams: streams };
    Ok(go_through(&mut world, CHECKS))
}

impl World<'_> {
    fn open(&self) -> Result<(), Failure> {
        self.session.open(&self.server.url("console"))?;
        until("the console is connected", || Ok(self.session.text("#state")? == "connected"))
    }

    fn select(&self, call: &str) -> Result<(), Failure> {
        self.session.click(&format!("label[for=call-{call}]"))
    }

    /// Enters a value like its user, of any characters.
    fn enter(&self, field: &str, value: &str) -> Result<(), Failure> {
        let script = "const field = document.getElementById('field-' + arguments[0]);
            field.value = arguments[1]; field.dispatchEvent(new Event('input', { bubbles: true }));";
        self.session.script(script, &[field, value]).map(drop)
    }

    fn execute(&self, call: &str, fields: &[(&str, &str)]) -> Result<(), Failure> {
        self.select(call)?;
        for (field, value) in fields {
            self.enter(field, value)?;
        }
        self.session.click("#run")
    }

    /// Waits until the log has an entry with this text.
    fn until_logged(&self, text: &str) -> Result<(), Failure> {
        let script = "return [...document.querySelectorAll('#log pre')].some((entry) => entry.textContent === arguments[0])";
        let found =
            until(&format!("the log has {text:?}"), || Ok(self.session.script(script, &[text])? == true));
        found.map_err(|failure| {
            Failure::new(format!("{failure}; it has {:?}", self.session.text("#log").unwrap_or_default()))
        })
    }

    /// The program of the selected call.
    fn program(&self, language: &str) -> Result<String, Failure> {
        self.session.click(&format!("label[for=language-{language}]"))?;
        let code = self.session.script("return document.getElementById('code').textContent", &[])?;
        Ok(code.as_str().unwrap_or_default().to_owned())
    }

    /// A command that runs a program.
    fn command(&self, language: &str, program: &str) -> Result<Command, Failure> {
        let folder = PathBuf::from(self.folder.path());
        let mut command = match language {
            "curl" => {
                let mut command = Command::new("sh");
                command.args(["-c", program]);
                command
            }
            "javascript" => {
                let file = folder.join("program.mjs");
                fs::write(&file, program)?;
                let mut command = Command::new("node");
                // Before version 22, Node.js has the standard WebSocket with this option only.
                command.args(["--no-warnings", "--experimental-websocket"]).arg(file);
                command
            }
            _ => {
                let mut command = Command::new("python3");
                command.args(["-c", program]);
                command
            }
        };
        let binaries = self.binary.parent().map(Path::to_owned).unwrap_or_default();
        let mut paths = vec![binaries];
        paths.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
        let path = env::join_paths(paths).map_err(|error| Failure::new(error.to_string()))?;
        command.env("PYTHONPATH", folder.join(PACKAGES));
        command.current_dir(folder).env("PATH", path).env("SINEWS_API_KEY", KEY).stdin(Stdio::null());
        Ok(command)
    }

    /// Runs a program to its end; returns its output.
    fn output(&self, language: &str, program: &str) -> Result<String, Failure> {
        let output = self.command(language, program)?.output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure(output.status.success(), || {
            format!("{program}\nends with {}: {text}{errors}", output.status)
        })?;
        Ok(text)
    }
}

/// A program that runs until it is killed.
struct Listener {
    child: Child,
    lines: Receiver<String>,
    seen: String,
}

impl Listener {
    fn start(mut command: Command) -> Result<Self, Failure> {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let output = child.stdout.take().ok_or_else(|| Failure::new("no output"))?;
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self { child, lines, seen: String::new() })
    }

    /// Whether the output has a text by now.
    fn has(&mut self, text: &str) -> bool {
        while let Ok(line) = self.lines.try_recv() {
            self.seen.push_str(&line);
            self.seen.push('\n');
        }
        self.seen.contains(text)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Both fail only if the program has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn forms_work(w: &mut World<'_>) -> Result<(), Failure> {
    w.open()?;
    w.execute("subscribe", &[("topic", "lobby")])?;
    w.until_logged("subscribed")?;
    until("the subscription is shown", || Ok(w.session.text("#chips")?.starts_with("lobby")))?;
    w.execute("publish", &[("data", "{\"eur\": 1}")])?;
    w.until_logged("published to 1 subscriber")?;
    w.until_logged("{\"eur\":1}")?;
    w.execute("history", &[("last", "5")])?;
    w.until_logged("1: {\"eur\":1}")?;
    w.execute("join", &[])?;
    w.until_logged("anna is present")?;
    w.execute("members", &[])?;
    w.until_logged("anna {\"name\":\"Anna\"}")?;
    w.execute("leave", &[])?;
    w.until_logged("left")?;
    w.execute("watch", &[])?;
    w.until_logged("has no keys")?;
    w.execute("set", &[("data", "{\"x\": 1}")])?;
    w.until_logged("anna = {\"x\":1}")?;
    w.execute("delete", &[])?;
    w.until_logged("anna deleted")?;
    w.execute("append", &[])?;
    w.until_logged("appended at offset 0 of partition 0")?;
    w.execute("read", &[])?;
    w.until_logged("0: {\"item\":7}")?;
    w.execute("subscribe", &[("topic", "a.>.b")])?;
    w.until_logged("the wildcard > is valid at the end of a pattern only")?;
    w.session.click("#chips li:first-child button")?;
    until("the subscription has ended", || Ok(!w.session.text("#chips")?.starts_with("lobby")))?;
    until("the button says that it has copied", || {
        // It says so for a moment only.
        w.session.click("#copy")?;
        Ok(w.session.text("#copy")? == "Copied")
    })
}

fn keyboard_works(w: &mut World<'_>) -> Result<(), Failure> {
    w.open()?;
    // E014 is the right arrow, E004 the tabulator.
    w.session.press("#call-subscribe", "\u{E014}")?;
    until("the next call is selected", || Ok(w.session.text("#run")? == "Publish"))?;
    let next = "return document.activeElement.id";
    w.session.press("#call-publish", "\u{E004}")?;
    let focused = w.session.script(next, &[])?;
    ensure(focused == "field-topic", || format!("the tabulator leads to {focused}"))?;
    w.session.press("#field-topic", "\u{E007}")?;
    w.until_logged("published to 0 subscribers")
}

fn markup_stays_text(w: &mut World<'_>) -> Result<(), Failure> {
    w.open()?;
    let topic = "<img src=x onerror=window.ran=1>";
    w.execute("subscribe", &[("topic", topic)])?;
    w.until_logged("subscribed")?;
    w.execute("publish", &[("topic", topic), ("data", "<script>window.ran=1</script><b>bold</b>")])?;
    w.until_logged("<script>window.ran=1</script><b>bold</b>")?;
    let chip = w.session.text("#chips")?;
    ensure(chip.starts_with(topic), || format!("the subscription is shown as {chip:?}"))?;
    let found = w.session.script(
        "return document.querySelectorAll('main img, main b b, #log script').length + (window.ran ?? 0)",
        &[],
    )?;
    ensure(found == 0, || format!("{found} elements came from text"))
}

/// A call, the fields to enter, and a part of the output of its programs.
type EndingCall = (&'static str, &'static [(&'static str, &'static str)], [&'static str; 3]);

/// The calls whose programs end, with their fields and a part of the output.
const ENDING: &[EndingCall] = &[
    ("publish", &[("topic", "lobby"), ("data", "{\"eur\": [1, null, true]}")], ["", "delivered to", ""]),
    (
        "history",
        &[("topic", "lobby"), ("last", "3")],
        ["\"eur\":[1,null,true]", "eur", "'eur': [1, None, True]"],
    ),
    ("leave", &[("topic", "lobby")], ["\"id\":2", "", "\"id\":2"]),
    ("members", &[("topic", "lobby")], ["\"members\":", "", ""]),
    ("set", &[("topic", "players"), ("ttl", "60000")], ["\"key\":\"anna\"", "", "\"key\":\"anna\""]),
    ("delete", &[("topic", "players")], ["\"key\":\"anna\"", "deleted", "\"key\":\"anna\""]),
    ("append", &[("key", "a b")], ["\"offset\":", "", "\"offset\":"]),
    ("read", &[], ["\"item\":7", "item: 7", "'item': 7"]),
];

/// The calls whose programs run until they are stopped.
const LASTING: &[(&str, [&str; 3])] = &[
    ("subscribe", ["news", "news", "news"]),
    ("watch", ["\"n\":1", "n: 1", "'n': 1"]),
    ("join", ["ack", "present until", "ack"]),
];

fn programs_work(w: &World<'_>, language: &str) -> Result<(), Failure> {
    let (runner, at) = match language {
        "curl" => ("curl", 0),
        "javascript" => ("node", 1),
        _ => ("python3", 2),
    };
    if !succeeds(Command::new(runner).arg("--version")) {
        println!("SKIPPED {language}: no {runner}");
        return Ok(());
    }
    let has_websockets = language == "python" && has_websockets(w)?;
    w.open()?;
    for (call, fields, expected) in ENDING {
        w.select(call)?;
        for (field, value) in *fields {
            w.enter(field, value)?;
        }
        let program = w.program(language)?;
        if language == "python" && *call == "leave" && !has_websockets {
            compiles(w, &program)?;
            continue;
        }
        let output = w.output(language, &program)?;
        ensure(output.contains(expected[at]), || format!("{program}\nprints {output:?}"))?;
    }
    for (call, expected) in LASTING {
        w.select(call)?;
        w.enter("topic", "lasting")?;
        let program = w.program(language)?;
        if language == "python" && *call == "join" && !has_websockets {
            compiles(w, &program)?;
            continue;
        }
        let mut listener = Listener::start(w.command(language, &program)?)?;
        until(&format!("this program prints {:?}: {program}", expected[at]), || {
            // The program may subscribe after one of them.
            w.server.publish(&w.server.url("topics/lasting"), "news")?;
            w.execute("set", &[("topic", "lasting"), ("data", "{\"n\": 1}")])?;
            Ok(listener.has(expected[at]))
        })?;
    }
    Ok(())
}

/// Whether the package `websockets` is there, or can be installed in the folder of the programs.
fn has_websockets(w: &World<'_>) -> Result<bool, Failure> {
    let imports = || Ok::<_, Failure>(succeeds(&mut w.command("python", "import websockets.sync.client")?));
    if imports()? {
        return Ok(true);
    }
    let packages = Path::new(&w.folder.path()).join(PACKAGES);
    let mut install = Command::new("timeout");
    install
        .args(["120", "python3", "-m", "pip", "install", "--quiet", "--target"])
        .arg(packages)
        .arg("websockets");
    let is_installed = succeeds(&mut install) && imports()?;
    if !is_installed {
        println!("SKIPPED runs of Python with the package websockets: pip install websockets");
    }
    Ok(is_installed)
}

fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// Without the package that a program needs, it is only compiled.
fn compiles(w: &World<'_>, program: &str) -> Result<(), Failure> {
    let check = "import sys; compile(sys.argv[1], 'program', 'exec')";
    let mut command = w.command("python", check)?;
    let output = command.arg(program).output()?;
    ensure(output.status.success(), || format!("{program}\n{}", String::from_utf8_lossy(&output.stderr)))
}

/// The literals of messages in a program of Rust.
fn raw_strings(program: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in program.lines().filter(|line| line.trim_start().starts_with("ws.send(")) {
        let Some((_, literal)) = line.split_once("ws.send(r") else { continue };
        let signs = literal.bytes().take_while(|byte| *byte == b'#').count();
        let end = format!("\"{}).await?;", "#".repeat(signs));
        let Some(text) = literal.get(signs + 1..literal.len().saturating_sub(end.len())) else { continue };
        let is_whole = literal.ends_with(&end) && !text.contains(&end[..=signs]);
        found.extend(is_whole.then(|| text.to_owned()));
    }
    found
}

fn rust_is_literal(w: &mut World<'_>) -> Result<(), Failure> {
    w.open()?;
    for call in [
        "subscribe",
        "publish",
        "history",
        "join",
        "leave",
        "members",
        "watch",
        "set",
        "delete",
        "append",
        "read",
    ] {
        w.select(call)?;
        let program = w.program("rust")?;
        let messages = raw_strings(&program);
        let sent = program.matches("ws.send(").count();
        let valid = messages.iter().filter(|text| {
            serde_json::from_str::<Value>(text).is_ok_and(|message| message["op"].is_string())
        });
        ensure(sent > 0 && valid.count() == sent, || format!("{program}\nhas the messages {messages:?}"))?;
    }
    Ok(())
}

/// A project with the programs of all calls, and the library of this checkout as the first lines of the programs add it.
fn rust_project(w: &World<'_>, folder: &Path) -> Result<(), Failure> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
    let manifest = format!(
        "[package]\nname = \"programs\"\nversion = \"0.0.0\"\nedition = \"2024\"\n[workspace]\n[dependencies]\n\
         sinews = {{ path = {:?} }}\ntokio = {{ version = \"1\", features = [\"macros\", \"rt\"] }}\n",
        root.join("crates/sinews")
    );
    fs::create_dir_all(folder.join("src/bin"))?;
    fs::write(folder.join("Cargo.toml"), manifest)?;
    // The versions of the workspace, which the machine has.
    fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock"))?;
    let ending = ENDING.iter().map(|(call, fields, _)| (*call, *fields));
    let lasting = LASTING.iter().map(|(call, _)| (*call, &[("topic", "lasting")][..]));
    for (call, fields) in ending.chain(lasting) {
        w.select(call)?;
        for (field, value) in fields {
            w.enter(field, value)?;
        }
        fs::write(folder.join(format!("src/bin/{call}.rs")), w.program("rust")?)?;
    }
    Ok(())
}

fn rust_works(w: &mut World<'_>) -> Result<(), Failure> {
    if !succeeds(Command::new("cargo").arg("--version")) {
        println!("SKIPPED Rust: no cargo");
        return Ok(());
    }
    w.open()?;
    let folder = PathBuf::from(w.folder.path()).join("rust");
    rust_project(w, &folder)?;
    // The dependencies are compiled once for all runs.
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/console-programs");
    let mut build = Command::new("cargo");
    build.args(["build", "--quiet", "--offline", "--bins", "--target-dir"]).arg(&target).current_dir(&folder);
    let output = build.stdin(Stdio::null()).output()?;
    ensure(output.status.success(), || String::from_utf8_lossy(&output.stderr).into_owned())?;
    for (call, _, expected) in ENDING {
        let output = Command::new(target.join("debug").join(call)).stdin(Stdio::null()).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        // The answers of the protocol at `/ws`.
        let wanted = if *call == "history" || *call == "read" { expected[0] } else { "\"id\":" };
        ensure(
            output.status.success() && text.contains(wanted) && !text.contains("\"op\":\"error\""),
            || format!("{call} prints {text:?}, {}", String::from_utf8_lossy(&output.stderr)),
        )?;
    }
    for (call, _) in LASTING {
        let mut listener = Listener::start(Command::new(target.join("debug").join(call)))?;
        until(&format!("{call} prints its acknowledgement"), || Ok(listener.has("\"op\":\"ack\"")))?;
    }
    Ok(())
}

/// Characters that end a literal, or begin something else, in one of the languages.
const HARD: &str = "@it's \"quoted\"# \"## $HOME `id` $(id) \\n \\u0041 %s {x} ${1} <b>\nline 2 é😀 */ //";

fn texts_are_literals(w: &mut World<'_>) -> Result<(), Failure> {
    w.open()?;
    w.execute("subscribe", &[("topic", "literal")])?;
    w.until_logged("subscribed")?;
    w.select("publish")?;
    w.enter("topic", "literal")?;
    for language in ["curl", "javascript", "python"] {
        if language == "javascript" && !succeeds(Command::new("node").arg("--version")) {
            continue;
        }
        let text = format!("{HARD} by {language}");
        w.enter("data", &text)?;
        let program = w.program(language)?;
        w.output(language, &program)?;
        w.until_logged(&text)?;
    }
    w.enter("data", HARD)?;
    let messages = raw_strings(&w.program("rust")?);
    let message: Value = serde_json::from_str(messages.first().map_or("", |text| text))
        .map_err(|error| Failure::new(format!("{messages:?}: {error}")))?;
    ensure(message["data"] == HARD, || format!("Rust sends {message}"))
}

fn restart_is_survived(w: &mut World<'_>) -> Result<(), Failure> {
    w.open()?;
    w.execute("subscribe", &[("topic", "later")])?;
    w.until_logged("subscribed")?;
    w.server.kill();
    until("the page says that it tries again", || {
        let state = w.session.text("#state")?;
        Ok(state.starts_with("trying again") || state == "connecting")
    })?;
    w.server.restart()?;
    until("the console is connected", || Ok(w.session.text("#state")? == "connected"))?;
    w.execute("publish", &[("topic", "later"), ("data", "after the restart")])?;
    w.until_logged("after the restart")
}
