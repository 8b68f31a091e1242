//! Checks of `/sinews.js` in an otherwise empty page, then of the pages that use it.

use std::path::Path;

use serde_json::json;

use crate::{
    host::{Failure, Server, Tools, go_through, until},
    notes,
    webdriver::{Driver, Session},
};

struct World<'d> {
    server: Server,
    session: Session<'d>,
}

/// The function of a check.
type Check = fn(&mut World<'_>) -> Result<(), Failure>;

const CHECKS: &[(&str, Check)] = &[
    ("the client connects, subscribes and receives its own publications", publishes_and_hears),
    ("text and binary messages of other clients arrive, by name and by pattern", hears_others),
    ("rejections of the server are reported with their code", refusals_are_told),
    ("presence is told as it changes", presence_is_told),
    (
        "presence, members and messages arrive by HTTP if a network blocks WebSockets",
        http_replaces_websockets,
    ),
    ("a crashed server is waited for, and subscriptions are made again", survives_a_crash),
    ("publications are queued while offline, lost messages are reported", nothing_is_lost_unnoticed),
    ("a topic that is kept is resumed without loss or repetition", kept_topic_is_resumed),
    ("waits grow, and differ", waits_grow),
    ("a URL that the browser rejects ends the client with a text", invalid_url_ends_client),
    ("an exception of a callback is reported, and stops nothing", exception_is_reported),
    ("close is for good", close_is_final),
    ("the start page links to the other pages", start_leads_on),
    ("the console receives its own publications, and shows rejections", console_talks),
    ("the dashboard draws the activity", dashboard_draws),
    ("no page is wider than a phone", phone_fits),
    ("the console holds no error", console_is_clean),
];

/// Runs all checks and returns the numbers of passed and failed checks.
pub(crate) fn run(binary: &Path, tools: &Tools) -> Result<[usize; 2], Failure> {
    let server = Server::start(binary)?;
    let driver = Driver::start(tools)?;
    let session = Session::start(&driver, 800, 600)?;
    // A page without script and without a policy for any.
    session.open(&server.url("healthz"))?;
    let mut world = World { server, session };
    Ok(go_through(&mut world, CHECKS))
}

impl World<'_> {
    fn run(&self, script: &str) -> Result<(), Failure> {
        notes::run(&self.session, script)
    }

    fn notes(&self) -> Result<Vec<String>, Failure> {
        notes::all(&self.session)
    }

    fn until_noted(&self, words: &str) -> Result<(), Failure> {
        notes::until_noted(&self.session, words)
    }
}

fn publishes_and_hears(w: &mut World<'_>) -> Result<(), Failure> {
    w.run(
        "const { connect } = await import('/sinews.js');
         window.connect = connect;
         window.client = connect(undefined, { minDelay: 50, maxDelay: 200 });
         client.onstatus = ({ status }) => note('status ' + status);
         client.subscribe('room', ({ data }) => note('heard ' + JSON.stringify(data)), {
             ongap: ({ reason }) => note('gap ' + reason),
         });
         const { reached } = await client.publish('room', { a: [1, null] });
         note('reached ' + reached);",
    )?;
    w.until_noted("status open")?;
    w.until_noted("heard {\"a\":[1,null]}")?;
    w.until_noted("reached 1")
}

fn hears_others(w: &mut World<'_>) -> Result<(), Failure> {
    w.server.publish(&w.server.url("topics/room"), "from \"curl\"")?;
    w.until_noted("heard \"from \\\"curl\\\"\"")?;
    w.run(
        "const bytes = client.subscribe('bytes', ({ data }) => note('bytes ' + data.constructor.name + ' ' + data));
         await bytes.ready;
         await client.publish('bytes', new Uint8Array([0, 128, 255]));
         bytes.unsubscribe();
         await client.publish('bytes', new Uint8Array([1]).buffer);
         note('after bytes');",
    )?;
    w.until_noted("bytes Uint8Array 0,128,255")?;
    w.until_noted("after bytes")?;
    let again = w.notes()?.iter().filter(|note| note.starts_with("bytes ")).count();
    if again == 1 { Ok(()) } else { Err(Failure::new("a message arrived after unsubscribing")) }
}

