//! Sessions of WebTransport at `sinews serve`: pages of Chromium, and webtransport-go. The client of aioquic is among those of
//! HTTP/3.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::Outcome;
use crate::backend::Backend;
use crate::certificate::Certificate;
use crate::http::outlived;
use crate::process;
use crate::server::Server;
use crate::tools;

/// Making one certificate.
const CERTIFICATE_LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn run(binary: &Path, backend: Backend) -> Outcome {
    let (mut make, mut browser) = match (
        tools::python(&["webtransport.py", "certificate"]),
        tools::python(&["webtransport.py", "serve"]),
    ) {
        (Ok(make), Ok(browser)) => (make, browser),
        (Err(missing), _) | (_, Err(missing)) => return Ok(missing.report("webtransport")),
    };
    let out = process::target().join(format!("xtask/http/webtransport-{}", backend.name()));
    fs::create_dir_all(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    let log = out.join("certificate.log");
    process::run(make.arg(&out), &log, CERTIFICATE_LIMIT)?.check("certificate", &log)?;
    let certificate = Certificate { certificate: out.join("certificate.pem"), key: out.join("key.pem") };
    let options = ["--backend", backend.name(), "--http-http3", "--threads", "2", "--origin", "any"];
    let mut server = Server::start_tls(binary, &options, &certificate, &out.join("serve.log"))?;
    let address = server.address().to_string();
    let log = out.join("browser.log");
    browser.arg(&address).arg(&out);
    let mut count = tools::run_checks("webtransport, Chromium", &mut browser, &log);
    count = count
        + match tools::go_module("webtransport") {
            Ok(mut client) => {
                client.arg(&address);
                tools::run_checks("webtransport, webtransport-go", &mut client, &out.join("go.log"))
            }
            Err(missing) => missing.report("webtransport-go"),
        };
    Ok(count + outlived(&mut server))
}
