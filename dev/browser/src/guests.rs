//! The chat page of a server that asks for tokens.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{
    host::{Failure, Server, Tools, go_through, until},
    page::Page,
    webdriver::{Driver, Session},
};

struct World<'d> {
    server: Server,
    driver: &'d Driver,
    session: Session<'d>,
    secret: Secret,
}

/// What is promised, and the function that sees whether it is kept.
type Check = fn(&mut World<'_>) -> Result<(), Failure>;

const CHECKS: &[(&str, Check)] = &[
    ("without a token the page says that one may be asked for", asks_for_a_token),
    ("a token in the address lets in, leaves the address, and survives a reload", token_lets_in),
    ("a token that may only read hears others, and says so", reader_hears),
];

/// Runs all checks and answers how many passed and how many failed.
pub(crate) fn run(binary: &Path, tools: &Tools) -> Result<[usize; 2], Failure> {
    let secret = Secret::new(binary)?;
    let server = Server::start_with(binary, &["--auth-secret-file", &secret.path()])?;
    let driver = Driver::start(tools)?;
    let session = Session::start(&driver, 1180, 760)?;
    let mut world = World { server, driver: &driver, session, secret };
    Ok(go_through(&mut world, CHECKS))
}

/// A secret of the server, in a file that goes with this value.
struct Secret {
    directory: PathBuf,
    binary: PathBuf,
}

impl Secret {
    fn new(binary: &Path) -> Result<Self, Failure> {
        let directory = std::env::temp_dir().join(format!("sinews-browser-{}", std::process::id()));
        fs::create_dir_all(&directory)?;
        let secret = Self { directory, binary: binary.to_owned() };
        fs::write(secret.path(), "a secret of more than thirty-two bytes, for a test")?;
        Ok(secret)
    }

    fn path(&self) -> String {
        self.directory.join("secret").display().to_string()
    }

    /// As a person makes one.
    fn token(&self, rights: &[&str]) -> Result<String, Failure> {
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
    // Only what stands behind the # changes: the page is not loaded anew.
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
    let reading = w.secret.token(&["--subscribe", "den"])?;
    let writing = w.secret.token(&EVERYTHING)?;
    let reader = Session::start(w.driver, 1180, 760)?;
    reader.open(&w.server.url(&format!("chat#room=den&token={reading}")))?;
    // It is told by the first thing that the page says of itself.
    until("the page says that it only reads", || Ok(reader.text("#hint")?.contains("to read")))?;
    until("the page is connected", || Ok(reader.text("#state")? == "connected"))?;
    let writer = Page::enter(w.driver, &w.server.url(&format!("chat#room=den&token={writing}")), "Anna")?;
    writer.say("Can you hear me?")?;
    let heard = || Ok(reader.text(".log:not([hidden])")?.contains("Can you hear me?"));
    until("what Anna says is shown to who only reads", heard)?;
    reader.press("#message", "No")?;
    let disabled = reader.script("return document.getElementById('send').disabled", &[])?;
    if disabled == true { Ok(()) } else { Err(Failure::new("the button to send can be pressed")) }
}