fn refusals_are_told(w: &mut World<'_>) -> Result<(), Failure> {
    w.run(
        "await client.publish('a.>', 1).catch((error) => note(`${error.name} ${error.code}`));
         const wrong = client.subscribe('a.>.b', () => {}, { onerror: ({ code }) => note('onerror ' + code) });
         await wrong.ready.catch(({ code }) => note('ready ' + code));",
    )?;
    w.until_noted("SinewsError 422")?;
    w.until_noted("onerror 422")?;
    w.until_noted("ready 422")
}

fn presence_is_told(w: &mut World<'_>) -> Result<(), Failure> {
    w.run(
        "client.subscribe('hall', () => {}, { presence: (count) => note('present ' + count) });
         window.other = connect();
         other.subscribe('hall', () => {});",
    )?;
    w.until_noted("present 1")?;
    w.until_noted("present 2")?;
    w.run("note('counted ' + await client.presence('hall')); notes.length = 0; other.close();")?;
    w.until_noted("present 1")
}

fn http_replaces_websockets(w: &mut World<'_>) -> Result<(), Failure> {
    w.run(
        "class Blocked {
             constructor() { setTimeout(() => this.onclose?.({ code: 1006, reason: '' })); }
             close() {}
         }
         window.blocked = connect(undefined, { fallback: true, minDelay: 20, WebSocket: Blocked });
         blocked.subscribe('cellar', ({ data }) => note('by http ' + data), {
             members: (members) => note('members ' + [...members.keys()]),
             presence: (count) => note('in the cellar ' + count),
         });
         window.member = connect();
         await member.join('cellar', { id: 'anna' });",
    )?;
    w.until_noted("members anna")?;
    w.until_noted("in the cellar 2")?;
    w.run(
        "const listed = await blocked.members('cellar');
         note([blocked.transport, blocked.connections.length, listed[0].id, await blocked.presence('cellar')].join());
         await member.publish('cellar', 'a message');",
    )?;
    w.until_noted("http,1,anna,2")?;
    w.until_noted("by http a message")?;
    w.run(
        "await blocked.join('cellar', { id: 'ben' });
         note('joined ' + (await member.members('cellar')).map(({ id }) => id));
         await blocked.leave('cellar');",
    )?;
    w.until_noted("joined anna,ben")?;
    w.until_noted("members anna")?;
    w.run("notes.length = 0; await member.leave('cellar');")?;
    w.until_noted("members ")?;
    w.run("blocked.close(); member.close();")
}

fn survives_a_crash(w: &mut World<'_>) -> Result<(), Failure> {
    w.run("notes.length = 0;")?;
    w.server.kill();
    w.until_noted("status waiting")?;
    w.server.restart()?;
    w.until_noted("status open")?;
    w.until_noted("gap unretained")?;
    w.until_noted("present 1")?;
    w.server.publish(&w.server.url("topics/room"), "after the crash")?;
    w.until_noted("heard \"after the crash\"")
}

fn nothing_is_lost_unnoticed(w: &mut World<'_>) -> Result<(), Failure> {
    w.run("notes.length = 0;")?;
    w.server.kill();
    w.until_noted("status waiting")?;
    w.run("note('waited ' + (await client.publish('room', 'kept back')).reached);")?;
    w.server.restart()?;
    w.until_noted("heard \"kept back\"")?;
    w.until_noted("waited 1")?;
    // A message that is sent and never answered: the connection breaks in between.
    w.run(
        "const send = WebSocket.prototype.send;
         WebSocket.prototype.send = function () { WebSocket.prototype.send = send; this.close(); };
         await client.publish('room', 'gone').catch(({ code }) => note('gone: ' + code));",
    )?;
    w.until_noted("gone: lost")?;
    w.run("note('again ' + (await client.publish('room', 1)).reached);")?;
    w.until_noted("again 1")
}

