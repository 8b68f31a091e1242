//! The HTTP cases of `dev/conformance`, curl and h2spec against an echo and file server on each backend, and h3spec against
//! `sinews serve`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::Outcome;
use crate::backend::{Backend, Choice};
use crate::certificate::Certificate;
use crate::count::Count;
use crate::process;
use crate::server::{self, Server};
use crate::tools;

/// A test of one crate, with its compilation, which waits for those of other steps.
const TEST_LIMIT: Duration = process::COMMAND_LIMIT;

/// Runs all cases against the echo server, and the cases that apply to any server against `sinews serve`.
pub(crate) fn run_cases(binary: Option<&Path>, choice: Choice) -> Outcome {
    let binary = server::binary(binary)?;
    let programs = server::build_all_debug(&["http-cases", "http-subject"])?;
    let permitted = choice.permitted(&binary)?;
    let mut count = permitted.print_skipped();
    for backend in permitted.backends {
        let out = process::target().join(format!("xtask/http/{}", backend.name()));
        let subject = Subject::start(&programs, backend, &[], &out)?;
        count = count + run(&programs, subject.server, "all", &format!("server, {}", backend.name()), &out);
        let arguments = ["--backend", backend.name(), "--threads", "1"];
        let serve = Server::start(&binary, &arguments, &out.join("serve.log"))?;
        count = count + run(&programs, serve, "heads", &format!("sinews serve, {}", backend.name()), &out);
    }
    Ok(count)
}

/// Runs the cases against a server, which must outlive them.
fn run(programs: &Path, mut server: Server, which: &str, name: &str, out: &Path) -> Count {
    let mut command = Command::new(programs.join("http-cases"));
    command.arg(server.address().to_string()).arg(which);
    let count =
        tools::run_checks(&format!("HTTP cases, {name}"), &mut command, &out.join(format!("{which}.log")));
    count + outlived(&mut server)
}

/// Runs curl against the echo server: over TCP, a Unix socket and TLS; and curl, nghttp and h2load over HTTP/2.
pub(crate) fn run_curl(backend: Backend) -> Outcome {
    let programs = server::build_all_debug(&["http-cases", "http-subject"])?;
    let suites = [("curl-suite", "suite", &[][..]), ("curl-suite, HTTP/2", "http2", &["http2"])];
    let mut count = Count::default();
    for (name, script, options) in suites {
        let mut command = match tools::curl(&format!("http/{script}.sh")) {
            Ok(command) => command,
            Err(missing) => return Ok(missing.report(name)),
        };
        let out = process::target().join(format!("xtask/http/curl-{script}-{}", backend.name()));
        let mut subject = Subject::start(&programs, backend, options, &out)?;
        let tls = format!("https://localhost:{}", subject.tls_port);
        let base = format!("http://{}", subject.server.address());
        command.args([base, tls]).arg(&subject.directory);
        count = count + tools::run_checks(name, &mut command, &out.join("curl.log"));
        count = count + outlived(&mut subject.server);
    }
    Ok(count)
}

/// Runs h2spec against the echo server: in clear text and over TLS.
pub(crate) fn run_h2spec(backend: Backend) -> Outcome {
    let mut command = match tools::go("h2spec") {
        Ok(command) => command,
        Err(missing) => return Ok(missing.report("h2spec")),
    };
    let programs = server::build_all_debug(&["http-cases", "http-subject"])?;
    let out = process::target().join(format!("xtask/http/h2spec-{}", backend.name()));
    let mut subject = Subject::start(&programs, backend, &["http2"], &out)?;
    // The cases on flow control need an answer with content.
    command.arg(format!("http://{}/content", subject.server.address()));
    command.arg(format!("https://127.0.0.1:{}/content", subject.tls_port));
    let count = tools::run_checks("h2spec", &mut command, &out.join("h2spec.log"));
    Ok(count + outlived(&mut subject.server))
}

