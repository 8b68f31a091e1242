//! The clients on the dashboard, the actions on them, and the dashboard without its server.

use std::{fs, path::Path};

use crate::{
    guests::Secret,
    host::{Failure, Server, Tools, ensure, go_through, until},
    notes,
    webdriver::{Driver, Session},
};

struct World<'d> {
    server: Server,
    session: Session<'d>,
    /// A page of a client, Anna.
    client: Session<'d>,
    secret: Secret,
}

/// The function of a check.
type Check = fn(&mut World<'_>) -> Result<(), Failure>;

const CHECKS: &[(&str, Check)] = &[
    ("the dashboard counts users, members, topics and keys", tiles_count),
    ("the apps of the Pusher protocol are listed, without their keys", apps_are_listed),
    ("markup in the name of a topic stays text on the dashboard", markup_stays_text),
    ("charts have an axis of values and of time", charts_have_axes),
    ("without an API key no action is offered", nothing_is_offered),
    ("a wrong API key is rejected, and not kept", wrong_key_is_rejected),
    ("an API key without the right is rejected, and not kept", powerless_key_is_rejected),
    ("an API key lists the clients, for this tab only", key_lists_clients),
    (
        "the dialog is canceled by Escape, and a client is disconnected by the keyboard",
        client_is_disconnected,
    ),
    ("the tokens of a user are revoked", tokens_are_revoked),
    ("a forgotten key takes the actions away", key_is_forgotten),
    ("a stopped server is told, with the time of the numbers, and the dashboard reconnects", outage_is_told),
];

const KEY: &str = "an-api-key-of-the-browser-checks";
const READER: &str = "another-key-without-the-right-to-it";

/// Runs all checks and returns the numbers of passed and failed checks.
pub(crate) fn run(binary: &Path, tools: &Tools) -> Result<[usize; 2], Failure> {
    let secret = Secret::new(binary, "dashboard")?;
    let keys = secret.file("api-keys");
    fs::write(&keys, format!("ops {KEY} disconnect\nreader {READER} read presence\n"))?;
    let apps = secret.file("apps");
    fs::create_dir(&apps)?;
    for (id, name) in [("3", ""), ("4", "name = \"<b>shop</b>\"\n")] {
        let app = format!("id = \"{id}\"\n{name}key = \"app-key-{id}\"\nsecret = \"app-secret-{id}\"\n");
        fs::write(Path::new(&apps).join(format!("{id}.toml")), app)?;
    }
    let keys = ["--api-keys-file", &keys, "--pusher-apps-directory", &apps];
    let server = Server::start_with(binary, &[&["--auth-secret-file", &secret.path()], &keys[..]].concat())?;
    let driver = Driver::start(tools)?;
    let session = Session::start(&driver, 1180, 760)?;
    let client = Session::start(&driver, 800, 600)?;
    let mut world = World { server, session, client, secret };
    Ok(go_through(&mut world, CHECKS))
}

const MARKUP: &str = "<img src=x onerror=window.ran=1>";

impl World<'_> {
    fn open(&self) -> Result<(), Failure> {
        let token = self.secret.token(&["--subscribe", "sinews.dashboard"])?;
        self.session.open(&self.server.url("healthz"))?;
        self.session.open(&self.server.url(&format!("dashboard#token={token}")))?;
        until("the dashboard is live", || Ok(self.session.text("#state")? == "live"))
    }

    /// Connects the page of Anna.
    fn connect_client(&self) -> Result<(), Failure> {
        let rights = ["--subscribe", ">", "--publish", ">", "--keys", "players/*"];
        let token = self.secret.token(&[&["--subject", "anna", "--id", "t1"], &rights[..]].concat())?;
        self.client.open(&self.server.url("healthz"))?;
        notes::run(
            &self.client,
            &format!(
                "const {{ connect }} = await import('/sinews.js');
                 window.client = connect(undefined, {{
                     token: '{token}', minDelay: 20,
                     onstatus: ({{ status, code }}) => note(`${{status}} ${{code ?? ''}}`),
                 }});
                 await client.subscribe('{MARKUP}', () => {{}}).ready;
                 await client.join('room', {{ id: 'anna' }});
                 await client.set('players', 'anna', 1);
                 note('ready');"
            ),
        )?;
        notes::until_noted(&self.client, "ready")
    }

    fn give(&self, key: &str) -> Result<(), Failure> {
        self.session.press("#key", key)?;
        self.session.click("#key-form button")
    }

    fn kept(&self) -> Result<String, Failure> {
        let stored =
            "return `${sessionStorage.getItem('sinews.api-key')} ${JSON.stringify({ ...localStorage })}`";
        Ok(self.session.script(stored, &[])?.as_str().unwrap_or_default().to_owned())
    }

    /// Waits until a row of the list has this text, or none has it.
    fn until_listed(&self, text: &str, is_listed: bool) -> Result<(), Failure> {
        until(&format!("{text:?} is listed: {is_listed}"), || {
            Ok(self.session.text("#connections")?.contains(text) == is_listed)
        })
    }
}