fn kept_topic_is_resumed(w: &mut World<'_>) -> Result<(), Failure> {
    let topic = w.server.url("topics/kept.room");
    w.server.publish(&topic, "1")?;
    w.run(
        "notes.length = 0;
         const heard = [];
         client.subscribe('kept.room', ({ seq, data }) => note('kept ' + heard.push(data) + ': ' + heard), {
             last: 5,
             ongap: () => note('a gap'),
         });
         // Simulates a pulled cable: the next attempt waits until it is released.
         window.cut = () => {
             const real = WebSocket;
             window.WebSocket = class { close() {} };
             window.mend = () => { window.WebSocket = real; };
             const send = real.prototype.send;
             real.prototype.send = function () { real.prototype.send = send; this.close(); };
             client.publish('kept.room', 'lost').catch(() => note('cut'));
         };",
    )?;
    w.until_noted("kept 1: 1")?;
    w.run("cut();")?;
    w.until_noted("cut")?;
    for text in ["2", "3", "4"] {
        w.server.publish(&topic, text)?;
    }
    // The client abandons a hanging attempt after its own timeout; "online" does not wait for it.
    w.run("mend(); dispatchEvent(new Event('online'));")?;
    w.until_noted("kept 4: 1,2,3,4")?;
    w.run("note('history ' + (await client.history('kept.room', 2)).map(({ data }) => data));")?;
    w.until_noted("history 3,4")?;
    let gaps = w.notes()?.iter().filter(|note| *note == "a gap").count();
    if gaps == 0 { Ok(()) } else { Err(Failure::new("a gap was reported although no message was lost")) }
}

fn invalid_url_ends_client(w: &mut World<'_>) -> Result<(), Failure> {
    w.run(
        "notes.length = 0;
         for (const url of [location.origin + '/ws#top', 'ftp://' + location.host + '/ws']) {
             const invalid = connect(url, {
                 onstatus: ({ status, code, reason }) => note([url.slice(0, 3), status, code, Boolean(reason)].join()),
             });
             invalid.publish('room', 1).catch(({ code }) => note(url.slice(0, 3) + ' publish ' + code));
         }",
    )?;
    for scheme in ["htt", "ftp"] {
        w.until_noted(&format!("{scheme},closed,0,true"))?;
        w.until_noted(&format!("{scheme} publish closed"))?;
    }
    Ok(())
}

fn exception_is_reported(w: &mut World<'_>) -> Result<(), Failure> {
    w.run(
        "notes.length = 0;
         addEventListener('error', (event) => {
             event.preventDefault();
             note(event.message);
         });
         const faulty = client.subscribe('room', () => { throw new Error('of the page'); });
         await client.publish('room', 'behind the exception');
         faulty.unsubscribe();",
    )?;
    w.until_noted("Uncaught Error: of the page")?;
    w.until_noted("heard \"behind the exception\"")
}

fn waits_grow(w: &mut World<'_>) -> Result<(), Failure> {
    w.run(
        "notes.length = 0;
         const delays = [];
         const lost = connect('/nowhere', { minDelay: 8, maxDelay: 64 });
         lost.onstatus = ({ status, delay, attempt }) => {
             if (status !== 'waiting') return;
             const most = Math.min(64, 8 * 2 ** (attempt - 1));
             if (delay < most / 2 || delay > most) note(`attempt ${attempt} waits ${delay}`);
             delays.push(delay);
             if (delays.length === 6) {
                 lost.close();
                 note(new Set(delays).size === 6 ? 'they differ' : 'alike: ' + delays);
             }
         };",
    )?;
    w.until_noted("they differ")?;
    let notes = w.notes()?;
    if notes.iter().any(|note| note.starts_with("attempt")) {
        return Err(Failure::new(format!("{notes:?}")));
    }
    Ok(())
}

