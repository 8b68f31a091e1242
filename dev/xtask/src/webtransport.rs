//! Sessions of WebTransport at `sinews serve`: pages of Chromium and Firefox, and webtransport-go. The client of aioquic is among
//! those of HTTP/3.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::Outcome;
use crate::backend::Backend;
use crate::certificate::Certificate;
use crate::count::Count;
use crate::http::outlived;
use crate::process;
use crate::server::Server;
use crate::tools::{self, Missing};

/// Making one certificate.
const CERTIFICATE_LIMIT: Duration = Duration::from_secs(60);

/// A server that announces HTTP/3, and the directory with its certificate.
struct Subject {
    server: Server,
    out: PathBuf,
}

impl Subject {
    /// Starts `sinews serve` with a certificate that browsers accept by its hash. `make` writes the certificate.
    fn start(binary: &Path, backend: Backend, name: &str, make: &mut Command) -> Result<Self, String> {
        let out = process::target().join(format!("xtask/http/{name}-{}", backend.name()));
        fs::create_dir_all(&out).map_err(|error| format!("{}: {error}", out.display()))?;
        let log = out.join("certificate.log");
        process::run(make.arg(&out), &log, CERTIFICATE_LIMIT)?.check("certificate", &log)?;
        let certificate = Certificate { certificate: out.join("certificate.pem"), key: out.join("key.pem") };
        let options = ["--backend", backend.name(), "--http-http3", "--threads", "2", "--origin", "any"];
        let server = Server::start_tls(binary, &options, &certificate, &out.join("serve.log"))?;
        Ok(Self { server, out })
    }

    /// Runs the checks of a browser.
    fn run_browser(&self, name: &str, browser: &mut Command) -> Count {
        browser.arg(self.server.address().to_string()).arg(&self.out);
        tools::run_checks(name, browser, &self.out.join("browser.log"))
    }
}

/// A script of Python, and the script that makes a certificate.
fn scripts(browser: &[&str]) -> Result<(Command, Command), Missing> {
    Ok((tools::python(&["webtransport.py", "certificate"])?, tools::python(browser)?))
}

pub(crate) fn run(binary: &Path, backend: Backend) -> Outcome {
    let (mut make, mut browser) = match scripts(&["webtransport.py", "serve"]) {
        Ok(scripts) => scripts,
        Err(missing) => return Ok(missing.report("webtransport")),
    };
    let mut subject = Subject::start(binary, backend, "webtransport", &mut make)?;
    let mut count = subject.run_browser("webtransport, Chromium", &mut browser);
    count = count
        + match tools::go_module("webtransport") {
            Ok(mut client) => {
                client.arg(subject.server.address().to_string());
                tools::run_checks("webtransport, webtransport-go", &mut client, &subject.out.join("go.log"))
            }
            Err(missing) => missing.report("webtransport-go"),
        };
    Ok(count + outlived(&mut subject.server))
}

/// Runs Firefox: WebSockets over HTTP/2, `sinews.js`, sessions of WebTransport, and a page over HTTP/3.
pub(crate) fn run_firefox(binary: &Path, backend: Backend) -> Outcome {
    let (mut make, mut browser) = match scripts(&["firefox.py"]) {
        Ok(scripts) => scripts,
        Err(missing) => return Ok(missing.report("firefox")),
    };
    let mut subject = Subject::start(binary, backend, "firefox", &mut make)?;
    let count = subject.run_browser("firefox", &mut browser);
    Ok(count + outlived(&mut subject.server))
}
