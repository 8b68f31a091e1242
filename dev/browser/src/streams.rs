//! Streams, and topics that are kept in them, as pages see them.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::{
    host::{Failure, Server, Tools, ensure, go_through, until},
    notes,
    webdriver::{Driver, Session},
};

struct World<'d> {
    server: Server,
    session: Session<'d>,
    _directory: Directory,
}

/// What is promised, and the function that sees whether it is kept.
type Check = fn(&mut World<'_>) -> Result<(), Failure>;

const CHECKS: &[(&str, Check)] = &[
    ("a topic in a stream is resumed after a crash, without loss or repetition", topic_survives),
    ("the dashboard says that there are no streams yet", dashboard_is_empty),
    ("the dashboard shows a stream, what it holds and who is behind", dashboard_shows),
    ("a stream that takes nothing more says so, and why", failure_is_told),
    ("a phone shows streams without sideways scrolling", phone_fits),
];

/// Runs all checks and answers how many passed and how many failed.
pub(crate) fn run(binary: &Path, tools: &Tools) -> Result<[usize; 2], Failure> {
    let directory = Directory::new("streams")?;
    let streams = directory.path();
    let server = Server::start_with(binary, &["--streams", &streams, "--streams-topics", "kept.>"])?;
    let driver = Driver::start(tools)?;
    let session = Session::start(&driver, 1180, 760)?;
    let mut world = World { server, session, _directory: directory };
    Ok(go_through(&mut world, CHECKS))
}

/// A directory of its own, gone with this value.
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn new(name: &str) -> Result<Self, Failure> {
        let path = std::env::temp_dir().join(format!("sinews-browser-{name}-{}", std::process::id()));
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> String {
        self.0.display().to_string()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // What is left lies in the system's directory for such things.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn topic_survives(w: &mut World<'_>) -> Result<(), Failure> {
    w.session.open(&w.server.url("healthz"))?;
    notes::run(
        &w.session,
        "const { connect } = await import('/sinews.js');
         window.client = connect(undefined, { minDelay: 50, maxDelay: 200 });
         window.heard = [];
         const hears = client.subscribe('kept.room', ({ seq, data }) => {
             heard.push(`${seq} ${data}`);
             note('heard ' + data);
         }, { ongap: () => note('gap') });
         await hears.ready;
         const { seq } = await client.publish('kept.room', 'one');
         note('seq ' + seq);",
    )?;
    notes::until_noted(&w.session, "seq 1")?;
    notes::until_noted(&w.session, "heard one")?;
    for round in 0..3 {
        w.server.kill();
        w.server.restart()?;
        let words = format!("round {round}");
        // It may be there before the page is.
        w.server.publish(&w.server.url("topics/kept.room"), &words)?;
        notes::until_noted(&w.session, &format!("heard {words}"))?;
    }
    let heard = w.session.script("return heard.join('|')", &[])?;
    ensure(heard == "1 one|2 round 0|3 round 1|4 round 2", || format!("it heard {heard}"))?;
    let gap = notes::all(&w.session)?.iter().any(|note| note == "gap");
    ensure(!gap, || "it was told of a gap".to_owned())
}

fn dashboard_is_empty(w: &mut World<'_>) -> Result<(), Failure> {
    let directory = Directory::new("none")?;
    let server = w.server.beside(&["--streams", &directory.path()])?;
    w.session.open(&server.url("dashboard"))?;
    until("an empty table is explained", || {
        let visible = w.session.text("#streams-section")?;
        Ok(visible.contains("Nothing has been published to a stream yet.") && !visible.contains("On disk"))
    })
}

fn dashboard_shows(w: &mut World<'_>) -> Result<(), Failure> {
    w.session.open(&w.server.url("dashboard"))?;
    notes::run(
        &w.session,
        "const socket = new WebSocket(location.href.replace(/^http/, 'ws').replace('dashboard', 'streams/orders'));
         socket.onmessage = ({ data }) => {
             if (JSON.parse(data).op === 'welcome') socket.send(JSON.stringify({ op: 'append', id: 1, data: 1 }));
             else if (JSON.parse(data).id === 1) {
                 socket.send(JSON.stringify({ op: 'commit', id: 2, group: 'billing', offset: 1 }));
             } else note('committed');
         };",
    )?;
    notes::until_noted(&w.session, "committed")?;
    let row = || -> Result<String, Failure> {
        let rows = "return [...document.querySelectorAll('#streams tr')]
            .map((row) => [...row.cells].map((cell) => cell.innerText.replaceAll('\\n', ' ')).join('|'))
            .find((row) => row.startsWith('orders')) ?? ''";
        Ok(w.session.script(rows, &[])?.as_str().unwrap_or_default().to_owned())
    };
    let publish = || w.server.publish(&w.server.url("streams/orders"), "x");
    publish()?;
    until("the stream is there with its records, its file and its group", || {
        let row = row()?;
        Ok(row.contains("|2 offsets 0 to 1|")
            && row.contains(" 1 file|")
            && row.ends_with("billing: 1 behind"))
    })?;
    until("what comes in and the time of a sync are measured", || {
        publish()?;
        let row = row()?;
        let cells: Vec<&str> = row.split('|').collect();
        let shows = |cell: usize, unit: &str| {
            cells.get(cell).is_some_and(|words| words.contains(unit) && !words.starts_with("0/s"))
        };
        Ok(shows(1, "/s") && shows(5, " ms"))
    })
}

fn failure_is_told(w: &mut World<'_>) -> Result<(), Failure> {
    let directory = Directory::new("fails")?;
    let server = w.server.beside(&["--streams", &directory.path(), "--streams-segment-bytes", "64k"])?;
    let url = server.url("streams/orders");
    server.publish(&url, "x")?;
    // The next file of the stream has nowhere to be.
    fs::remove_dir_all(directory.0.join("streams"))?;
    let large = "x".repeat(40_000);
    while server.publish(&url, &large).is_ok() {}
    w.session.open(&server.url("dashboard"))?;
    until("the stream says that it has failed", || {
        let words = "return document.querySelector('#streams .fault')?.innerText ?? ''";
        let words = w.session.script(words, &[])?;
        let words = words.as_str().unwrap_or_default();
        Ok(words.starts_with("takes nothing more: ") && words.contains("orders"))
    })?;
    w.session.open(&w.server.url("dashboard"))
}

fn phone_fits(w: &mut World<'_>) -> Result<(), Failure> {
    let phone = json!({"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": true});
    w.session.devtools("Emulation.setDeviceMetricsOverride", &phone)?;
    until("the streams are there", || Ok(w.session.text("#streams")?.contains("kept.room")))?;
    let wider = "const page = document.documentElement; return page.scrollWidth - page.clientWidth";
    let wider = w.session.script(wider, &[])?;
    ensure(wider == 0, || format!("it is {wider} px too wide"))?;
    w.session.devtools("Emulation.clearDeviceMetricsOverride", &phone).map(drop)
}
