//! The dashboard of an operator: nodes of a cluster, hooks and webhooks that fail, and slow clients.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
};

use crate::{
    broker::Broker,
    host::{Failure, Server, Tools, ensure, go_through, until},
    page::ENTER,
    streams::Directory,
    webdriver::{Driver, Session},
};

struct World<'d> {
    binary: PathBuf,
    server: Server,
    session: Session<'d>,
    _folder: Directory,
}

/// The function of a check.
type Check = fn(&mut World<'_>) -> Result<(), Failure>;

const CHECKS: &[(&str, Check)] = &[
    ("hooks are listed with their failures, and an open circuit is told", circuit_is_told),
    ("webhooks are listed with their events and retries", webhooks_are_listed),
    ("a slow client is listed with its queue", slow_client_is_listed),
    ("the nodes of a cluster are listed, and an outage of the broker is told", nodes_are_listed),
];

pub(crate) const KEY: &str = "an-api-key-of-the-browser-checks";

/// Runs all checks and returns the numbers of passed and failed checks.
pub(crate) fn run(binary: &Path, tools: &Tools) -> Result<[usize; 2], Failure> {
    let folder = Directory::new("operations")?;
    let config = failing_application(&folder)?;
    let slow = ["--websocket-overflow", "drop-newest"];
    let server = Server::start_with(binary, &[&["--config", &config, "--api-key", KEY], &slow[..]].concat())?;
    let driver = Driver::start(tools)?;
    let session = Session::start(&driver, 1180, 760)?;
    let mut world = World { binary: binary.to_owned(), server, session, _folder: folder };
    Ok(go_through(&mut world, CHECKS))
}

/// Writes a configuration with a hook and a webhook whose application does not answer; returns its path.
pub(crate) fn failing_application(folder: &Directory) -> Result<String, Failure> {
    let path = format!("{}/sinews.toml", folder.path());
    // No program listens at port 1 of the loopback interface.
    let file = "[hooks]\nrpc = \"http://127.0.0.1:1/rpc\"\n[webhook.shop]\nurl = \"http://127.0.0.1:1/events\"\n\
                secret = \"a secret of more than thirty-two bytes\"\ngrace = \"0s\"\n";
    fs::write(&path, file)?;
    Ok(path)
}

/// Calls the application until its circuit is open, and causes events for the webhook, from a page of the server.
pub(crate) fn fail_calls(session: &Session<'_>) -> Result<(), Failure> {
    let script = "window.caller = new WebSocket(`ws://${location.host}/ws`);
        caller.onopen = () => caller.send(JSON.stringify({ op: 'subscribe', id: 0, topic: 'orders' }));
        return new Promise((done) => { caller.onmessage = ({ data }) => {
            const { id } = JSON.parse(data);
            if (id >= 40) done(true);
            else if (id >= 0) caller.send(JSON.stringify({ op: 'rpc', id: id + 1, method: 'price' }));
        }; });";
    session.script(script, &[]).map(drop)
}

impl World<'_> {
    fn open(&self) -> Result<(), Failure> {
        open_dashboard(&self.session, &self.server)
    }
}

pub(crate) fn open_dashboard(session: &Session<'_>, server: &Server) -> Result<(), Failure> {
    session.open(&server.url("dashboard"))?;
    until("the dashboard is live", || Ok(session.text("#state")? == "live"))
}

/// The cells of the rows of a table; a row's cells are separated by `|`.
fn rows(session: &Session<'_>, table: &str) -> Result<String, Failure> {
    let script = "return [...document.querySelectorAll(`#${arguments[0]} tr`)]
        .map((row) => [...row.cells].map((cell) => cell.textContent).join('|')).join('\\n')";
    Ok(session.script(script, &[table])?.as_str().unwrap_or_default().to_owned())
}

/// Waits until a condition holds for the rows of a table.
fn until_rows(
    session: &Session<'_>,
    table: &str,
    what: &str,
    holds: impl Fn(&str) -> bool,
) -> Result<(), Failure> {
    let mut last = String::new();
    let found = until(what, || {
        last = rows(session, table)?;
        Ok(holds(&last))
    });
    found.map_err(|failure| Failure::new(format!("{failure}; the table has {last:?}")))
}

fn circuit_is_told(w: &mut World<'_>) -> Result<(), Failure> {
    w.open()?;
    let hidden = w.session.script("return document.getElementById('hooks-open').hidden", &[])?;
    ensure(hidden == true, || "an open circuit is told without requests".to_owned())?;
    fail_calls(&w.session)?;
    until_rows(&w.session, "hooks", "the failures are listed", |rows| {
        rows.starts_with("rpc|") && rows.contains(" failed") && rows.contains(" not asked")
    })?;
    until("the open circuit is told", || {
        Ok(w.session
            .text("#hooks-open")?
            .starts_with("1 address of hooks failed and is not asked for a while"))
    })
}

