//! The browser's own `EventSource` and `fetch` with the topics of the server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::thread;

use crate::{
    guests::Secret,
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
    ("a page of an allowed origin subscribes, publishes, calls and writes by HTTP", allowed_origin_is_served),
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

/// A client whose WebSockets fail, with a token.
const CROSS_ORIGIN_CLIENT: &str = "
    class Blocked {
        constructor() { queueMicrotask(() => this.onclose?.({ code: 1006, reason: '' })); }
        close() {}
    }
    const { connect } = await import('/sinews.js');
    const client = connect(URL, { WebSocket: Blocked, fallback: true, minDelay: 1, token: TOKEN });
    const failed = (name) => ({ code }) => note(name + ' ' + code);";

fn allowed_origin_is_served(w: &mut World<'_>) -> Result<(), Failure> {
    let [page, other] = [w.server.beside(&[])?, w.server.beside(&[])?];
    let secret = Secret::new(w.server.binary(), "origins")?;
    let token = secret.token(&["--subscribe", "chat.>", "--publish", "chat.>", "--keys", "chat.room/*"])?;
    let (origin, url) = (page.url(""), application()?);
    let origin = origin.trim_end_matches('/');
    let secret = secret.path();
    let options = ["--auth-secret-file", &secret, "--origin", origin, "--hooks-rpc", &url];
    let server = w.server.beside(&[&options[..], &["--hooks-timeout", "30s"]].concat())?;
    let script = |text: &str| {
        let url = server.url("ws").replace("http:", "ws:");
        let client = CROSS_ORIGIN_CLIENT.replace("URL", &format!("{url:?}"));
        format!("{}{text}", client.replace("TOKEN", &format!("{token:?}")))
    };
    w.session.open(&page.url("healthz"))?;
    w.run(&script(
        "await client.subscribe('chat.room', ({ data }) => note('received ' + data)).ready;
         note('subscribed by ' + client.transport);
         await client.publish('chat.room', 'hello');
         note('called ' + await client.call('m', 1));
         const { epoch, seq } = await client.set('chat.room', 'k', 1, { idempotencyKey: 'once' });
         await client.delete('chat.room', 'k', { epoch, version: seq });
         note('written');
         client.publish('other', 1).catch(failed('publish'));",
    ))?;
    for note in ["subscribed by http", "received hello", "called done", "written", "publish 403"] {
        w.until_noted(note)?;
    }
    w.session.open(&other.url("healthz"))?;
    w.run(&script(&format!(
        "client.onstatus = ({{ status }}) => status === 'open' && note('a foreign page is connected');
         const headers = {{ Authorization: 'Bearer ' + {token:?} }};
         const post = (path) => fetch({:?} + path, {{ method: 'POST', headers, body: '1' }});
         post('topics/chat.room').catch(({{ name }}) => note('foreign ' + name));",
        server.url("")
    )))?;
    w.until_noted("foreign TypeError")?;
    let connected = notes::all(&w.session)?.iter().any(|note| note.contains("is connected"));
    ensure(!connected, || "a page of another origin is connected".to_owned())
}

/// Starts an application that answers each call; returns its URL.
fn application() -> Result<String, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://{}/", listener.local_addr()?);
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            // The server may have gone.
            let _ = answer_call(stream);
        }
    });
    Ok(url)
}

fn answer_call(mut stream: TcpStream) -> std::io::Result<()> {
    let mut request = BufReader::new(stream.try_clone()?);
    let mut length = 0;
    for line in (&mut request).lines() {
        let line = line?.to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
        if line.is_empty() {
            break;
        }
    }
    std::io::copy(&mut request.take(length), &mut std::io::sink())?;
    let body = r#"{"data":"done"}"#;
    write!(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}
