//! The browser's own `EventSource` and `fetch` with the topics of the server.

use std::path::Path;

use crate::{
    host::{Failure, Tools, ensure, go_through},
    notes,
    streams::World,
    webdriver::Driver,
};

/// The function of a check.
type Check = fn(&mut World<'_>) -> Result<(), Failure>;

const CHECKS: &[(&str, Check)] = &[
    ("an EventSource receives payloads as they are", payloads_arrive),
    ("an EventSource of several topics receives messages with their topic", several_topics_arrive),
    ("an EventSource resumes after a crash, without loss or repetition", event_source_resumes),
    ("an EventSource is told of a gap", gap_is_told),
    ("a page reads lines by fetch, and polls", fetch_reads),
    ("a page of another origin reads nothing", other_origin_is_rejected),
];

/// Runs all checks and returns the numbers of passed and failed checks.
pub(crate) fn run(binary: &Path, tools: &Tools) -> Result<[usize; 2], Failure> {
    let driver = Driver::start(tools)?;
    let mut world = World::start(binary, &driver, "events", &["--history", "last.>=3"])?;
    // A page without script and without a policy for any.
    world.session.open(&world.server.url("healthz"))?;
    Ok(go_through(&mut world, CHECKS))
}

impl World<'_> {
    fn run(&self, script: &str) -> Result<(), Failure> {
        notes::run(&self.session, script)
    }

    fn until_noted(&self, words: &str) -> Result<(), Failure> {
        notes::until_noted(&self.session, words)
    }

    fn publish(&self, topic: &str, text: &str) -> Result<(), Failure> {
        self.server.publish(&self.server.url(&format!("topics/{topic}")), text)
    }
}

/// Notes everything that an `EventSource` dispatches.
const OPEN: &str = "
    window.open = (path, name) => new Promise((resolve) => {
        const source = new EventSource(path);
        source.onmessage = ({ data }) => note(name + ' message ' + JSON.stringify(data));
        source.addEventListener('binary', ({ data }) => note(name + ' binary ' + data));
        source.addEventListener('close', ({ data }) => note(name + ' close ' + data));
        source.addEventListener('subscribed', ({ data }) => {
            const { topic, complete } = JSON.parse(data);
            note(name + ' subscribed ' + topic + ' ' + complete);
            resolve(source);
        });
        source.onerror = () => note(name + ' error ' + source.readyState);
    });";

fn payloads_arrive(w: &mut World<'_>) -> Result<(), Failure> {
    w.run(OPEN)?;
    w.run("window.room = await open('/topics/room', 'room'); note('open');")?;
    w.until_noted("open")?;
    for text in ["hello", "two\nlines\n\nevent: close\ndata: forged\n\n", ""] {
        w.publish("room", text)?;
        w.until_noted(&format!("room message {}", serde_json::json!(text)))?;
    }
    w.run(
        "await fetch('/topics/room', { method: 'POST', body: new Uint8Array([0, 255]),
             headers: { 'Content-Type': 'application/octet-stream' } });",
    )?;
    w.until_noted("room binary AP8=")?;
    w.run("room.close(); note('ended ' + notes.filter((it) => it.includes('close')).length);")?;
    // The forged event is data.
    w.until_noted("ended 1")
}

fn several_topics_arrive(w: &mut World<'_>) -> Result<(), Failure> {
    w.run("window.many = await open('/topics?topic=last.a&topic=room.*', 'many'); note('many open');")?;
    w.until_noted("many open")?;
    w.until_noted("many subscribed room.* undefined")?;
    w.publish("room.7", "seven")?;
    w.until_noted(
        "many message \"{\\\"op\\\":\\\"message\\\",\\\"topic\\\":\\\"room.7\\\",\\\"data\\\":\\\"seven\\\"}\"",
    )?;
    w.run("many.close(); note('many closed');")?;
    w.until_noted("many closed")
}

fn event_source_resumes(w: &mut World<'_>) -> Result<(), Failure> {
    w.run(
        "window.heard = [];
         window.kept = await open('/topics/kept.room', 'kept');
         kept.addEventListener('message', ({ data }) => note('kept all ' + heard.push(data) + ': ' + heard));
         note('kept open');",
    )?;
    w.until_noted("kept open")?;
    w.publish("kept.room", "1")?;
    w.until_noted("kept all 1: 1")?;
    w.server.kill();
    w.until_noted("kept error 0")?;
    w.server.restart()?;
    w.publish("kept.room", "2")?;
    w.publish("kept.room", "3")?;
    w.until_noted("kept all 3: 1,2,3")?;
    w.until_noted("kept subscribed kept.room true")?;
    w.run("kept.close();")
}

fn gap_is_told(w: &mut World<'_>) -> Result<(), Failure> {
    w.run("window.last = await open('/topics/last.room', 'last'); note('last open');")?;
    w.until_noted("last open")?;
    w.publish("last.room", "1")?;
    w.until_noted("last message \"1\"")?;
    // The history is in memory, so another process has none.
    w.server.stop()?;
    w.until_noted("last close {\"code\":1001,\"reason\":\"server stops\"}")?;
    w.server.restart()?;
    w.until_noted("last subscribed last.room false")?;
    w.run("last.close();")
}

fn fetch_reads(w: &mut World<'_>) -> Result<(), Failure> {
    w.run(
        "const response = await fetch('/topics/lines', { headers: { Accept: 'application/x-ndjson' } });
         const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
         const lines = [];
         const next = async () => {
             while (lines.length === 0) lines.push(...(await reader.read()).value.trimEnd().split('\\n'));
             return JSON.parse(lines.shift());
         };
         note('line ' + typeof (await next()).connection);
         note('line ' + (await next()).op);
         note('line ' + (await next()).data);
         reader.cancel();
         const poll = async (query) => (await fetch('/topics/last.poll?' + query,
             { headers: { Accept: 'application/json' } })).json();
         const { cursor } = await poll('wait=0');
         note('poll begins');
         const { messages } = await poll('after=' + cursor);
         note('poll ' + messages[1].data);",
    )?;
    w.until_noted("line string")?;
    w.until_noted("line ack")?;
    w.publish("lines", "first")?;
    w.until_noted("line first")?;
    w.until_noted("poll begins")?;
    w.publish("last.poll", "polled")?;
    w.until_noted("poll polled")
}

fn other_origin_is_rejected(w: &mut World<'_>) -> Result<(), Failure> {
    let other = w.server.beside(&[])?;
    let url = other.url("topics/room");
    w.run(&format!(
        "const source = new EventSource({url:?});
         source.onmessage = () => note('foreign message');
         source.onerror = () => note('foreign error ' + source.readyState);"
    ))?;
    // 2: it does not connect again.
    w.until_noted("foreign error 2")?;
    let heard = notes::all(&w.session)?.iter().any(|note| note == "foreign message");
    ensure(!heard, || "a page of another origin received a message".to_owned())
}
