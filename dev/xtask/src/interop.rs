//! Clients and tools of other projects against the server, and programs of other projects against the library
//! (see [`crate::library`]). The scripts in `dev/interop` drive them; each prints a line per check, `ok NAME`
//! or `FAIL NAME: why`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::Outcome;
use crate::backend::{Backend, Choice};
use crate::connect;
use crate::count::Count;
use crate::http;
use crate::library::{self, Runtime};
use crate::process;
use crate::server::{self, Server};
use crate::tools::{self, Missing};
use crate::webtransport;

/// The message limit of the second server, in octets: the clients send messages of this length and longer
/// messages.
const MESSAGE_OCTETS_MAX: &str = "2000000";

#[derive(Args)]
pub(crate) struct Options {
    /// Path of the `sinews` program to test, instead of building it
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Peers to test [default: all]: curl, ws, sinews-js, undici, undici-events, python, pusher (pusher-js, the package
    /// pusher and Laravel Echo), pusher-recovery (pusher-js with the package `clients/pusher-recovery`), pusher-remote (the
    /// tests of the package pusher), pusher-js-tests (the integration cases of the package pusher-js), pusher-python, pusher-go, pusher-java, pusher-php (a copy of the
    /// library in the folder PUSHER_HTTP_PHP, or one that Composer installs), gorilla, coder, curl-suite, h2spec, h3spec,
    /// http2 (node:http2, undici, h2 with wsproto of Python, and golang.org/x/net/http2), http3 (aioquic with wsproto, quic-go, and a page in Chromium; and aioquic and Chromium against the example of `sinews-quic`, and streams of `sinews-http`), webtransport (Chromium and webtransport-go), firefox (WebSockets over HTTP/2, `sinews.js`, WebTransport, and a page over HTTP/3), client-js (the package `clients/js`) and openapi (a client generated from the
    /// document of the HTTP API) against the server;
    /// http-proxies (request smuggling through nginx, HAProxy, Apache, Caddy, nghttpx and Envoy, as far as they are installed);
    /// openssl, ws-tls, python-tls, proxy-chain, go-socks5, pproxy against the library; connect-ws,
    /// connect-python, bench-ws, bench-python against `sinews connect` and `sinews bench`
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Backend of the servers: the checks run once for each. The library on compio needs `uring`
    #[arg(long, value_enum, default_value_t = Choice::Both)]
    backend: Choice,
}

/// Options of the servers in one run of all clients.
#[derive(Clone, Copy)]
struct Setup {
    backend: Backend,
    deflate: &'static str,
}

impl Setup {
    /// Pairs every backend with stateful compression, where more can go wrong. Stateless compression is the
    /// default of the program and independent of backends.
    fn all(backends: &[Backend]) -> Vec<Self> {
        let dedicated = backends.iter().map(|backend| Self { backend: *backend, deflate: "dedicated" });
        let shared = backends.first().map(|backend| Self { backend: *backend, deflate: "shared" });
        dedicated.chain(shared).collect()
    }

