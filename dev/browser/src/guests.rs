//! The pages and the client of a server that requires tokens.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{
    host::{Failure, Server, Tools, ensure, go_through, until},
    notes,
    page::Page,
    webdriver::{Driver, Session},
};

struct World<'d> {
    server: Server,
    driver: &'d Driver,
    session: Session<'d>,
    secret: Secret,
    /// A page whose client renews its token during the other checks.
    renewing: Session<'d>,
}

/// The function of a check.
type Check = fn(&mut World<'_>) -> Result<(), Failure>;

const CHECKS: &[(&str, Check)] = &[
    ("without a token the page says that one may be asked for", asks_for_a_token),
    ("a token in the address lets in, leaves the address, and survives a reload", token_lets_in),
    ("a read-only token receives messages, and the page says at once that it only reads", reader_hears),
    ("a guest without a token may read, and the page says how to write", guest_reads),
    ("the client ends with the reason when its token is rejected", client_ends_on_rejected_token),
    ("the client ends with the reason when its origin is rejected", client_ends_on_rejected_origin),
    ("the console says that its token is rejected, and takes another", console_takes_a_token),
    ("the dashboard says that a token is needed, and takes one", dashboard_takes_a_token),
    ("the client renews its token without a reconnect", client_renews_token),
];

/// Runs all checks and returns the numbers of passed and failed checks.
pub(crate) fn run(binary: &Path, tools: &Tools) -> Result<[usize; 2], Failure> {
    let secret = Secret::new(binary, "guests")?;
    let server = Server::start_with(binary, &["--auth-secret-file", &secret.path(), "--auth-leeway", "0s"])?;
    let driver = Driver::start(tools)?;
    let session = Session::start(&driver, 1180, 760)?;
    let renewing = Session::start(&driver, 1180, 760)?;
    start_renewing_client(&server, &renewing, &secret)?;
    let mut world = World { server, driver: &driver, session, secret, renewing };
    Ok(go_through(&mut world, CHECKS))
}

/// A secret of the server, in a folder that is deleted on drop.
pub(crate) struct Secret {
    directory: PathBuf,
    binary: PathBuf,
}

impl Secret {
    pub(crate) fn new(binary: &Path, name: &str) -> Result<Self, Failure> {
        let directory = std::env::temp_dir().join(format!("sinews-browser-{name}-{}", std::process::id()));
        fs::create_dir_all(&directory)?;
        let secret = Self { directory, binary: binary.to_owned() };
        fs::write(secret.path(), "a secret of more than thirty-two bytes, for a test")?;
        Ok(secret)
    }

    pub(crate) fn path(&self) -> String {
        self.file("secret")
    }

    /// Another file in the same folder.
    pub(crate) fn file(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    /// Creates a token like an operator does.
    pub(crate) fn token(&self, rights: &[&str]) -> Result<String, Failure> {
        let output = Command::new(&self.binary)
            .args(["token", "--secret-file", &self.path()])
            .args(rights)
            .output()?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        } else {
            Err(Failure::new(format!("sinews token: {}", String::from_utf8_lossy(&output.stderr))))
        }
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

const EVERYTHING: [&str; 4] = ["--subscribe", ">", "--publish", ">"];

fn asks_for_a_token(w: &mut World<'_>) -> Result<(), Failure> {
    w.session.open(&w.server.url("chat"))?;
    until("the page says that it may need a token", || Ok(w.session.text("#cause")?.contains("#token=")))
}

fn token_lets_in(w: &mut World<'_>) -> Result<(), Failure> {
    let connected = || Ok(w.session.text("#state")? == "connected");
    let token = w.secret.token(&EVERYTHING)?;
    // Only the fragment after the # changes: the page is not reloaded.
    w.session.open(&w.server.url(&format!("chat#room=den&token={token}")))?;
    until("the page is connected", connected)?;
    let place = w.session.script("return location.hash", &[])?;
    if place != "#den" {
        return Err(Failure::new(format!("the address ends with {place}")));
    }
    w.session.reload()?;
    until("the page is connected again", connected)
}

fn reader_hears(w: &mut World<'_>) -> Result<(), Failure> {
    let reading = w.secret.token(&["--subscribe", "sinews.chat.den"])?;
    let writing = w.secret.token(&EVERYTHING)?;
    let reader = Page::enter(w.driver, &w.server.url(&format!("chat#room=den&token={reading}")), "Rita")?;
    let writer = Page::enter(w.driver, &w.server.url(&format!("chat#room=den&token={writing}")), "Anna")?;
    writer.say("Can you hear me?")?;
    let heard = || Ok(reader.session.text(".log:not([hidden])")?.contains("Can you hear me?"));
    until("Anna's message is shown to the read-only member", heard)?;
    writer.until("the reader is shown, too", || Ok(writer.people()?.iter().any(|name| name == "Rita")))?;
    only_reads(&reader.session, "The token allows you to read")?;
    let writing = writer.session.script("return !document.getElementById('message').disabled", &[])?;
    ensure(writing == true, || "the page of the writer is disabled".into())
}

fn guest_reads(w: &mut World<'_>) -> Result<(), Failure> {
    let options = ["--auth-secret-file", &w.secret.path(), "--auth-public-subscribe", ">"];
    let server = w.server.beside(&options)?;
    let guest = Page::enter(w.driver, &server.url("chat#room=den"), "Gus")?;
    only_reads(&guest.session, "To write, open this page with a token")
}

/// Checks that the page says why its reader cannot write, before the reader tries.
fn only_reads(page: &Session<'_>, words: &str) -> Result<(), Failure> {
    until("the page says that it only reads", || Ok(page.text("#hint")?.contains(words)))?;
    for id in ["message", "send"] {
        let script = format!("return document.getElementById('{id}').disabled");
        ensure(page.script(&script, &[])? == true, || format!("#{id} is enabled"))?;
    }
    Ok(())
}

fn client_ends_on_rejected_token(w: &mut World<'_>) -> Result<(), Failure> {
    let forged = format!("{}x", w.secret.token(&EVERYTHING)?);
    w.session.open(&w.server.url("healthz"))?;
    let script = "const { connect } = await import('/sinews.js');
         window.connect = connect;
         const quick = { minDelay: 10, maxDelay: 20 };
         const told = (name) => ({ status, code, reason }) =>
             status === 'closed' && note(`${name} ${code} ${reason.includes('signature')}`);
         connect('/ws', { ...quick, token: TOKEN }).onstatus = told('constant');
         connect('/ws', { ...quick, token: () => TOKEN }).onstatus = told('same');
         connect('/ws', { ...quick, token: 'no token' }).onstatus = told('malformed');
         // A function that returns a function is called again.
         let asked = 0;
         const other = connect('/ws', { ...quick, token: () => TOKEN + asked++ });
         other.onstatus = () => { if (asked > 3) { other.onstatus = null; other.close(); note('asked again'); } };";
    notes::run(&w.session, &script.replace("TOKEN", &format!("'{forged}'")))?;
    for expected in ["constant 4401 true", "same 4401 true", "malformed 4401 false", "asked again"] {
        notes::until_noted(&w.session, expected)?;
    }
    Ok(())
}

fn client_ends_on_rejected_origin(w: &mut World<'_>) -> Result<(), Failure> {
    let elsewhere = w.server.beside(&[])?;
    w.session.open(&w.server.url("healthz"))?;
    let script = format!(
        "const {{ connect }} = await import('/sinews.js');
         connect('{}').onstatus = ({{ status, code, reason }}) =>
             status === 'closed' && note(`origin ${{code}} ${{reason.includes(location.origin)}}`);",
        elsewhere.url("ws")
    );
    notes::run(&w.session, &script)?;
    notes::until_noted(&w.session, "origin 4403 true")
}

/// Opens a page with a client whose first token expires soon. The client renews it when a fifth of that time is left, which is
/// more than a machine stalls.
fn start_renewing_client(server: &Server, page: &Session<'_>, secret: &Secret) -> Result<(), Failure> {
    page.open(&server.url("healthz"))?;
    let long = secret.token(&EVERYTHING)?;
    let short = secret.token(&["--subscribe", ">", "--expires", "20s"])?;
    let script = format!(
        "const {{ connect }} = await import('/sinews.js');
         const tokens = ['{short}', '{long}'];
         const client = window.client = connect('/ws', {{ token: () => tokens.shift() }});
         client.onstatus = ({{ status }}) => note('status ' + status);
         const send = WebSocket.prototype.send;
         WebSocket.prototype.send = function (text) {{
             if (JSON.parse(text).op === 'token') note('renewed');
             return send.call(this, text);
         }};
         client.subscribe('room', ({{ data }}) => note('heard ' + data));
         setTimeout(() => client.publish('room', 'later').catch((error) => note('failed: ' + error)), 21_000);"
    );
    notes::run(page, &script)
}

fn client_renews_token(w: &mut World<'_>) -> Result<(), Failure> {
    notes::until_noted(&w.renewing, "renewed")?;
    // Published after the first token has expired, with a right that only the second grants.
    notes::until_noted(&w.renewing, "heard later")?;
    let notes = notes::all(&w.renewing)?;
    let states: Vec<_> = notes.iter().filter(|note| note.starts_with("status ")).collect();
    ensure(states == ["status connecting", "status open"], || format!("it reconnected: {notes:?}"))
}

fn console_takes_a_token(w: &mut World<'_>) -> Result<(), Failure> {
    let session = &w.session;
    let token = w.secret.token(&EVERYTHING)?;
    session.open(&w.server.url(&format!("console#token={token}x")))?;
    until("the console shows the reason", || Ok(session.text("#auth-problem")?.contains("signature")))?;
    until("the console has stopped", || Ok(session.text("#state")?.contains("signature")))?;
    session.press("#token", &token)?;
    session.click("#auth button")?;
    until("the console is connected", || Ok(session.text("#state")? == "connected"))?;
    until("nothing is wrong any more", || Ok(session.text("#auth-problem")?.is_empty()))?;
    // Without a token it connects, and shows the operations that need a token.
    session.open(&w.server.url("healthz"))?;
    session.open(&w.server.url("console"))?;
    until("the console is connected", || Ok(session.text("#state")? == "connected"))?;
    let clear = "document.getElementById('field-topic').value = ''";
    session.script(clear, &[])?;
    session.press("#field-topic", "prices\u{E007}")?;
    until("the console says that a token is needed", || {
        Ok(session.text("#auth-problem")?.contains("a token is needed to subscribe to prices"))
    })
}

fn dashboard_takes_a_token(w: &mut World<'_>) -> Result<(), Failure> {
    let session = &w.session;
    session.open(&w.server.url("dashboard"))?;
    let says = |words: &str| {
        until(&format!("the dashboard says {words:?}"), || Ok(session.text("#auth-problem")?.contains(words)))
    };
    says("a token is needed to subscribe to sinews.dashboard")?;
    session.press("#token", "no token")?;
    session.click("#auth button")?;
    says("the token is not a JWT")?;
    let clear = "document.getElementById('token').value = ''";
    session.script(clear, &[])?;
    session.press("#token", &w.secret.token(&["--subscribe", "other"])?)?;
    session.click("#auth button")?;
    says("this token may not subscribe to sinews.dashboard")?;
    session.script(clear, &[])?;
    session.press("#token", &w.secret.token(&["--subscribe", "sinews.dashboard"])?)?;
    session.click("#auth button")?;
    until("the dashboard is live", || Ok(session.text("#state")? == "live"))?;
    let hidden = session.script("return document.getElementById('auth').hidden", &[])?;
    ensure(hidden == true, || "the form is still there".to_owned())
}
