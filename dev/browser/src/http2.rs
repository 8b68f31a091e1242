//! The chat over TLS with HTTP/2: Chromium sends the WebSocket on the connection of the page (RFC 8441).

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{
    host::{Failure, Program, Tools, ensure, free_port, go_through, until},
    page::Page,
    webdriver::Driver,
};

struct World<'d> {
    anna: Page<'d>,
    ben: Page<'d>,
}

/// The function of a check.
type Check = fn(&mut World<'_>) -> Result<(), Failure>;

const CHECKS: &[(&str, Check)] = &[
    ("over TLS, the page is loaded by HTTP/2", page_is_loaded),
    ("each window has its WebSocket on the connection of its page", websockets_share_connections),
    ("messages pass between WebSockets over HTTP/2", messages_pass),
    ("a reload opens a WebSocket over HTTP/2 again", reload_connects),
];

/// Runs all checks and returns the numbers of passed and failed checks.
pub(crate) fn run(binary: &Path, tools: &Tools) -> Result<[usize; 2], Failure> {
    let files = Certificate::create()?;
    let address = format!("127.0.0.1:{}", free_port()?);
    let mut command = Command::new(binary);
    command.args(["serve", "--listen", &address]);
    command.arg("--tls-certificate").arg(files.0.join("certificate.pem"));
    command.arg("--tls-key").arg(files.0.join("key.pem"));
    let _server = Program::start(&mut command)?;
    until("the server accepts connections", || Ok(TcpStream::connect(&*address).is_ok()))?;
    let driver = Driver::start(tools)?;
    let url = format!("https://{address}/chat");
    let anna = Page::enter(&driver, &url, "Anna")?;
    let ben = Page::enter(&driver, &url, "Ben")?;
    Ok(go_through(&mut World { anna, ben }, CHECKS))
}

/// A directory with a certificate that the browser accepts because its session says so; removed when it is dropped.
struct Certificate(PathBuf);

impl Certificate {
    fn create() -> Result<Self, Failure> {
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let made = rcgen::generate_simple_self_signed(names);
        let made = made.map_err(|error| Failure::new(format!("no certificate: {error}")))?;
        let certificate =
            Self(std::env::temp_dir().join(format!("sinews-browser-tls-{}", std::process::id())));
        fs::create_dir_all(&certificate.0)?;
        fs::write(certificate.0.join("certificate.pem"), made.cert.pem())?;
        fs::write(certificate.0.join("key.pem"), made.signing_key.serialize_pem())?;
        Ok(certificate)
    }
}

impl Drop for Certificate {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A value of the server's metrics, read by the page.
fn metric(page: &Page<'_>, name: &str) -> Result<u64, Failure> {
    let script = "const request = new XMLHttpRequest();
        request.open('GET', '/metrics', false);
        request.send();
        const line = request.responseText.split('\\n').find((line) => line.startsWith(`${arguments[0]} `));
        return Number(line?.split(' ')[1] ?? 0);";
    page.session.script(script, &[name])?.as_u64().ok_or_else(|| Failure::new(format!("no number of {name}")))
}

fn page_is_loaded(w: &mut World<'_>) -> Result<(), Failure> {
    let script = "return performance.getEntriesByType('navigation')[0].nextHopProtocol";
    let protocol = w.anna.session.script(script, &[])?;
    ensure(protocol == "h2", || format!("the page was loaded by {protocol}"))
}

fn websockets_share_connections(w: &mut World<'_>) -> Result<(), Failure> {
    let (websockets, connections) = (
        metric(&w.anna, "sinews_http2_websockets_total")?,
        metric(&w.anna, "sinews_http2_connections_total")?,
    );
    ensure(websockets == 2 && connections >= 2, || {
        format!("{websockets} WebSockets on {connections} connections of HTTP/2")
    })
}

fn messages_pass(w: &mut World<'_>) -> Result<(), Failure> {
    w.anna.say("Do you read me?")?;
    w.ben.until_message("Do you read me?")?;
    w.ben.say("Yes")?;
    w.anna.until_message("Yes")?;
    w.anna.until_nothing_pending()
}

fn reload_connects(w: &mut World<'_>) -> Result<(), Failure> {
    w.ben.session.reload()?;
    w.ben.until_connected()?;
    w.anna.say("Welcome back")?;
    w.ben.until_message("Welcome back")?;
    let websockets = metric(&w.anna, "sinews_http2_websockets_total")?;
    ensure(websockets == 3, || format!("{websockets} WebSockets over HTTP/2 were opened"))
}