fn close_is_final(w: &mut World<'_>) -> Result<(), Failure> {
    w.run(
        "client.close();
         note(client.status);
         await client.publish('room', 1).catch(({ code }) => note('publish: ' + code));",
    )?;
    w.until_noted("closed")?;
    w.until_noted("publish: closed")
}

fn start_leads_on(w: &mut World<'_>) -> Result<(), Failure> {
    for (link, page) in [("to-chat", "/chat"), ("to-console", "/console"), ("to-dashboard", "/dashboard")] {
        w.session.open(&w.server.url(""))?;
        w.session.click(&format!("[data-testid={link}]"))?;
        until(&format!("the link leads to {page}"), || {
            Ok(w.session.script("return location.pathname", &[])? == page)
        })?;
    }
    Ok(())
}

fn console_talks(w: &mut World<'_>) -> Result<(), Failure> {
    w.session.open(&w.server.url("console"))?;
    until("the console is connected", || Ok(w.session.text("#state")? == "connected"))?;
    let clear = "document.getElementById('field-topic').value = ''";
    w.session.script(clear, &[])?;
    w.session.press("#field-topic", "prices\u{E007}")?;
    until("the subscription is shown", || Ok(w.session.text("#chips")?.starts_with("prices")))?;
    let heard = |words: &str| {
        until(&format!("the console shows {words:?}"), || Ok(w.session.text("#log")?.contains(words)))
    };
    w.server.publish(&w.server.url("topics/prices"), "<b>from outside</b>")?;
    heard("<b>from outside</b>")?;
    w.session.click("#chips button")?;
    until("no subscription is left", || Ok(w.session.text("#chips")?.is_empty()))
}

fn dashboard_draws(w: &mut World<'_>) -> Result<(), Failure> {
    w.session.open(&w.server.url("dashboard"))?;
    until("the dashboard is live", || Ok(w.session.text("#state")? == "live"))?;
    let shown = |chart: &str| w.session.text(&format!("[data-testid={chart}] output"));
    until("it counts its own connection", || {
        Ok(shown("connections")?.parse::<u32>().is_ok_and(|count| count >= 1))
    })?;
    until("the round trip is measured", || {
        let words = shown("latency")?;
        Ok(words.ends_with(" ms") && words != "0 ms")
    })?;
    until("it knows the memory", || Ok(shown("memory")?.ends_with("iB")))?;
    until("a line is drawn", || {
        let line = "return document.querySelector('[data-testid=memory] .line').getAttribute('d') ?? ''";
        Ok(w.session.script(line, &[])?.as_str().is_some_and(|line| line.contains('L')))
    })?;
    until("the topic is listed with its rate", || {
        w.server.publish(&w.server.url("topics/prices"), "1")?;
        let rates = w.session.text("#rates")?;
        Ok(rates.starts_with("prices") && rates.contains("/s"))
    })
}

fn phone_fits(w: &mut World<'_>) -> Result<(), Failure> {
    let phone = json!({"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": true});
    w.session.devtools("Emulation.setDeviceMetricsOverride", &phone)?;
    for page in ["", "console", "dashboard"] {
        w.session.open(&w.server.url(page))?;
        let wider = "const page = document.documentElement; return page.scrollWidth - page.clientWidth";
        let wider = w.session.script(wider, &[])?;
        if wider != 0 {
            return Err(Failure::new(format!("/{page} is {wider} px too wide")));
        }
    }
    w.session.devtools("Emulation.clearDeviceMetricsOverride", &phone).map(drop)
}

fn console_is_clean(w: &mut World<'_>) -> Result<(), Failure> {
    // Attempts to reach an offline server are expected in the log as network errors.
    let errors = w.session.console_errors()?;
    let errors: Vec<_> =
        errors.into_iter().filter(|(_, message)| !message.contains("WebSocket connection to")).collect();
    // A page without an icon requests one.
    let errors: Vec<_> = errors.into_iter().filter(|(_, message)| !message.contains("favicon.ico")).collect();
    if errors.is_empty() { Ok(()) } else { Err(Failure::new(format!("{errors:?}"))) }
}