    fn start(self, binary: &Path, further: &[&str], log: &Path) -> Result<Server, String> {
        let own = ["--backend", self.backend.name(), "--deflate", self.deflate];
        Server::start(binary, &[&own, further].concat(), log)
    }
}

struct Client {
    name: &'static str,
    prepare: fn() -> Result<Command, Missing>,
}

const CLIENTS: [Client; 16] = [
    Client { name: "curl", prepare: || tools::curl("http/client.sh") },
    Client { name: "ws", prepare: || tools::node("ws.mjs") },
    Client { name: "sinews-js", prepare: || tools::node("sinews-js.mjs") },
    Client { name: "undici-events", prepare: || tools::node("undici-events.mjs") },
    Client { name: "undici", prepare: || tools::node("undici.mjs") },
    Client { name: "python", prepare: || tools::python(&["client.py"]) },
    Client { name: "pusher", prepare: || tools::node("pusher.mjs") },
    Client { name: "pusher-recovery", prepare: || tools::node_with_pusher_recovery("pusher-recovery.mjs") },
    Client { name: "pusher-remote", prepare: || tools::node("pusher-remote.mjs") },
    Client {
        name: "pusher-js-tests",
        prepare: || {
            tools::need("openssl", "apt-get install openssl")?;
            tools::node("pusher-js-tests.mjs")
        },
    },
    Client { name: "pusher-python", prepare: || tools::python(&["pusher_libraries.py"]) },
    Client { name: "pusher-go", prepare: || tools::go("pusher") },
    Client { name: "pusher-java", prepare: || tools::java("PusherLibraries") },
    Client { name: "pusher-php", prepare: || tools::php("pusher_library.php", "PUSHER_HTTP_PHP") },
    Client { name: "gorilla", prepare: || tools::go("gorilla") },
    Client { name: "coder", prepare: || tools::go("coder") },
];

/// curl against an echo and file server, in place of the program.
const CURL_SUITE: &str = "curl-suite";

/// The cases of h2spec, the conformance suite of HTTP/2, against the same server.
const H2SPEC: &str = "h2spec";

/// The cases of h3spec, the conformance suite of QUIC, HTTP/3 and QPACK, against the program.
const H3SPEC: &str = "h3spec";

/// Reverse proxies in front of the same server.
const HTTP_PROXIES: &str = "http-proxies";

/// Clients of HTTP/2 of Node, Python and Go against the program.
const HTTP2: &str = "http2";

/// The reader of aioquic, against the machine for HTTP/3 without a server.
const HTTP3: &str = "http3";

/// Sessions of WebTransport of Chromium and webtransport-go, against the program.
const WEBTRANSPORT: &str = "webtransport";

/// Firefox against the program, over HTTP/2, HTTP/3 and WebTransport.
const FIREFOX: &str = "firefox";

/// Programs that need servers with options of their own, once for each backend.
const SERVE: [&str; 7] = [H2SPEC, H3SPEC, HTTP_PROXIES, HTTP2, HTTP3, WEBTRANSPORT, FIREFOX];

/// The tests of the package in `clients/js`, which start their own servers.
const CLIENT_JS: &str = "client-js";

/// A client of the HTTP API that is generated from the served document.
const OPENAPI: &str = "openapi";

/// The secret of tokens and the keys of the HTTP API at the server of [`OPENAPI`]: all rights, and few.
const SECRET: &str = "0123456789abcdef0123456789abcdef";
const API_KEY: &str = "0123456789abcdef0123456789abcdef-all";
const RESTRICTED_KEY: &str = "0123456789abcdef0123456789abcdef-few";

/// Runs each client against the servers, then `sinews connect`, `sinews bench` and the library against their
/// peers.
pub(crate) fn run(options: &Options) -> Outcome {
    let names = || {
        let clients = CLIENTS.iter().map(|client| client.name);
        clients
            .chain(SERVE)
            .chain([CURL_SUITE, CLIENT_JS, OPENAPI])
            .chain(library::names())
            .chain(connect::names())
    };
    if let Some(unknown) = options.only.iter().find(|only| !names().any(|name| name == **only)) {
        return Err(format!("no such program: {unknown}"));
    }
    let wants = |name: &str| options.only.is_empty() || options.only.iter().any(|only| only == name);
    let mut count = Count::default();
    if CLIENTS.iter().any(|client| wants(client.name)) {
        count = count + run_servers(options)?;
    }
    if wants(CURL_SUITE) {
        let permitted = options.backend.permitted(&server::binary(options.binary.as_deref())?)?;
        count = count + permitted.print_skipped();
        for backend in permitted.backends {
            count = count + http::run_curl(backend)?;
        }
    }
    if SERVE.into_iter().any(wants) {
        count = count + run_serve(options, wants)?;
    }
    if wants(HTTP3) {
        count = count + http::run_aioquic()?;
    }
    if wants(CLIENT_JS) {
        count = count + run_client_js(options)?;
    }
    if wants(OPENAPI) {
        count = count + run_openapi(options)?;
    }
    if connect::names().any(wants) {
        count = count + connect::run(&server::binary(options.binary.as_deref())?, wants)?;
    }
    if library::names().any(wants) {
        count = count + library::run(Runtime::Tokio, wants)?;
        let permitted = options.backend.permitted_uring(options.binary.as_deref())?;
        count = count + permitted.print_skipped();
        if !permitted.backends.is_empty() {
            count = count + library::run(Runtime::Compio, wants)?;
        }
    }
    Ok(count)
}

fn run_serve(options: &Options, wants: impl Fn(&str) -> bool) -> Outcome {
    let binary = server::binary(options.binary.as_deref())?;
    let permitted = options.backend.permitted(&binary)?;
    let mut count = permitted.print_skipped();
    for backend in permitted.backends {
        for name in SERVE.into_iter().filter(|name| wants(name)) {
            count = count
                + match name {
                    H2SPEC => http::run_h2spec(backend)?,
                    H3SPEC => http::run_h3spec(&binary, backend)?,
                    HTTP_PROXIES => http::run_proxies(backend)?,
                    HTTP2 => http::run_clients(&binary, backend)?,
                    HTTP3 => http::run_http3(&binary, backend)?,
                    WEBTRANSPORT => webtransport::run(&binary, backend)?,
                    _ => webtransport::run_firefox(&binary, backend)?,
                };
        }
    }
    Ok(count)
}

fn run_servers(options: &Options) -> Outcome {
    let binary = server::binary(options.binary.as_deref())?;
    let permitted = options.backend.permitted(&binary)?;
    let mut count = permitted.print_skipped();
    for setup in Setup::all(&permitted.backends) {
        println!("backend {}, deflate {}", setup.backend.name(), setup.deflate);
        count = count + run_clients(options, setup, &binary)?;
    }
    Ok(count)
}

fn run_client_js(options: &Options) -> Outcome {
    let binary = server::binary(options.binary.as_deref())?;
    let permitted = options.backend.permitted(&binary)?;
    let mut count = permitted.print_skipped();
    for backend in permitted.backends {
        let log = process::target().join(format!("xtask/interop/{}-{CLIENT_JS}.log", backend.name()));
        count = count
            + match tools::client_js() {
                Ok(mut command) => {
                    command.env("SINEWS", &binary).env("SINEWS_BACKEND", backend.name());
                    tools::run_checks(CLIENT_JS, &mut command, &log)
                }
                Err(missing) => missing.report(CLIENT_JS),
            };
    }
    Ok(count)
}

fn run_openapi(options: &Options) -> Outcome {
    let binary = server::binary(options.binary.as_deref())?;
    let permitted = options.backend.permitted(&binary)?;
    let mut count = permitted.print_skipped();
    for backend in permitted.backends {
        let dir = process::target().join(format!("xtask/interop/{}-{OPENAPI}", backend.name()));
        count = count
            + match tools::node("openapi.mjs") {
                Ok(mut command) => {
                    let server = start_api_server(&binary, backend, &dir)?;
                    command.args([&server.url(), SECRET, API_KEY, RESTRICTED_KEY]);
                    tools::run_checks(OPENAPI, &mut command, &dir.join("client.log"))
                }
                Err(missing) => missing.report(OPENAPI),
            };
    }
    Ok(count)
}

/// Starts a server with the HTTP API, tokens, histories and a new directory of durable topics.
fn start_api_server(binary: &Path, backend: Backend, dir: &Path) -> Result<Server, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", dir.display());
    let (keys, secret, streams) = (dir.join("keys"), dir.join("secret"), dir.join("streams"));
    if streams.exists() {
        fs::remove_dir_all(&streams).map_err(failed)?;
    }
    fs::create_dir_all(&streams).map_err(failed)?;
    fs::write(&secret, SECRET).map_err(failed)?;
    fs::write(&keys, format!("all {API_KEY} admin\nfew {RESTRICTED_KEY} publish:chat.>\n"))
        .map_err(failed)?;
    let [keys, secret, streams] = [&keys, &secret, &streams].map(|path| path.to_string_lossy().into_owned());
    let options = ["--backend", backend.name(), "--api-keys-file", &keys, "--auth-secret-file", &secret];
    let topics = ["--streams", &streams, "--streams-topics", "stored.>", "--history", "chat.>=10"];
    Server::start(binary, &[&options[..], &topics[..]].concat(), &dir.join("server.log"))
}

