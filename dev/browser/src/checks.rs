//! Checks of the chat page in the windows of two people, Anna and Ben.
//!
//! The checks run in order in the same two windows. A failed check may cause later failures; the first is the
//! cause.

use std::path::Path;

use crate::{
    host::{Failure, Server, Tools, ensure, go_through},
    page::{ENTER, Page},
    webdriver::Driver,
};

struct World<'d> {
    server: Server,
    driver: &'d Driver,
    anna: Page<'d>,
    ben: Page<'d>,
}

impl World<'_> {
    fn lobby(&self) -> String {
        self.server.url("topics/sinews.chat.lobby")
    }
}

/// The function of a check.
type Check = fn(&mut World<'_>) -> Result<(), Failure>;

const CHECKS: &[(&str, Check)] = &[
    ("both windows show both people", presence_shows_both),
    ("a message typed and sent by a click arrives in the other window", message_by_click),
    ("Enter sends, Shift+Enter breaks the line", enter_sends),
    ("the echo confirms delivery", echo_confirms),
    ("markup stays text, addresses become safe links", markup_stays_text),
    ("a room with a history shows retained messages, and typing is not retained", history_is_shown),
    ("a publication of a terminal is announced in both windows", terminal_is_announced),
    ("malformed frames change nothing", malformed_frames_are_ignored),
    ("a message that comes twice is shown once", repeated_message_is_shown_once),
    ("the other window shows a typing person", typing_is_shown),
    ("a new name is shown in the other window", rename_is_told),
    ("rooms are isolated, and messages in the other room are counted", rooms_are_isolated),
    ("a hidden tab counts unread messages in its title", hidden_tab_counts),
    ("members of other programs come, change and go with their connection", other_members_are_shown),
    ("closing the window leaves at once", closing_leaves),
    ("a stopped server is explained, new messages are queued", stop_is_explained),
    ("\"Try now\" tries at once", try_now_tries),
    ("both windows reconnect, queued messages are delivered once", reconnect_delivers),
    ("a message waits for a person whom a stopping server disconnected first", message_waits_for_the_first),
    ("a crashed server is survived too", crash_is_survived),
    ("name and room survive a reload", reload_remembers),
    ("a message over the limit cannot be sent", limit_is_kept),
    ("a message that the server rejects as too long is not retried", refused_message_is_given_up),
    ("a connection that went silent is replaced", silence_is_noticed),
    ("the log keeps 500 entries, follows its end, and leaves the reader alone", log_is_bounded),
    ("every control has a name for a screen reader", controls_are_named),
    ("a phone shows the page without sideways scrolling, the menu opens and closes", phone_fits),
    ("the console holds no error", console_is_clean),
];

/// Runs all checks and returns the numbers of passed and failed checks.
pub(crate) fn run(binary: &Path, tools: &Tools) -> Result<[usize; 2], Failure> {
    // Without the history of rooms, the page itself has to save messages from a restart.
    let server = Server::start_with(binary, &["--history", "kept.*=10", "--chat-history", "off"])?;
    let driver = Driver::start(tools)?;
    let anna = Page::enter(&driver, &server.url("chat"), "Anna")?;
    let ben = Page::enter(&driver, &server.url("chat"), "Ben")?;
    let mut world = World { server, driver: &driver, anna, ben };
    Ok(go_through(&mut world, CHECKS))
}

fn presence_shows_both(w: &mut World<'_>) -> Result<(), Failure> {
    w.anna.until_people(&["Anna", "Ben"])?;
    w.ben.until_people(&["Anna", "Ben"])?;
    let summary = w.anna.session.text("#count")?;
    ensure(summary == "2 here", || format!("the heading says {summary:?}"))
}

fn message_by_click(w: &mut World<'_>) -> Result<(), Failure> {
    w.anna.say("Hello Ben, do you read me?")?;
    w.ben.until_message("Hello Ben, do you read me?")?;
    // A message fades in: the first frame of the animation has no visible text.
    w.ben.until("the message is shown as from Anna", || {
        Ok(w.ben.session.text(".log:not([hidden]) .msg:last-child .name")? == "Anna")
    })
}

fn enter_sends(w: &mut World<'_>) -> Result<(), Failure> {
    // E008 holds Shift until E000 releases all keys.
    w.ben.session.press("#message", &format!("Loud\u{E008}{ENTER}\u{E000}and clear{ENTER}"))?;
    w.anna.until_message("Loud\nand clear")
}

fn echo_confirms(w: &mut World<'_>) -> Result<(), Failure> {
    w.anna.until_nothing_pending()?;
    w.ben.until_nothing_pending()?;
    let (a, b) = (w.anna.messages()?, w.ben.messages()?);
    ensure(a == b && a.len() == 2, || format!("the windows differ: {a:?} and {b:?}"))
}

fn markup_stays_text(w: &mut World<'_>) -> Result<(), Failure> {
    let text = "<img src=x onerror=alert(1)> javascript://%0aalert(1) see https://example.org/a?b=1.";
    w.anna.say(text)?;
    w.ben.until_message(text)?;
    let links = "return [...document.querySelectorAll('.log:not([hidden]) .msg a')]
        .map((a) => `${a.href} ${a.rel} ${a.target}`).join('|') + document.querySelectorAll('.log img').length";
    let links = w.ben.session.script(links, &[])?;
    let wanted = "https://example.org/a?b=1 noopener noreferrer nofollow ugc _blank0";
    ensure(links == wanted, || format!("links and images: {links}"))
}

fn history_is_shown(w: &mut World<'_>) -> Result<(), Failure> {
    let url = w.server.url("chat#kept.log");
    let dora = Page::enter(w.driver, &url, "Dora")?;
    dora.say("For people who come later")?;
    dora.until_nothing_pending()?;
    let eve = Page::enter(w.driver, &url, "Eve")?;
    eve.until_message("For people who come later")?;
    let title = eve.session.script("return document.title", &[])?;
    ensure(title == "#kept.log · Sinews", || format!("retained messages count as unread: {title}"))?;
    // The sign lasts for a few seconds only.
    dora.until("Eve is shown as typing", || {
        eve.session.press("#message", "Thanks")?;
        Ok(dora.session.text("#typing")? == "Eve is typing…")
    })?;
    let history = "const request = new XMLHttpRequest();
        request.open('GET', '/topics/kept.log?wait=0&last=10', false);
        request.setRequestHeader('Accept', 'application/json');
        request.send();
        return JSON.parse(request.responseText).messages.map(({ data }) => data?.t ?? '').join(' ');";
    let retained = dora.session.script(history, &[])?;
    ensure(retained == " msg", || format!("the topic retains {retained}"))?;
    // The tab has the same id after a reload.
    dora.session.reload()?;
    dora.until("the own message is shown as such", || Ok(dora.count(".msg.mine:not(.pending)")? == 1))?;
    eve.join("quiet")?;
    eve.until("the option is named that retains messages", || {
        Ok(eve.session.text("#empty-text")?.contains("--history 'sinews.chat.quiet=100'"))
    })
}

fn terminal_is_announced(w: &mut World<'_>) -> Result<(), Failure> {
    let command = w.anna.session.text("#curl")?;
    let url = command.strip_prefix("curl -d 'hello' ").unwrap_or_default();
    ensure(url == w.lobby(), || format!("the page offers the command {command:?}"))?;
    w.server.publish(url, "hello")?;
    w.anna.until_announced("hello")?;
    w.ben.until_announced("hello")
}

fn malformed_frames_are_ignored(w: &mut World<'_>) -> Result<(), Failure> {
    let people = w.anna.people()?;
    let entries = w.anna.count(".log:not([hidden]) > *")?;
    let id = "eeeeeeeeeeee";
    for frame in [
        r#"{"sinews":1}"#.to_owned(),
        r#"{"sinews":1,"t":"typing","id":["eeeeeeeeeeee"],"name":"x"}"#.to_owned(),
        format!(r#"{{"sinews":1,"t":"shout","id":"{id}","name":"x"}}"#),
        format!(r#"{{"sinews":1,"t":"typing","id":"{id}","name":""}}"#),
        format!(r#"{{"sinews":1,"t":"typing","id":"{id}","name":{{}}}}"#),
        format!(r#"{{"sinews":1,"t":"msg","id":"{id}","name":"x","m":7,"text":"x"}}"#),
        format!(r#"{{"sinews":1,"t":"msg","id":"{id}","name":"x","m":"{id}","text":["x"]}}"#),
    ] {
        w.server.publish(&w.lobby(), &frame)?;
    }
    // Published last: once it is shown, all earlier messages have been processed.
    w.server.publish(&w.lobby(), r#"{"not": "ours"}"#)?;
    w.anna.until_announced(r#"{"not": "ours"}"#)?;
    let more = w.anna.count(".log:not([hidden]) > *")? - entries;
    ensure(more == 1, || format!("{more} entries instead of 1"))?;
    let now = w.anna.people()?;
    ensure(now == people, || format!("the people became {now:?}"))
}

fn repeated_message_is_shown_once(w: &mut World<'_>) -> Result<(), Failure> {
    // Simulates a lost connection between a message and its echo.
    let message =
        r#"{"sinews":1,"t":"msg","id":"c0ffeec0ffee","name":"Ghost","m":"abcdef012345","text":"Twice"}"#;
    for frame in [message, message, "after the message"] {
        w.server.publish(&w.lobby(), frame)?;
    }
    w.anna.until_announced("after the message")?;
    let times = w.anna.messages()?.iter().filter(|text| *text == "Twice").count();
    ensure(times == 1, || format!("shown {times} times"))
}

fn typing_is_shown(w: &mut World<'_>) -> Result<(), Failure> {
    let mut typed = String::new();
    w.anna.until("Ben is shown as typing", || {
        // The sign lasts for a few seconds only.
        w.ben.session.press("#message", "Well")?;
        typed += "Well";
        Ok(w.anna.session.text("#typing")? == "Ben is typing…")
    })?;
    w.ben.session.press("#message", &format!(" then{ENTER}"))?;
    w.anna.until_message(&format!("{typed} then"))?;
    w.anna.until("no person is shown as typing", || Ok(w.anna.session.text("#typing")?.is_empty()))
}

fn rename_is_told(w: &mut World<'_>) -> Result<(), Failure> {
    // Names come from strangers like messages do: markup must stay text here too.
    w.ben.rename("<u>Ben</u>")?;
    w.anna.until_notice("Ben is now called <u>Ben</u>")?;
    w.anna.until_people(&["<u>Ben</u>", "Anna"])?;
    w.ben.rename("Ben")?;
    w.anna.until_people(&["Anna", "Ben"])
}

fn rooms_are_isolated(w: &mut World<'_>) -> Result<(), Failure> {
    w.ben.join("attic")?;
    w.ben.until_people(&["Ben"])?;
    w.ben.say("Nobody hears this")?;
    w.ben.until_nothing_pending()?;
    let hash = w.ben.session.script("return location.hash", &[])?;
    ensure(hash == "#attic", || format!("the address says {hash}"))?;
    w.anna.say("Ben, where are you?")?;
    w.ben.until("the lobby counts one unread message", || {
        Ok(w.ben.session.text("[data-room=lobby]")?.lines().nth(1) == Some("1"))
    })?;
    let attic = w.ben.messages()?;
    ensure(attic == ["Nobody hears this"], || format!("the attic holds {attic:?}"))?;
    w.ben.go_to("lobby")?;
    w.ben.until_message("Ben, where are you?")?;
    w.ben.say("Back again")?;
    w.anna.until_message("Back again")?;
    let lobby = w.anna.messages()?;
    ensure(!lobby.contains(&attic[0]), || "the lobby received the message of the attic".to_owned())
}

fn hidden_tab_counts(w: &mut World<'_>) -> Result<(), Failure> {
    let covered = w.ben.session.cover_with_new_tab()?;
    w.anna.say("One")?;
    w.anna.say("Two")?;
    w.ben.until("the title of the hidden tab counts two", || {
        Ok(covered.titles()?.iter().any(|title| title == "(2) #lobby · Sinews"))
    })?;
    drop(covered);
    let title = "return document.title";
    w.ben.until("the visible tab counts nothing", || {
        Ok(w.ben.session.script(title, &[])? == "#lobby · Sinews")
    })
}

fn other_members_are_shown(w: &mut World<'_>) -> Result<(), Failure> {
    // Not of the page: any client can join, with any info.
    let ghost = "window.ghost = new WebSocket(location.origin.replace('http', 'ws') + '/ws');
        ghost.join = (info) => ghost.send(JSON.stringify({op: 'join', topic: 'sinews.chat.lobby', member: {id: 'ghost', info}}));
        ghost.onopen = () => ghost.join({name: 7, hue: 'green'});";
    w.ben.session.script(ghost, &[])?;
    w.anna.until_notice("ghost joined")?;
    w.anna.until_people(&["Anna", "Ben", "ghost"])?;
    w.ben.session.script("ghost.join({name: ' Casper\\u202E ', hue: 40})", &[])?;
    w.anna.until_notice("ghost is now called Casper")?;
    w.anna.until_people(&["Anna", "Ben", "Casper"])?;
    w.ben.session.script("ghost.close()", &[])?;
    w.anna.until_notice("Casper left")?;
    w.anna.until_people(&["Anna", "Ben"])
}

fn closing_leaves(w: &mut World<'_>) -> Result<(), Failure> {
    let cleo = Page::enter(w.driver, &w.server.url("chat#lobby"), "Cleo")?;
    w.anna.until_people(&["Anna", "Ben", "Cleo"])?;
    cleo.until_people(&["Anna", "Ben", "Cleo"])?;
    cleo.session.close_window()?;
    w.anna.until_notice("Cleo left")?;
    w.ben.until_people(&["Anna", "Ben"])
}

fn stop_is_explained(w: &mut World<'_>) -> Result<(), Failure> {
    w.server.stop()?;
    for page in [&w.anna, &w.ben] {
        page.until("the state says reconnecting", || Ok(page.session.text("#state")? != "connected"))?;
        page.until("the next attempt is counted down", || {
            Ok(page.session.text("#countdown")?.starts_with("Trying again in "))
        })?;
    }
    w.ben.say("Said while away")?;
    w.ben.until("the message is marked as waiting", || {
        Ok(w.ben.session.text(".log:not([hidden]) .pending .mark")? == "waiting for the connection")
    })
}

fn try_now_tries(w: &mut World<'_>) -> Result<(), Failure> {
    // Counts the attempts, and makes them fail until the next check has Anna offline.
    let count = "window.attempts = 0;
        window.astray = true;
        window.WebSocket = class extends WebSocket {
            constructor(url) {
                super(window.astray ? String(url).replace('/ws', '/nowhere') : url);
                window.attempts += 1;
            }
        };";
    w.anna.session.script(count, &[])?;
    // The client connects in the next task, which precedes this one's. No other timer of the page expires until then, so the single
    // attempt is the click's. While an attempt fails, there is no button to click.
    let click = "return (async () => {
        const [button] = document.querySelectorAll('#retry:not([hidden])');
        if (!button) return -1;
        const before = window.attempts;
        button.click();
        await new Promise((resolve) => setTimeout(resolve));
        return window.attempts - before;
    })()";
    let mut attempts = -1;
    w.anna.until("the button is shown", || {
        attempts = w.anna.session.script(click, &[])?.as_i64().unwrap_or_default();
        Ok(attempts >= 0)
    })?;
    ensure(attempts == 1, || format!("{attempts} attempts"))?;
    w.anna.until("the failed attempt is explained", || {
        Ok(w.anna.session.text("#cause")? == "The server cannot be reached.")
    })
}

fn reconnect_delivers(w: &mut World<'_>) -> Result<(), Failure> {
    // The page of Ben waits for Anna until she is back: its clock stands still.
    w.ben.session.script(STOP_CLOCK, &[])?;
    w.server.restart()?;
    reconnect(&w.ben)?;
    // Anna is still offline, and the server has no history: a message sent now would be lost for her.
    w.ben.until("the message waits for Anna", || {
        Ok(w.ben.session.text(".log:not([hidden]) .pending .mark")? == "waiting for other people")
    })?;
    w.anna.session.script("window.astray = false", &[])?;
    reconnect(&w.anna)?;
    // Other people, who have just left, do not come back: the page does not wait longer for them.
    w.ben.session.script(START_CLOCK, &[])?;
    w.anna.until_message("Said while away")?;
    w.ben.until_nothing_pending()?;
    w.ben.say("And now?")?;
    w.anna.until_message("And now?")?;
    let times = w.anna.messages()?.iter().filter(|text| *text == "Said while away").count();
    ensure(times == 1, || format!("delivered {times} times"))?;
    w.anna.until_people(&["Anna", "Ben"])?;
    ensure(w.anna.count("#banner:not([hidden])")? == 0, || "the banner is still there".to_owned())
}

fn message_waits_for_the_first(w: &mut World<'_>) -> Result<(), Failure> {
    // The page of Anna may open more slowly than the page of Ben waits, and the server may stop long after Anna has left.
    w.ben.session.script(STOP_CLOCK, &[])?;
    w.anna.session.open("about:blank")?;
    w.ben.until_people(&["Ben"])?;
    w.server.stop()?;
    w.ben.until("the state says reconnecting", || Ok(w.ben.session.text("#state")? != "connected"))?;
    w.ben.say("Said to those who come back")?;
    w.server.restart()?;
    reconnect(&w.ben)?;
    w.ben.until("the message waits for Anna", || {
        Ok(w.ben.session.text(".log:not([hidden]) .pending .mark")? == "waiting for other people")
    })?;
    w.anna.session.open(&w.server.url("chat#lobby"))?;
    w.anna.until_connected()?;
    w.ben.session.script(START_CLOCK, &[])?;
    w.anna.until_message("Said to those who come back")?;
    w.ben.until_nothing_pending()?;
    w.anna.until_people(&["Anna", "Ben"])
}

/// Stops the clock of a page. Its timers run.
const STOP_CLOCK: &str = "window.dateNow ??= Date.now; const at = Date.now(); Date.now = () => at";
const START_CLOCK: &str = "Date.now = window.dateNow";

/// Lets a page try until it is connected. An attempt that began before fails first, and a later one would miss the time
/// that messages wait for other people. The script clicks even where the button is hidden.
fn reconnect(page: &Page<'_>) -> Result<(), Failure> {
    page.until("the page is connected", || {
        page.session.script("document.querySelector('#retry').click()", &[])?;
        Ok(page.session.text("#state")? == "connected")
    })
}

fn crash_is_survived(w: &mut World<'_>) -> Result<(), Failure> {
    w.server.kill();
    w.anna.until("the loss is explained", || Ok(!w.anna.session.text("#cause")?.is_empty()))?;
    w.server.restart()?;
    w.anna.until_connected()?;
    w.ben.until_connected()?;
    w.anna.say("Still here")?;
    w.ben.until_message("Still here")
}

fn reload_remembers(w: &mut World<'_>) -> Result<(), Failure> {
    w.ben.go_to("attic")?;
    w.ben.session.reload()?;
    w.ben.until_connected()?;
    w.ben.until_people(&["Ben"])?;
    let title = w.ben.session.text("#title")?;
    ensure(title == "attic", || format!("the room is {title:?}"))?;
    w.ben.go_to("lobby")?;
    w.ben.until_people(&["Anna", "Ben"])?;
    w.anna.until_people(&["Anna", "Ben"])
}

fn limit_is_kept(w: &mut World<'_>) -> Result<(), Failure> {
    // Pasted, like a long text.
    let paste =
        "const box = document.querySelector('#message'); box.value = 'x'.repeat(Number(arguments[0]));
        box.dispatchEvent(new Event('input', {bubbles: true}));";
    w.anna.session.script(paste, &["2001"])?;
    let hint = w.anna.session.text("#hint")?;
    ensure(hint == "1 characters too long", || format!("the hint says {hint:?}"))?;
    ensure(w.anna.count("#send:disabled")? == 1, || "the button is enabled".to_owned())?;
    w.anna.session.script(paste, &["2000"])?;
    w.anna.session.click("#send")?;
    w.ben.until_message(&"x".repeat(2000))
}

fn refused_message_is_given_up(w: &mut World<'_>) -> Result<(), Failure> {
    // Every message that the page can send fits every server's limit, so the rejection is simulated.
    let refuse = "const send = WebSocket.prototype.send;
        WebSocket.prototype.send = function (frame) {
            if (!frame.includes('\"msg\"')) return send.call(this, frame);
            WebSocket.prototype.send = send;
            setTimeout(() => this.onclose(new CloseEvent('close', {code: 1009})));
        };";
    w.ben.session.script(refuse, &[])?;
    w.ben.say("Too long for you")?;
    w.ben.until("the message is given up", || {
        Ok(w.ben.count(".log:not([hidden]) .failed")? == 1 && w.ben.count(".pending")? == 0)
    })?;
    w.ben.until_connected()?;
    w.ben.say("Shorter")?;
    w.anna.until_message("Shorter")?;
    ensure(!w.anna.messages()?.iter().any(|text| text == "Too long for you"), || {
        "it was sent again".to_owned()
    })
}

fn silence_is_noticed(w: &mut World<'_>) -> Result<(), Failure> {
    // Simulates a pulled cable: no bytes pass in either direction, and no event reports it.
    let cut = "const send = WebSocket.prototype.send;
        let dead = null;
        WebSocket.prototype.send = function (frame) {
            dead ??= this;
            if (this !== dead) return send.call(this, frame);
            this.onmessage = null;
        };";
    w.ben.session.script(cut, &[])?;
    w.ben.say("Is this thing on?")?;
    w.anna.until_message("Is this thing on?")?;
    w.ben.until_nothing_pending()
}

fn log_is_bounded(w: &mut World<'_>) -> Result<(), Failure> {
    for number in 1..=510 {
        w.server.publish(&w.lobby(), &format!("line {number}"))?;
    }
    w.anna.until_announced("line 510")?;
    let entries = w.anna.count(".log:not([hidden]) > *")?;
    ensure(entries == 500, || format!("{entries} entries"))?;
    let from_end = "const log = document.querySelector('.log:not([hidden])');
        return Math.round(log.scrollHeight - log.clientHeight - log.scrollTop)";
    let at_end = || Ok(w.anna.session.script(from_end, &[])?.as_i64().is_some_and(|distance| distance < 4));
    w.anna.until("the log shows its end", at_end)?;

    // The page learns of it in its next frame.
    let scroll = "return new Promise((done) => {
        const log = document.querySelector('.log:not([hidden])');
        log.addEventListener('scroll', () => done(true), { once: true });
        log.scrollTop = 100;
    })";
    w.anna.session.script(scroll, &[])?;
    w.anna.until("the reader is away from the end", || Ok(!at_end()?))?;
    w.ben.say("Look down")?;
    w.anna
        .until("the pill tells of one message", || Ok(w.anna.session.text("#jump")? == "1 new message ↓"))?;
    ensure(!at_end()?, || "the log moved under the reader".to_owned())?;
    w.anna.session.click("#jump")?;
    w.anna.until("the log shows its end again", at_end)?;
    ensure(w.anna.count("#jump:not([hidden])")? == 0, || "the pill stays".to_owned())
}

fn controls_are_named(w: &mut World<'_>) -> Result<(), Failure> {
    for css in ["#message", "#send", "#name-input", "#room-input", "#room-join", "#copy", "#menu"] {
        // The menu button exists on phones only; its name is read there.
        if css == "#menu" {
            phone(&w.ben, true)?;
        }
        // The page takes another size in its next frame.
        w.ben.until(&format!("{css} has a name"), || Ok(!w.ben.session.accessible_name(css)?.is_empty()))?;
    }
    phone(&w.ben, false)
}

fn phone_fits(w: &mut World<'_>) -> Result<(), Failure> {
    phone(&w.ben, true)?;
    let sideways = w
        .ben
        .session
        .script("const page = document.documentElement; return page.scrollWidth - page.clientWidth", &[])?;
    ensure(sideways == 0, || format!("the page is {sideways} px too wide"))?;
    let small = "return [...document.querySelectorAll('input, textarea')]
        .filter((field) => parseFloat(getComputedStyle(field).fontSize) < 16).length";
    let small = w.ben.session.script(small, &[])?;
    ensure(small == 0, || format!("{small} fields under 16 px, which phones zoom into"))?;
    let drawer = "return getComputedStyle(document.querySelector('#side')).visibility";
    w.ben.until("the menu is hidden", || Ok(w.ben.session.script(drawer, &[])? == "hidden"))?;
    w.ben.session.click("#menu")?;
    let place = "return document.querySelector('#side').getBoundingClientRect().left";
    w.ben.until("the menu is open", || {
        Ok(w.ben.session.script(drawer, &[])? == "visible" && w.ben.session.script(place, &[])? == 0)
    })?;
    w.ben.go_to("attic")?;
    w.ben.until("the menu is closed", || Ok(w.ben.session.script(drawer, &[])? == "hidden"))?;
    phone(&w.ben, false)
}

fn console_is_clean(w: &mut World<'_>) -> Result<(), Failure> {
    for page in [&w.anna, &w.ben] {
        // The attempts to reach the stopped server are expected in the log as network errors.
        let refused = |message: &str| {
            // A connection that is accepted while the server stops or starts is reset, or ends without an answer.
            let errors = ["WebSocket connection to", "net::ERR_CONNECTION_", "net::ERR_EMPTY_RESPONSE"];
            errors.iter().any(|error| message.contains(error))
        };
        let errors = page.session.console_errors()?;
        let errors: Vec<_> = errors.into_iter().filter(|(_, message)| !refused(message)).collect();
        ensure(errors.is_empty(), || format!("{}: {errors:?}", page.name))?;
    }
    Ok(())
}

fn phone(page: &Page<'_>, on: bool) -> Result<(), Failure> {
    let size = serde_json::json!({"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": true});
    let command = if on { "setDeviceMetricsOverride" } else { "clearDeviceMetricsOverride" };
    page.session.devtools(&format!("Emulation.{command}"), &size).map(drop)
}
