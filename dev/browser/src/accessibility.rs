//! Tests the pages with axe-core: no violation of WCAG 2.2 A and AA, or of its best practices.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::{
    host::{Failure, Server, Tools, ensure, go_through, until},
    page::ENTER,
    webdriver::{Driver, Session},
};

struct World<'d> {
    server: Server,
    session: Session<'d>,
    axe: String,
}

const KEY: &str = "an-api-key-of-the-browser-checks";

type Check = fn(&mut World<'_>) -> Result<(), Failure>;

const CHECKS: &[(&str, Check)] = &[
    ("axe finds no violation on the start page", |w| w.examine("", "complete")),
    ("axe finds no violation in the chat, with a message in it", |w| w.examine("chat", "connected")),
    ("axe finds no violation on the console", |w| w.examine("console", "connected")),
    ("axe finds no violation on the dashboard", |w| w.examine("dashboard", "live")),
    ("axe finds no violation on the dashboard with an API key", |w| w.examine_clients()),
    ("axe finds no violation on the console with results", |w| w.examine_results()),
];

/// Runs all checks with the script of axe-core, and returns the numbers of passed and failed checks.
pub(crate) fn run(binary: &Path, tools: &Tools, axe: &Path) -> Result<[usize; 2], Failure> {
    let axe = fs::read_to_string(axe).map_err(|error| Failure::new(format!("{}: {error}", axe.display())))?;
    let server = Server::start_with(binary, &["--history", "kept.*=10", "--api-key", KEY])?;
    let driver = Driver::start(tools)?;
    let session = Session::start(&driver, 1180, 760)?;
    Ok(go_through(&mut World { server, session, axe }, CHECKS))
}

impl World<'_> {
    /// Opens a page, waits until it shows `state`, and runs axe in it.
    fn examine(&self, page: &str, state: &str) -> Result<(), Failure> {
        self.session.open(&self.server.url(page))?;
        let shown = "return document.querySelector('#state')?.textContent ?? document.readyState";
        until(&format!("/{page} is {state}"), || Ok(self.session.script(shown, &[])? == state))?;
        if page == "chat" {
            self.server.publish(&self.server.url("topics/lobby"), "hello")?;
            let announced = "return document.querySelector('[data-testid=announcement]') !== null";
            until("the announcement is shown", || Ok(self.session.script(announced, &[])? == true))?;
        }
        self.examine_devices(page)
    }

    /// Runs axe on a desktop and on a phone, light and dark.
    fn examine_devices(&self, page: &str) -> Result<(), Failure> {
        for (width, height, mobile) in [(1180, 760, false), (390, 844, true)] {
            let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile});
            self.session.devtools("Emulation.setDeviceMetricsOverride", &size)?;
            for scheme in ["light", "dark"] {
                let features = json!([
                    {"name": "prefers-color-scheme", "value": scheme},
                    {"name": "prefers-reduced-motion", "value": "reduce"},
                ]);
                self.session.devtools("Emulation.setEmulatedMedia", &json!({ "features": features }))?;
                let body = format!("{}\n{EXAMINE}", self.axe);
                let found = self.session.script(&body, &[])?;
                let place = || format!("/{page}, {scheme}, {width} px wide: {found:#}");
                ensure(found == Value::Array(Vec::new()), place)?;
            }
        }
        self.session.devtools("Emulation.clearDeviceMetricsOverride", &json!({})).map(drop)
    }

    /// The dashboard with clients, actions, hooks and webhooks.
    fn examine_clients(&self) -> Result<(), Failure> {
        self.session.open(&self.server.url("dashboard"))?;
        until("the dashboard is live", || Ok(self.session.text("#state")? == "live"))?;
        let connect = "window.peer = new WebSocket(`ws://${location.host}/ws`);
            return new Promise((open) => { window.peer.onopen = () => open(true); });";
        self.session.script(connect, &[])?;
        self.session.press("#key", &format!("{KEY}{ENTER}"))?;
        until("a client is listed", || Ok(self.session.text("#connections")?.contains("/ws")))?;
        self.examine_devices("dashboard")?;
        self.session.press("#revoke-token", &format!("t{ENTER}"))?;
        until("the dialog asks", || Ok(self.session.text("#sure")?.contains("Revoke the token")))?;
        self.examine_devices("dashboard, with the dialog")
    }

    /// The console with a subscription, a message and an error.
    fn examine_results(&self) -> Result<(), Failure> {
        self.session.open(&self.server.url("console"))?;
        until("the console is connected", || Ok(self.session.text("#state")? == "connected"))?;
        self.session.click("#run")?;
        until("it is subscribed", || Ok(self.session.text("#chips")?.starts_with("lobby")))?;
        self.session.click("label[for=call-history]")?;
        self.session.click("#run")?;
        until("an error is shown", || Ok(self.session.text("#log")?.contains("history")))?;
        self.examine_devices("console, with results")
    }
}

const EXAMINE: &str = "return axe.run(document, { resultTypes: ['violations'] }).then(({ violations }) =>
    violations.map(({ id, impact, help, nodes }) => `${id} (${impact}): ${help}: ${nodes.map(({ html }) => html).join(' | ')}`));";