fn tiles_count(w: &mut World<'_>) -> Result<(), Failure> {
    w.connect_client()?;
    w.open()?;
    for (tile, value) in
        [("users", "1"), ("members", "1"), ("topics", "1"), ("keys", "1"), ("slow-clients", "0")]
    {
        until(&format!("{tile} is {value}"), || {
            // The tiles are drawn again each second: an element of WebDriver would be gone.
            let text = "return document.querySelector(`[data-testid=${arguments[0]}] dd`)?.textContent ?? ''";
            Ok(w.session.script(text, &[tile])? == value)
        })?;
    }
    Ok(())
}

fn apps_are_listed(w: &mut World<'_>) -> Result<(), Failure> {
    let connect = "window.app = new WebSocket(`ws://${location.host}/app/app-key-4?protocol=7`);
        window.app.onopen = () => window.app.send(JSON.stringify({ event: 'pusher:subscribe', data: { channel: 'room' } }));";
    w.client.script(connect, &[])?;
    let rows = "return [...document.querySelectorAll('#apps tr')]
        .map((row) => [...row.cells].map((cell) => cell.textContent).join('|')).join(' ')";
    until("the app with a connection is the first", || {
        Ok(w.session.script(rows, &[])? == "<b>shop</b>4|1|1|0|0 events|0|0 3|0|0|0|0 events|0|0")
    })?;
    let source = w.session.script("return document.documentElement.outerHTML", &[])?;
    let source = source.as_str().unwrap_or_default();
    ensure(!source.contains("app-key") && !source.contains("app-secret"), || "the page has a key".to_owned())
}

fn markup_stays_text(w: &mut World<'_>) -> Result<(), Failure> {
    let row = "return document.querySelector('#rates tr')?.innerText.split('\\t').map((cell) => cell.trim()).join('|') ?? ''";
    until("the topic is listed with its subscriber", || {
        Ok(w.session.script(row, &[])? == format!("{MARKUP}|0/s|1|0"))
    })?;
    let found =
        w.session.script("return document.querySelectorAll('main img').length + (window.ran ?? 0)", &[])?;
    ensure(found == 0, || format!("{found} elements came from a name"))
}

fn charts_have_axes(w: &mut World<'_>) -> Result<(), Failure> {
    // The upper end of the axis is not below the curve, and the curve is inside of the chart.
    let axes = "return [...document.querySelectorAll('.chart')].map((chart) => {
        const ticks = [...chart.querySelectorAll('.ticks span')].map((tick) => tick.textContent);
        const curve = [...chart.querySelector('.line').getAttribute('d').matchAll(/[ML][\\d.]+ (-?[\\d.]+)/g)];
        const inside = curve.every(([, y]) => y >= 0 && y <= 100);
        const time = chart.querySelector('.axis').textContent;
        return ticks.length === 3 && new Set(ticks).size === 3 && inside && time === '60 s ago30 snow'
            && chart.querySelector('.most').textContent.startsWith('max ') ? '' : chart.dataset.testid + ticks + time;
    }).join('')";
    until("all charts have curves", || {
        let lines =
            "return [...document.querySelectorAll('.chart .line')].every((line) => line.getAttribute('d'))";
        Ok(w.session.script(lines, &[])? == true)
    })?;
    let faults = w.session.script(axes, &[])?;
    ensure(faults == "", || format!("charts without an axis: {faults}"))
}

fn nothing_is_offered(w: &mut World<'_>) -> Result<(), Failure> {
    let words = w.session.text("main")?;
    ensure(!words.contains("Disconnect") && !words.contains("Revoke"), || {
        format!("it offers actions: {words}")
    })
}

fn wrong_key_is_rejected(w: &mut World<'_>) -> Result<(), Failure> {
    w.give("a-key-that-the-server-does-not-have")?;
    until("the reason is shown", || Ok(w.session.text("#key-problem")?.starts_with("Rejected: ")))?;
    let kept = w.kept()?;
    ensure(kept == "null {}", || format!("it keeps {kept}"))?;
    nothing_is_offered(w)
}