/// Runs reverse proxies that speak HTTP/2 in front of the echo server, which speaks HTTP/1.1 with them: request smuggling.
pub(crate) fn run_proxies(backend: Backend) -> Outcome {
    let mut command = match tools::python(&["http2_proxies.py"]) {
        Ok(command) => command,
        Err(missing) => return Ok(missing.report("http-proxies")),
    };
    let programs = server::build_all_debug(&["http-cases", "http-subject"])?;
    let out = process::target().join(format!("xtask/http/proxies-{}", backend.name()));
    let mut subject = Subject::start(&programs, backend, &[], &out)?;
    command.arg(subject.server.address().to_string()).arg(out.join("proxies"));
    let count = tools::run_checks("http-proxies", &mut command, &out.join("proxies.log"));
    Ok(count + outlived(&mut subject.server))
}

/// Runs clients of Node, Python and Go against `sinews serve` with HTTP/2: in clear text and over TLS.
pub(crate) fn run_clients(binary: &Path, backend: Backend) -> Outcome {
    let out = process::target().join(format!("xtask/http/http2-{}", backend.name()));
    let certificate = Certificate::make(&out)?;
    let options = ["--backend", backend.name(), "--http-http2-clear-text"];
    let mut plain = Server::start(binary, &options, &out.join("plain.log"))?;
    let mut tls = Server::start_tls(binary, &options, &certificate, &out.join("tls.log"))?;
    let clients = [
        ("http2", "http://", "https://", tools::node("http2.mjs")),
        ("http2-python", "", "", tools::python(&["http2.py"])),
        ("http2-go", "http://", "https://", go_http2()),
    ];
    let mut count = Count::default();
    for (name, plain_scheme, tls_scheme, client) in clients {
        count = count
            + match client {
                Ok(mut command) => {
                    command.arg(format!("{plain_scheme}{}", plain.address()));
                    command.arg(format!("{tls_scheme}{}", tls.address())).arg(&certificate.certificate);
                    tools::run_checks(name, &mut command, &out.join(format!("{name}.log")))
                }
                Err(missing) => missing.report(name),
            };
    }
    Ok(count + outlived(&mut plain) + outlived(&mut tls))
}

/// Go sends an extended CONNECT with this variable only.
fn go_http2() -> Result<Command, tools::Missing> {
    let mut command = tools::go("http2")?;
    command.env("GODEBUG", "http2xconnect=1");
    Ok(command)
}

