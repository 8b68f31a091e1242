//! Pictures of a staged conversation, for the README and for work on the design.

use std::{env, fs, path::Path};

use serde_json::json;

use crate::{
    broker::Broker,
    guests::Secret,
    host::{Failure, Server, Tools},
    notes,
    page::{ENTER, Page},
    streams::Directory,
    webdriver::{Driver, Session},
};

/// (speaker, text); "" is a terminal.
const TALK: &[(&str, &str)] = &[
    ("Mara", "Morning! Is the tide table for the weekend out already?"),
    ("Jonas", "Since an hour ago: https://example.org/tides/saturday"),
    ("Jonas", "High water is at 7:40, so the boat leaves at seven sharp."),
    ("Mara", "Seven it is. I bring coffee, you bring the chart."),
    ("", "harbour gauge: 3.12 m, rising"),
    ("Jonas", "Did you set that up? A gauge that talks to us is wonderful."),
    ("Mara", "One line of curl in a cron job. It says hello every hour."),
    ("Mara", "Ines is coming too, she only has to find her boots."),
];

/// Writes `chat.png` (the README's, at double resolution), the same scene dark, on a phone and with the phone's menu
/// open, an empty room, and the page without its server.
pub(crate) fn take(binary: &Path, tools: &Tools, directory: &Path) -> Result<(), Failure> {
    fs::create_dir_all(directory)?;
    let (binary, directory) = (&binary.canonicalize()?, &directory.canonicalize()?);
    let folder = Directory::new("pictures")?;
    env::set_current_dir(folder.path())?;
    let server = Server::start_with(binary, &["--streams", "pages", "--streams-topics", "prices.>"])?;
    let driver = Driver::start(tools)?;
    pages(&server, &driver, directory)?;
    dashboard(binary, &driver, directory)?;
    let url = server.url("chat#harbour");
    let [mara, jonas, ines] = [
        actor(&driver, &url, "Mara", 185)?,
        actor(&driver, &url, "Jonas", 45)?,
        actor(&driver, &url, "Ines", 245)?,
    ];
    mara.join("kitchen")?;
    mara.join("lobby")?;
    mara.go_to("harbour")?;
    mara.until_people(&["Ines", "Jonas", "Mara"])?;
    // The notices of arrival are removed before the conversation.
    mara.session.script("document.querySelectorAll('.notice').forEach((notice) => notice.remove())", &[])?;
    for (who, words) in TALK {
        match *who {
            "Mara" => mara.say(words)?,
            "Jonas" => jonas.say(words)?,
            _ => server.publish(&server.url("topics/sinews.chat.harbour"), words)?,
        }
        if who.is_empty() {
            mara.until_announced(words)?
        } else {
            mara.until_message(words)?
        }
        jonas.until_nothing_pending()?;
    }
    server.publish(&server.url("topics/sinews.chat.kitchen"), "the kettle boils")?;
    mara.until_nothing_pending()?;
    ines.session.press("#message", "Found")?;
    mara.until("Ines types", || Ok(mara.session.text("#typing")?.starts_with("Ines")))?;
    shoot(&mara, directory)?;
    mara.go_to("lobby")?;
    write(&mara, directory, "phone-empty")?;
    drop(server);
    show_on(&mara, DESKTOP)?;
    mara.go_to("harbour")?;
    mara.say("Typed while the server is away")?;
    mara.until("the banner is shown", || Ok(mara.count("#banner:not([hidden])")? == 1))?;
    write(&mara, directory, "chat-offline")
}

fn actor<'d>(driver: &'d Driver, url: &str, name: &'static str, hue: u16) -> Result<Page<'d>, Failure> {
    let page = Page::enter(driver, url, name)?;
    // Colors are random; the picture must be reproducible.
    let color = "const me = JSON.parse(sessionStorage.getItem('sinews.me'));
        sessionStorage.setItem('sinews.me', JSON.stringify({ ...me, hue: Number(arguments[0]) }));";
    page.session.script(color, &[&hue.to_string()])?;
    page.session.reload()?;
    page.until_connected()?;
    Ok(page)
}

