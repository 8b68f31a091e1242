//! Tests the pages with axe-core: no violation of WCAG 2.2 A and AA, or of its best practices. Each state is
//! examined on a desktop and on a phone, light and dark; no page is wider than the phone.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use crate::{
    host::{Failure, Server, Tools, ensure, go_through, until},
    operations::{
        KEY, fail_calls, failing_application, open_dashboard, two_nodes, until_away, until_two_nodes,
    },
    page::{ENTER, Page},
    prices,
    streams::Directory,
    webdriver::{Driver, Session},
};

struct World<'d> {
    binary: PathBuf,
    driver: &'d Driver,
    server: Server,
    session: Session<'d>,
    axe: String,
    folders: [Directory; 3],
}

type Check = fn(&mut World<'_>) -> Result<(), Failure>;

const CHECKS: &[(&str, Check)] = &[
    ("axe finds no violation on the start page", |w| w.examine("", "complete")),
    ("axe finds no violation in the chat, with a message in it", |w| w.examine("chat", "connected")),
    ("axe finds no violation in the chat with members, messages and typing", |w| w.examine_conversation()),
    ("axe finds no violation in the open menu of a phone", |w| w.examine_menu()),
    ("axe finds no violation on the console", |w| w.examine("console", "connected")),
    ("axe finds no violation on the console with results", |w| w.examine_results()),
    ("axe finds no violation on the dashboard", |w| w.examine("dashboard", "live")),
    ("axe finds no violation on the dashboard with hooks, webhooks, apps and streams", |w| {
        w.examine_sections()
    }),
    ("axe finds no violation on the dashboard with clients and a dialog", |w| w.examine_clients()),
    ("axe finds no violation on the dashboard of a cluster, with and without its broker", |w| {
        w.examine_nodes()
    }),
    ("axe finds no violation on the example page of keys", |w| w.examine_keys()),
    ("axe finds no violation in the forms for tokens", |w| w.examine_tokens()),
    ("axe finds no violation on the pages of a stopped server", |w| w.examine_outage()),
];

/// Runs all checks with the script of axe-core, and returns the numbers of passed and failed checks.
pub(crate) fn run(binary: &Path, tools: &Tools, axe: &Path) -> Result<[usize; 2], Failure> {
    let axe = fs::read_to_string(axe).map_err(|error| Failure::new(format!("{}: {error}", axe.display())))?;
    let folders = [Directory::new("axe")?, Directory::new("axe-streams")?, Directory::new("axe-apps")?];
    let [config, streams, apps] = &folders;
    let app = "id = \"3\"\nkey = \"app-key\"\nsecret = \"app-secret\"\n";
    fs::write(format!("{}/3.toml", apps.path()), app)?;
    let config = failing_application(config)?;
    let (streams, apps) = (streams.path(), apps.path());
    let options = ["--config", &config, "--streams", &streams, "--pusher-apps-directory", &apps];
    let server = Server::start_with(binary, &[&options[..], &["--api-key", KEY]].concat())?;
    let driver = Driver::start(tools)?;
    let session = Session::start(&driver, 1180, 760)?;
    let binary = binary.to_owned();
    let mut world = World { binary, driver: &driver, server, session, axe, folders };
    Ok(go_through(&mut world, CHECKS))
}

/// Width, height, and whether the device has touch input.
const DESKTOP: (u32, u32, bool) = (1180, 760, false);
const PHONE: (u32, u32, bool) = (390, 844, true);

impl World<'_> {
    /// Opens a page, waits until it shows `state`, and runs axe in it.
    fn examine(&self, page: &str, state: &str) -> Result<(), Failure> {
        self.session.open(&self.server.url(page))?;
        let shown = "return document.querySelector('#state')?.textContent ?? document.readyState";
        until(&format!("/{page} is {state}"), || Ok(self.session.script(shown, &[])? == state))?;
        if page == "chat" {
            self.server.publish(&self.server.url("topics/sinews.chat.lobby"), "hello")?;
            let announced = "return document.querySelector('[data-testid=announcement]') !== null";
            until("the announcement is shown", || Ok(self.session.script(announced, &[])? == true))?;
        }
        self.examine_devices(&self.session, page)
    }

    /// Runs axe on a desktop and on a phone, light and dark.
    fn examine_devices(&self, session: &Session<'_>, page: &str) -> Result<(), Failure> {
        for device in [DESKTOP, PHONE] {
            self.examine_on(session, page, device, || Ok(()))?;
        }
        Ok(())
    }

    /// Runs axe on a device, light and dark, after a preparation.
    fn examine_on(
        &self,
        session: &Session<'_>,
        page: &str,
        (width, height, mobile): (u32, u32, bool),
        prepare: impl Fn() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile});
        session.devtools("Emulation.setDeviceMetricsOverride", &size)?;
        for scheme in ["light", "dark"] {
            let features = json!([
                {"name": "prefers-color-scheme", "value": scheme},
                {"name": "prefers-reduced-motion", "value": "reduce"},
            ]);
            session.devtools("Emulation.setEmulatedMedia", &json!({ "features": features }))?;
            prepare()?;
            let found = session.script(&format!("{}\n{EXAMINE}", self.axe), &[])?;
            let place = || format!("/{page}, {scheme}, {width} px wide: {found:#}");
            ensure(found == Value::Array(Vec::new()), place)?;
            let wide = session.script(WIDE, &[])?;
            ensure(wide == Value::Array(Vec::new()), || {
                format!("/{page}, {scheme}, {width} px wide, is wider than the device: {wide:#}")
            })?;
        }
        session.devtools("Emulation.clearDeviceMetricsOverride", &json!({})).map(drop)
    }

    /// The chat of two people, who write and type.
    fn examine_conversation(&self) -> Result<(), Failure> {
        let url = self.server.url("chat#talk");
        let anna = Page::enter(self.driver, &url, "Anna")?;
        let ben = Page::enter(self.driver, &url, "Ben")?;
        let long = "A word without a break: ".to_owned() + &"long".repeat(60);
        for text in ["Hello Ben", "See https://example.org/a/path", &long] {
            anna.say(text)?;
            ben.until_message(text)?;
        }
        ben.say("Hello Anna")?;
        anna.until_message("Hello Anna")?;
        anna.until_people(&["Anna", "Ben"])?;
        for device in [DESKTOP, PHONE] {
            self.examine_on(&anna.session, "chat with members", device, || {
                anna.until("Ben is shown as typing", || {
                    ben.session.press("#message", "x")?;
                    Ok(anna.session.text("#typing")? == "Ben is typing…")
                })
            })?;
        }
        Ok(())
    }

    /// The menu of the chat, with two rooms.
    fn examine_menu(&self) -> Result<(), Failure> {
        let anna = Page::enter(self.driver, &self.server.url("chat"), "Anna")?;
        anna.join("attic")?;
        self.examine_on(&anna.session, "chat, menu", PHONE, || {
            if anna.count("body.drawer")? == 0 {
                anna.session.click("#menu")?;
            }
            anna.until("the menu is open", || Ok(anna.count("body.drawer")? == 1))
        })
    }

    /// The dashboard with failing hooks and webhooks, an app and a stream.
    fn examine_sections(&self) -> Result<(), Failure> {
        self.server.publish(&self.server.url("streams/orders"), "{\"item\": 7}")?;
        open_dashboard(&self.session, &self.server)?;
        fail_calls(&self.session)?;
        for section in ["hooks", "webhooks", "apps", "streams"] {
            until(&format!("{section} are listed"), || {
                let rows = format!("return document.querySelectorAll('#{section} tr').length");
                Ok(self.session.script(&rows, &[])?.as_u64().is_some_and(|rows| rows > 0))
            })?;
        }
        until("the open circuit is told", || Ok(!self.session.text("#hooks-open")?.is_empty()))?;
        self.examine_devices(&self.session, "dashboard with all sections")
    }

    /// The dashboard with clients, and with the dialog before an action.
    fn examine_clients(&self) -> Result<(), Failure> {
        open_dashboard(&self.session, &self.server)?;
        let connect = "window.peer = new WebSocket(`ws://${location.host}/ws`);
            return new Promise((open) => { window.peer.onopen = () => open(true); });";
        self.session.script(connect, &[])?;
        self.session.press("#key", &format!("{KEY}{ENTER}"))?;
        until("a client is listed", || Ok(self.session.text("#connections")?.contains("/ws")))?;
        self.examine_devices(&self.session, "dashboard with clients")?;
        self.session.press("#revoke-token", &format!("t{ENTER}"))?;
        until("the dialog asks", || Ok(self.session.text("#sure")?.contains("Revoke the token")))?;
        self.examine_devices(&self.session, "dashboard, with the dialog")
    }

    /// The page of 1,000 prices, an example of the hub.
    fn examine_keys(&self) -> Result<(), Failure> {
        prices::with_example(|address| self.examine_prices(&format!("http://{address}/prices")))
    }

    fn examine_prices(&self, url: &str) -> Result<(), Failure> {
        self.session.open(url)?;
        let shown = "return document.querySelectorAll('#prices span').length";
        until("all prices are shown", || Ok(self.session.script(shown, &[])? == 1_000))?;
        self.examine_devices(&self.session, "prices")
    }

    /// The dashboard of a cluster.
    fn examine_nodes(&self) -> Result<(), Failure> {
        let Some((broker, nodes)) = two_nodes(&self.binary, "axe-broker")? else { return Ok(()) };
        open_dashboard(&self.session, &nodes[0])?;
        until_two_nodes(&self.session)?;
        self.examine_devices(&self.session, "dashboard with nodes")?;
        broker.kill()?;
        until_away(&self.session, true)?;
        self.examine_devices(&self.session, "dashboard without the broker")
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
        self.examine_devices(&self.session, "console, with results")
    }

    /// The forms that ask for a token, and the chat of a reader without one.
    fn examine_tokens(&self) -> Result<(), Failure> {
        let secret = format!("{}/secret", self.folders[0].path());
        fs::write(&secret, "a secret of more than thirty-two bytes, for a test")?;
        let public = ["--auth-secret-file", &secret, "--auth-public-subscribe", "sinews.chat.*"];
        let server = self.server.beside(&public)?;
        self.session.open(&server.url("dashboard"))?;
        until("the dashboard asks", || {
            Ok(self.session.text("#auth-problem")?.contains("a token is needed"))
        })?;
        self.examine_devices(&self.session, "dashboard, asking for a token")?;
        self.session.open(&server.url("console#token=wrong"))?;
        until("the console asks", || Ok(self.session.text("#auth-problem")?.contains("Rejected")))?;
        self.examine_devices(&self.session, "console, asking for a token")?;
        self.session.open(&server.url("chat"))?;
        until("the chat says that it only reads", || Ok(self.session.text("#hint")?.contains("#token=")))?;
        self.examine_devices(&self.session, "chat of a reader")
    }

    /// The chat with a banner, and the dashboard with old numbers.
    fn examine_outage(&mut self) -> Result<(), Failure> {
        let anna = Page::enter(self.driver, &self.server.url("chat"), "Anna")?;
        open_dashboard(&self.session, &self.server)?;
        self.server.kill();
        anna.say("Typed while the server is away")?;
        anna.until("the banner is shown", || Ok(anna.count("#banner:not([hidden])")? == 1))?;
        self.examine_devices(&anna.session, "chat without a server")?;
        until("the outage is told", || Ok(self.session.text("#outage")?.contains("The page tries again.")))?;
        self.examine_devices(&self.session, "dashboard without a server")
    }
}

const EXAMINE: &str = "return axe.run(document, { resultTypes: ['violations'] }).then(({ violations }) =>
    violations.map(({ id, impact, help, nodes }) => `${id} (${impact}): ${help}: ${nodes.map(({ html }) => html).join(' | ')}`));";

/// The elements that make the page wider than the device. Content of elements that scroll sideways or clip does not.
const WIDE: &str = "
    const width = document.documentElement.clientWidth;
    const clips = (element) => element && (element !== document.documentElement && element !== document.body
        && getComputedStyle(element).overflowX !== 'visible' || clips(element.parentElement));
    if (Math.max(document.documentElement.scrollWidth, document.body.scrollWidth) <= innerWidth) return [];
    return [...document.querySelectorAll('body *')].filter((element) => element.getBoundingClientRect().right > width + 1
        && !clips(element.parentElement)).map((element) => element.outerHTML.slice(0, 120)).concat(`${width} px`);";