/// Lets aioquic read the streams that the machine for HTTP/3 sends; the test reads the recorded streams of aioquic.
pub(crate) fn run_aioquic() -> Outcome {
    let out = process::target().join("xtask/http/aioquic");
    fs::create_dir_all(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    let sent = out.join("sent.txt");
    let mut command = match tools::python(&["http3.py", "read"]) {
        Ok(command) => command,
        Err(missing) => return Ok(missing.report("http3")),
    };
    let mut test = process::cargo();
    test.args(["test", "--quiet", "-p", "sinews-http", "--test", "protocols", "h3::peers"])
        .env("SINEWS_H3_WRITE", &sent);
    let log = out.join("test.log");
    process::run(&mut test, &log, TEST_LIMIT)?.check("cargo test of the streams of aioquic", &log)?;
    command.arg(&sent);
    let count = tools::run_checks("http3, streams", &mut command, &out.join("read.log"));
    Ok(count + run_quic(&out)?)
}

/// Runs the clients of aioquic and quic-go, and Chromium, against `sinews serve` with HTTP/3.
pub(crate) fn run_http3(binary: &Path, backend: Backend) -> Outcome {
    let clients = (tools::python(&["http3_client.py", "serve"]), tools::python(&["http3_browser.py"]));
    let (mut client, mut browser) = match clients {
        (Ok(client), Ok(browser)) => (client, browser),
        (Err(missing), _) | (_, Err(missing)) => return Ok(missing.report("http3")),
    };
    let out = process::target().join(format!("xtask/http/http3-{}", backend.name()));
    let certificate = Certificate::make(&out)?;
    let options = ["--backend", backend.name(), "--http-http3", "--threads", "2"];
    let mut server = Server::start_tls(binary, &options, &certificate, &out.join("serve.log"))?;
    let address = server.address();
    client.arg(address.ip().to_string()).arg(address.port().to_string());
    let count = tools::run_checks("http3, aioquic", &mut client, &out.join("client.log"));
    let go = match tools::go("http3") {
        Ok(mut go) => {
            go.arg(address.to_string()).arg(&certificate.certificate);
            tools::run_checks("http3, quic-go", &mut go, &out.join("go.log"))
        }
        Err(missing) => missing.report("http3, quic-go"),
    };
    browser.arg(address.to_string()).arg(&certificate.certificate);
    let log = out.join("browser.log");
    let count = count + go + tools::run_checks("http3, a page in Chromium", &mut browser, &log);
    Ok(count + outlived(&mut server))
}

/// Runs h3spec against `sinews serve`.
pub(crate) fn run_h3spec(binary: &Path, backend: Backend) -> Outcome {
    let mut command = match tools::h3spec() {
        Ok(command) => command,
        Err(missing) => return Ok(missing.report("h3spec")),
    };
    let out = process::target().join(format!("xtask/http/h3spec-{}", backend.name()));
    let certificate = Certificate::make(&out)?;
    let options = ["--backend", backend.name(), "--http-http3", "--threads", "1"];
    let mut server = Server::start_tls(binary, &options, &certificate, &out.join("serve.log"))?;
    let count =
        tools::run_checks("h3spec", command.arg(server.address().to_string()), &out.join("h3spec.log"));
    Ok(count + outlived(&mut server))
}

/// Runs aioquic, and WebTransport of Chromium, against the example `serve` of `sinews-quic`, which echoes.
fn run_quic(out: &Path) -> Outcome {
    let (Ok(mut make), Ok(mut client), Ok(mut browser)) = (
        tools::python(&["webtransport.py", "certificate"]),
        tools::python(&["http3_client.py", "example"]),
        tools::python(&["webtransport.py", "check"]),
    ) else {
        return Err("Python was there before".to_owned());
    };
    let log = out.join("build.log");
    let mut build = process::cargo();
    build.args(["build", "--quiet", "-p", "sinews-quic", "--example", "serve"]);
    process::run(&mut build, &log, TEST_LIMIT)?.check("cargo build of the example", &log)?;
    let log = out.join("certificate.log");
    process::run(make.arg(out), &log, TEST_LIMIT)?.check("certificate", &log)?;
    let mut serve = Command::new(process::target().join("debug/examples/serve"));
    serve.arg(out.join("certificate.pem")).arg(out.join("key.pem")).arg("127.0.0.1:0");
    let mut server = Server::start_announced(&mut serve, &out.join("serve.log"))?;
    let address = server.address();
    client.arg(address.ip().to_string()).arg(address.port().to_string());
    let count = tools::run_checks("http3, aioquic with the example", &mut client, &out.join("client.log"));
    browser.arg(address.to_string()).arg(out);
    let count = count + tools::run_checks("http3, Chromium", &mut browser, &out.join("browser.log"));
    Ok(count + outlived(&mut server))
}

pub(crate) fn outlived(server: &mut Server) -> Count {
    server.ended().map_or_else(Count::default, |how| {
        println!("FAIL {how}");
        Count::FAILED
    })
}

/// A server that echoes the body of any request, and has files.
struct Subject {
    server: Server,
    tls_port: u16,
    /// Directory of its files, its certificate and its Unix socket.
    directory: PathBuf,
}

impl Subject {
    fn start(programs: &Path, backend: Backend, options: &[&str], out: &Path) -> Result<Self, String> {
        let directory = out.join("served");
        let _ = fs::remove_dir_all(&directory);
        Certificate::make(&directory)?;
        let tls = server::free_address()?;
        let mut command = Command::new(programs.join("http-subject"));
        command.arg(backend.name()).arg(&directory).arg(tls.to_string()).args(options);
        let server = Server::start_announced(&mut command, &out.join("subject.log"))?;
        Ok(Self { server, tls_port: tls.port(), directory })
    }
}
