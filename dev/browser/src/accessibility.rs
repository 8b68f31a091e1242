//! Tests the pages with axe-core: no violation of WCAG 2.2 A and AA, or of its best practices.

use std::{fs, path::Path};

use serde_json::Value;

use crate::{
    host::{Failure, Server, Tools, ensure, go_through, until},
    webdriver::{Driver, Session},
};

struct World<'d> {
    server: Server,
    session: Session<'d>,
    axe: String,
}

type Check = fn(&mut World<'_>) -> Result<(), Failure>;

const CHECKS: &[(&str, Check)] = &[
    ("axe finds no violation on the start page", |w| w.examine("", "complete")),
    ("axe finds no violation in the chat, with a message in it", |w| w.examine("chat", "connected")),
    ("axe finds no violation on the console", |w| w.examine("console", "connected")),
    ("axe finds no violation on the dashboard", |w| w.examine("dashboard", "live")),
];

/// Runs all checks with the script of axe-core, and returns the numbers of passed and failed checks.
pub(crate) fn run(binary: &Path, tools: &Tools, axe: &Path) -> Result<[usize; 2], Failure> {
    let axe = fs::read_to_string(axe).map_err(|error| Failure::new(format!("{}: {error}", axe.display())))?;
    let server = Server::start(binary)?;
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
        let body = format!("{}\n{EXAMINE}", self.axe);
        let found = self.session.script(&body, &[])?;
        ensure(found == Value::Array(Vec::new()), || format!("/{page}: {found:#}"))
    }
}

const EXAMINE: &str = "return axe.run(document, { resultTypes: ['violations'] }).then(({ violations }) =>
    violations.map(({ id, impact, help, nodes }) => `${id} (${impact}): ${help}: ${nodes.map(({ html }) => html).join(' | ')}`));";