fn powerless_key_is_rejected(w: &mut World<'_>) -> Result<(), Failure> {
    w.give(READER)?;
    until("the missing right is named", || {
        Ok(w.session.text("#key-problem")? == "Rejected: the key reader has no right disconnect.")
    })?;
    let kept = w.kept()?;
    ensure(kept == "null {}", || format!("it keeps {kept}"))?;
    nothing_is_offered(w)
}

fn key_lists_clients(w: &mut World<'_>) -> Result<(), Failure> {
    w.give(KEY)?;
    w.until_listed("anna", true)?;
    let kept = w.kept()?;
    ensure(kept == format!("{KEY} {{}}"), || format!("it keeps {kept}"))?;
    let entered = w.session.script("return document.getElementById('key').value", &[])?;
    ensure(entered == "", || "the field still has the key".to_owned())?;
    // A reload of the tab asks for the token of the feed, and not for the key.
    w.open()?;
    w.until_listed("anna", true)?;
    w.session.press("#find-user", "nobody\u{E007}")?;
    w.until_listed("anna", false)?;
    until("an empty list is explained", || {
        Ok(w.session.text("#clients")?.contains("No connection is open."))
    })?;
    w.session.script("document.getElementById('find-user').value = ''", &[])?;
    w.session.press("#find-user", "anna\u{E007}")?;
    w.until_listed("anna", true)
}

fn client_is_disconnected(w: &mut World<'_>) -> Result<(), Failure> {
    let button = "#connections tr button";
    w.session.press(button, "\u{E007}")?;
    until("the dialog asks", || Ok(w.session.text("#sure")?.contains("Disconnect the connection")))?;
    w.session.press("#sure", "\u{E00C}")?;
    until("the dialog is closed", || {
        Ok(w.session.script("return document.getElementById('sure').open", &[])? == false)
    })?;
    let told = w.session.text("#clients-result")?;
    ensure(told.is_empty(), || format!("canceled, and yet: {told}"))?;
    w.session.press(button, "\u{E007}")?;
    until("the dialog asks again", || Ok(w.session.text("#sure")?.contains("Disconnect the connection")))?;
    w.session.press("#sure-yes", "\u{E007}")?;
    until("the result is told", || Ok(w.session.text("#clients-result")? == "Done: 1 connection closed."))?;
    notes::until_noted(&w.client, "waiting 4410")
}

fn tokens_are_revoked(w: &mut World<'_>) -> Result<(), Failure> {
    until("the client is connected again", || {
        Ok(notes::all(&w.client)?.iter().filter(|note| *note == "open ").count() >= 2)
    })?;
    w.session.click("#find button")?;
    w.until_listed("anna", true)?;
    w.session.click("#connections button[aria-label='Revoke the tokens of anna']")?;
    until("the dialog asks", || Ok(w.session.text("#sure")?.contains("Revoke all tokens of anna")))?;
    w.session.click("#sure-yes")?;
    until(
        "the result is told",
        || Ok(w.session.text("#clients-result")? == "Revoked: 1 connection closed."),
    )?;
    notes::until_noted(&w.client, "closed 4401")?;
    // By the id of a token: it has no connection now.
    w.session.press("#revoke-token", "t2\u{E007}")?;
    until("the dialog asks", || Ok(w.session.text("#sure")?.contains("Revoke the token t2")))?;
    w.session.click("#sure-yes")?;
    until("the result is told", || Ok(w.session.text("#clients-result")? == "Revoked: 0 connections closed."))
}

fn key_is_forgotten(w: &mut World<'_>) -> Result<(), Failure> {
    w.session.click("#forget")?;
    let kept = w.kept()?;
    ensure(kept == "null {}", || format!("it keeps {kept}"))?;
    nothing_is_offered(w)
}

fn outage_is_told(w: &mut World<'_>) -> Result<(), Failure> {
    w.server.kill();
    until("the outage is told", || {
        let told = w.session.text("#outage")?;
        Ok(told.contains("The page tries again.") && told.contains("The numbers are of "))
    })?;
    w.server.restart()?;
    until("the dashboard is live", || Ok(w.session.text("#state")? == "live"))?;
    let hidden = w.session.script("return document.getElementById('outage').hidden", &[])?;
    ensure(hidden == true, || "the outage is still told".to_owned())
}
