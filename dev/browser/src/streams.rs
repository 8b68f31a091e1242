//! Streams and durable topics in the pages.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::{
    host::{Failure, Server, Tools, ensure, go_through, until},
    notes,
    webdriver::{Driver, Session},
};

/// A server with streams, and a window.
pub(crate) struct World<'d> {
    pub(crate) server: Server,
    pub(crate) session: Session<'d>,
    _directory: Directory,
}

/// The function of a check.
type Check = fn(&mut World<'_>) -> Result<(), Failure>;

const CHECKS: &[(&str, Check)] = &[
    ("a topic in a stream is resumed after a crash, without loss or repetition", topic_survives),
    ("the client appends, and reads from any place on", client_appends_and_reads),
    ("a consumption goes on after a crash, without loss or repetition", consumption_survives),
    ("a member of a group resumes at the committed offset", group_goes_on),
    ("the dashboard says that there are no streams yet", dashboard_is_empty),
    ("the dashboard shows a stream, its size and the lag of its groups", dashboard_shows),
    ("a stream that rejects appends shows the reason", failure_is_told),
    ("a phone shows streams without sideways scrolling", phone_fits),
];

/// Runs all checks and returns the numbers of passed and failed checks.
pub(crate) fn run(binary: &Path, tools: &Tools) -> Result<[usize; 2], Failure> {
    let driver = Driver::start(tools)?;
    let mut world = World::start(binary, &driver, "streams", &[])?;
    Ok(go_through(&mut world, CHECKS))
}

impl<'d> World<'d> {
    /// Starts a server whose topics `kept.>` are durable, with a directory of this name.
    pub(crate) fn start(
        binary: &Path,
        driver: &'d Driver,
        name: &str,
        options: &[&str],
    ) -> Result<Self, Failure> {
        let directory = Directory::new(name)?;
        let streams = directory.path();
        let durable = ["--streams", &*streams, "--streams-topics", "kept.>"];
        let server = Server::start_with(binary, &[&durable[..], options].concat())?;
        let session = Session::start(driver, 1180, 760)?;
        Ok(Self { server, session, _directory: directory })
    }
}

/// A temporary directory, deleted on drop.
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
        // Leftovers stay in the system's temporary directory.
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
        // It may arrive before the page is open.
        w.server.publish(&w.server.url("topics/kept.room"), &words)?;
        notes::until_noted(&w.session, &format!("heard {words}"))?;
    }
    let heard = w.session.script("return heard.join('|')", &[])?;
    ensure(heard == "1 one|2 round 0|3 round 1|4 round 2", || format!("it heard {heard}"))?;
    let gap = notes::all(&w.session)?.iter().any(|note| note == "gap");
    ensure(!gap, || "a gap was reported".to_owned())
}

fn client_appends_and_reads(w: &mut World<'_>) -> Result<(), Failure> {
    notes::run(
        &w.session,
        "window.stream = client.stream('parcels');
         const first = await stream.append({ n: 0 }, { key: 'k' });
         await stream.append(new Uint8Array([0, 255]), { ack: 'memory' });
         await stream.append('two');
         note('appended at ' + first.offset);
         const { records, next } = await stream.read(0);
         note('read ' + records.map(({ offset, key, data }) => `${offset} ${key} ${JSON.stringify(data)}`).join(' ') + ' ' + next);
         const { partitions } = await stream.info();
         note('ends at ' + partitions[0].end);
         await stream.append(1, { partition: 7 }).catch(({ code }) => note('refused ' + code));
         stream.consume(() => {}, { group: 'g', partition: 0, onerror: ({ code }) => note('onerror ' + code) });",
    )?;
    for words in ["appended at 0", "ends at 3", "refused 404", "onerror 422"] {
        notes::until_noted(&w.session, words)?;
    }
    let read = r#"read 0 k {"n":0} 1 undefined {"0":0,"1":255} 2 undefined "two" 3"#;
    notes::until_noted(&w.session, read)
}

fn consumption_survives(w: &mut World<'_>) -> Result<(), Failure> {
    notes::run(
        &w.session,
        "window.records = [];
         const consumption = stream.consume(({ offset, data }) => {
             records.push(`${offset} ${data}`);
             note('record ' + data);
         }, { from: { offset: 2 }, ongap: () => note('gap of a stream') });
         await consumption.ready;",
    )?;
    notes::until_noted(&w.session, "record two")?;
    for round in 0..3 {
        w.server.kill();
        w.server.restart()?;
        let words = format!("crash {round}");
        w.server.publish(&w.server.url("streams/parcels"), &words)?;
        notes::until_noted(&w.session, &format!("record {words}"))?;
    }
    let records = w.session.script("return records.join('|')", &[])?;
    ensure(records == "2 two|3 crash 0|4 crash 1|5 crash 2", || format!("it heard {records}"))?;
    let gap = notes::all(&w.session)?.iter().any(|note| note == "gap of a stream");
    ensure(!gap, || "a gap was reported".to_owned())
}

fn group_goes_on(w: &mut World<'_>) -> Result<(), Failure> {
    notes::run(
        &w.session,
        "const jobs = client.stream('jobs');
         for (const n of [0, 1, 2, 3]) await jobs.append(n);
         const heard = [];
         const first = jobs.consume(async ({ data }) => {
             heard.push(data);
             if (data !== 1) return;
             // The later records were received and not committed.
             await first.commit();
             first.stop();
             note('committed with ' + data);
             const second = jobs.consume(({ data }) => note('second member: ' + data), { group: 'workers' });
             await second.ready;
             note('shared');
         }, { group: 'workers', onassigned: (partitions) => note('assigned ' + partitions) });",
    )?;
    for words in ["assigned 0", "committed with 1", "shared"] {
        notes::until_noted(&w.session, words)?;
    }
    w.server.publish(&w.server.url("streams/jobs"), "later")?;
    for words in ["second member: 2", "second member: 3", "second member: later"] {
        notes::until_noted(&w.session, words)?;
    }
    let again = notes::all(&w.session)?.iter().any(|note| note == "second member: 1");
    ensure(!again, || "committed records were delivered again".to_owned())?;
    let info = "client.stream('jobs').info().then(({ groups }) => note('stored ' + groups[0].partitions[0].offset));";
    notes::run(&w.session, info)?;
    notes::until_noted(&w.session, "stored 2")
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
    until("the input and the time of a sync are measured", || {
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
    // The next file of the stream cannot be created.
    fs::remove_dir_all(directory.0.join("streams"))?;
    let large = "x".repeat(40_000);
    while server.publish(&url, &large).is_ok() {}
    w.session.open(&server.url("dashboard"))?;
    until("the stream says that it has failed", || {
        let words = "return document.querySelector('#streams .fault')?.innerText ?? ''";
        let words = w.session.script(words, &[])?;
        let words = words.as_str().unwrap_or_default();
        Ok(words.starts_with("appends fail: ") && words.contains("orders"))
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