fn webhooks_are_listed(w: &mut World<'_>) -> Result<(), Failure> {
    // The application does not answer: the events are sent again and again.
    until_rows(&w.session, "webhooks", "the webhook has retries", |rows| {
        let cells: Vec<&str> = rows.split('|').collect();
        let has_columns = cells.len() == 6 && cells[0] == "shop" && cells[2].contains(" event");
        has_columns && cells[1].starts_with("0 events") && cells[5] != "0"
    })
}

/// A client that subscribes to a topic and reads nothing.
fn deaf_client(server: &Server) -> Result<TcpStream, Failure> {
    let host = server.url("");
    let host = host.trim_start_matches("http://").trim_end_matches('/');
    let mut stream = TcpStream::connect(host)?;
    let key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13";
    write!(
        stream,
        "GET /topics/prices HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{key}\r\n\r\n"
    )?;
    let mut head = [0; 12];
    stream.read_exact(&mut head)?;
    ensure(head.ends_with(b" 101"), || "the handshake is rejected".to_owned())?;
    Ok(stream)
}

fn slow_client_is_listed(w: &mut World<'_>) -> Result<(), Failure> {
    w.open()?;
    let _deaf = deaf_client(&w.server)?;
    w.session.press("#key", &format!("{KEY}{ENTER}"))?;
    until_rows(&w.session, "connections", "the client is listed", |rows| rows.contains("|/topics/{name}|"))?;
    w.session.click("label:has(#find-slow)")?;
    until("no client is slow", || Ok(w.session.text("#connections-none")? == "No client is slow."))?;
    let price = "x".repeat(60_000);
    let url = w.server.url("topics/prices");
    until("the slow client is listed", || {
        for _ in 0..50 {
            w.server.publish(&url, &price)?;
        }
        w.session.click("#find button")?;
        let rows = rows(&w.session, "connections")?;
        Ok(rows.contains("|/topics/{name}|") && (rows.contains(" KiB|") || rows.contains(" MiB|")))
    })
}

/// Starts two nodes of a cluster. `None` if the machine has no broker.
pub(crate) fn two_nodes(binary: &Path, name: &str) -> Result<Option<(Broker, [Server; 2])>, Failure> {
    let Some(broker) = Broker::start(name)? else { return Ok(None) };
    let nodes = [broker.node(binary, "eu-1", &[])?, broker.node(binary, "eu-2", &[])?];
    Ok(Some((broker, nodes)))
}

/// Waits until the dashboard lists both nodes.
pub(crate) fn until_two_nodes(session: &Session<'_>) -> Result<(), Failure> {
    until_rows(session, "nodes", "both nodes are listed with version and uptime", |rows| {
        let is_whole = |row: &str| {
            let cells: Vec<&str> = row.split('|').collect();
            let has_version =
                cells.get(1).is_some_and(|text| text.starts_with(|at: char| at.is_ascii_digit()));
            has_version && cells.get(2).is_some_and(|text| text.ends_with(" s") || text.ends_with(" min"))
        };
        let names: Vec<&str> = rows.lines().filter_map(|row| row.split('|').next()).collect();
        rows.lines().all(is_whole) && names.len() == 2 && names.contains(&"eu-1") && names.contains(&"eu-2")
    })
}

/// Waits until the page says, or says no longer, that the broker is away.
pub(crate) fn until_away(session: &Session<'_>, is_away: bool) -> Result<(), Failure> {
    until(&format!("the broker is shown as away: {is_away}"), || {
        Ok(session.text("#nodes-away")?.starts_with("The broker of the cluster is unreachable") == is_away)
    })
}

fn nodes_are_listed(w: &mut World<'_>) -> Result<(), Failure> {
    let Some((broker, nodes)) = two_nodes(&w.binary, "operations-broker")? else { return Ok(()) };
    open_dashboard(&w.session, &nodes[0])?;
    until_two_nodes(&w.session)?;
    let server = w.session.text("#server")?;
    ensure(server.contains(" · node eu-1 · "), || format!("the heading says {server:?}"))?;
    until_away(&w.session, false)?;
    broker.kill()?;
    until_away(&w.session, true)?;
    broker.restart()?;
    until_away(&w.session, false)?;
    until_two_nodes(&w.session)
}