/// Takes pictures of the start page and of the console.
fn pages(server: &Server, driver: &Driver, directory: &Path) -> Result<(), Failure> {
    let page = Page { name: "nobody", session: Session::start(driver, 1180, 760)? };
    page.session.open(&server.url(""))?;
    show_both(&page, directory, "start")?;
    page.session.open(&server.url("console"))?;
    page.until("it is connected", || Ok(page.session.text("#state")? == "connected"))?;
    page.session.script("document.getElementById('field-topic').value = ''", &[])?;
    page.session.press("#field-topic", &format!("prices.gold{ENTER}"))?;
    page.until("it is subscribed", || Ok(!page.session.text("#chips")?.is_empty()))?;
    for price in ["{\"eur\": 3712.4}", "{\"eur\": 3713.1}"] {
        server.publish(&server.url("topics/prices.gold"), price)?;
    }
    page.session.click("label[for=call-publish]")?;
    page.session.click("label[for=language-javascript]")?;
    show_both(&page, directory, "console")
}

/// The servers of the dashboard's pictures: nodes of a cluster, if the machine has its broker.
struct Nodes {
    secret: Secret,
    servers: Vec<Server>,
    _broker: Option<Broker>,
}

impl Nodes {
    fn start(binary: &Path) -> Result<Self, Failure> {
        let secret = Secret::new(binary, "pictures")?;
        let (file, broker) = (secret.path(), Broker::start("pictures-broker")?);
        // The page shows the path of the streams: relative to the directory of the process.
        let options = ["--auth-secret-file", &file, "--auth-public-publish", ">", "--origin", "any"];
        let first = [&options[..], &["--streams", "data", "--api-key", KEY]].concat();
        let servers = match &broker {
            Some(broker) => {
                vec![broker.node(binary, "harbour-1", &first)?, broker.node(binary, "harbour-2", &options)?]
            }
            None => vec![Server::start_with(binary, &first)?],
        };
        Ok(Self { secret, servers, _broker: broker })
    }

    /// Connects clients with users, members and keys, from a page.
    fn connect(&self, session: &Session<'_>) -> Result<(), Failure> {
        let (subscribe, publish) = (["--subscribe", ">"], ["--publish", ">"]);
        for (at, user) in USERS.iter().enumerate() {
            let rights = [&["--subject", user, "--keys", "boats/*"], &subscribe[..], &publish[..]].concat();
            let token = self.secret.token(&rights)?;
            let server = &self.servers[at % self.servers.len()];
            let script = format!(
                "const {{ connect }} = await import('/sinews.js');
                 const client = connect('{}', {{ token: '{token}' }});
                 await client.subscribe('{}', () => {{}}).ready;
                 await client.subscribe('prices.gold', () => {{}}).ready;
                 await client.join('harbour', {{ id: '{user}' }});
                 for (const boat of [1, 2, 3]) await client.set('boats', `{user}-${{boat}}`, {{ x: boat, y: {at} }});
                 note('{user}');",
                server.url("ws").replace("http", "ws"),
                ["weather", "harbour", "tides"][at % 3],
            );
            notes::run(session, &script)?;
            notes::until_noted(session, user)?;
        }
        Ok(())
    }
}

const USERS: [&str; 7] = ["mara", "jonas", "ines", "tove", "lars", "aino", "piet"];
const KEY: &str = "an-api-key-of-the-pictures-of-the-pages";

/// Takes pictures of the dashboard of an operator.
fn dashboard(binary: &Path, driver: &Driver, directory: &Path) -> Result<(), Failure> {
    let nodes = Nodes::start(binary)?;
    let server = &nodes.servers[0];
    let page = Page { name: "nobody", session: Session::start(driver, 1180, 760)? };
    let clients = Session::start(driver, 800, 600)?;
    clients.open(&server.url("healthz"))?;
    nodes.connect(&clients)?;
    let viewer = nodes.secret.token(&["--subscribe", ">", "--publish", ">"])?;
    notes::run(&clients, &WORKERS.replace("TOKEN", &viewer))?;
    notes::until_noted(&clients, "ready")?;
    page.session.open(&server.url(&format!("dashboard#token={viewer}")))?;
    // Waits until a curve is visible; each round has a different size.
    let mut round = 0;
    page.until("there is a curve", || {
        round += 1;
        for _ in 0..20 + 10 * (round % 4) {
            server.publish(&server.url("topics/prices.gold"), "1")?;
            server.publish(&server.url("topics/weather"), "2")?;
            server.publish(&server.url("topics/prices.gold"), "3")?;
        }
        let line = "return (document.querySelector('[data-testid=messages] .line').getAttribute('d') ?? '')
            .split('L').length";
        Ok(page.session.script(line, &[])?.as_u64().is_some_and(|points| points > 10))
    })?;
    show_both(&page, directory, "dashboard")?;
    // The picture of the book has the whole page down to the topics.
    show_on(&page, TALL)?;
    write(&page, directory, "dashboard")?;
    page.session.press("#key", &format!("{KEY}{ENTER}"))?;
    page.until("the clients are listed", || Ok(page.session.text("#connections")?.contains("mara")))?;
    for section in ["topics-title", "streams-section", "clients-title"] {
        for (prefix, device) in [("", DESKTOP), ("phone-", PHONE)] {
            show_on(&page, device)?;
            let scroll = format!("document.getElementById('{section}').scrollIntoView()");
            page.session.script(&scroll, &[])?;
            write(&page, directory, &format!("{prefix}dashboard-{section}"))?;
        }
    }
    show_on(&page, DESKTOP)
}