fn run_clients(options: &Options, setup: Setup, binary: &Path) -> Outcome {
    let logs = process::target().join(format!("xtask/interop/{}-{}", setup.backend.name(), setup.deflate));
    // The app of the clients of the Pusher protocol.
    let config = process::root().join("dev/interop/pusher/sinews.toml").display().to_string();
    let mut servers = [
        setup.start(binary, &["--config", &config], &logs.join("server.log"))?,
        setup.start(binary, &["--max-message", MESSAGE_OCTETS_MAX], &logs.join("server-limited.log"))?,
    ];
    let mut count = Count::default();
    let chosen =
        |client: &&Client| options.only.is_empty() || options.only.iter().any(|name| name == client.name);
    for client in CLIENTS.iter().filter(chosen) {
        let log = logs.join(format!("{}.log", client.name));
        count = count
            + match (client.prepare)() {
                Ok(mut command) => {
                    // For clients that start a server of their own.
                    command.env("SINEWS", binary).env("SINEWS_BACKEND", setup.backend.name());
                    tools::run_checks(client.name, command.args(servers.iter().map(Server::url)), &log)
                }
                Err(missing) => missing.report(client.name),
            };
    }
    for how in servers.iter_mut().filter_map(Server::ended) {
        println!("FAIL {how}");
        count = count + Count::FAILED;
    }
    Ok(count)
}