/// On a desktop and on a phone, light and dark.
fn show_both(page: &Page<'_>, directory: &Path, name: &str) -> Result<(), Failure> {
    for (prefix, device) in [("", DESKTOP), ("phone-", PHONE)] {
        show_on(page, device)?;
        for (scheme, suffix) in [("dark", "-dark"), ("light", "")] {
            scheme_is(page, scheme)?;
            write(page, directory, &format!("{prefix}{name}{suffix}"))?;
        }
    }
    show_on(page, DESKTOP)
}

/// A stream with constant writes, and two of its groups: one keeps up, one does not.
const WORKERS: &str = "
    const url = location.href.replace(/^http/, 'ws').replace('healthz', 'streams/orders?token=TOKEN');
    for (const group of ['billing', 'warehouse']) {
        const socket = new WebSocket(url);
        const say = (words) => socket.send(JSON.stringify(words));
        socket.onmessage = ({ data }) => {
            const { op, next } = JSON.parse(data);
            if (op === 'welcome') {
                say({ op: 'consume', id: 1, group });
                say({ op: 'commit', id: 2, group, offset: 0 });
            }
            if (op === 'records' && group === 'billing') say({ op: 'commit', group, offset: next });
            if (op === 'ack') note('ready');
        };
    }
    const shop = new WebSocket(url);
    const order = { item: 'rope, 12 mm', metres: 30, to: 'Pier 3' };
    shop.onopen = () => setInterval(() => shop.send(JSON.stringify({ op: 'append', data: order })), 20);";

/// Width, height, and whether the device has touch input.
const DESKTOP: (u32, u32, bool) = (1180, 740, false);
/// For charts, nodes and topics in one picture.
const TALL: (u32, u32, bool) = (1180, 1500, false);
const PHONE: (u32, u32, bool) = (390, 844, true);

fn shoot(page: &Page<'_>, directory: &Path) -> Result<(), Failure> {
    for (name, device) in [("chat", DESKTOP), ("phone", PHONE)] {
        show_on(page, device)?;
        for (scheme, suffix) in [("dark", "-dark"), ("light", "")] {
            scheme_is(page, scheme)?;
            write(page, directory, &format!("{name}{suffix}"))?;
        }
    }
    page.session.click("#menu")?;
    write(page, directory, "phone-menu")
}

/// Disables animations, so that no picture is taken halfway.
fn scheme_is(page: &Page<'_>, scheme: &str) -> Result<(), Failure> {
    let features = json!([
        {"name": "prefers-color-scheme", "value": scheme},
        {"name": "prefers-reduced-motion", "value": "reduce"},
    ]);
    page.session.devtools("Emulation.setEmulatedMedia", &json!({ "features": features })).map(drop)
}

fn show_on(page: &Page<'_>, (width, height, mobile): (u32, u32, bool)) -> Result<(), Failure> {
    let size = json!({"width": width, "height": height, "deviceScaleFactor": 2, "mobile": mobile});
    page.session.devtools("Emulation.setDeviceMetricsOverride", &size).map(drop)
}

fn write(page: &Page<'_>, directory: &Path, name: &str) -> Result<(), Failure> {
    let path = directory.join(format!("{name}.png"));
    fs::write(&path, page.session.screenshot()?)?;
    println!("wrote {}", path.display());
    Ok(())
}
