//! The library, on Tokio and on compio, against programs of other projects: TLS with rustls against OpenSSL,
//! Python and Node, as a server and as a client; and third-party proxies.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::Outcome;
use crate::count::Count;
use crate::process;
use crate::server::{self, Server};
use crate::tools::{self, Missing};

/// Time limit to create a certificate.
const CERTIFICATE_LIMIT: Duration = Duration::from_secs(60);
/// User name for a proxy.
const USER: &str = "anna";
const PASSWORD: &str = "sesame";

struct Peer {
    name: &'static str,
    check: fn(&Ground) -> Result<Count, Missing>,
}

const PEERS: [Peer; 6] = [
    Peer { name: "openssl", check: openssl },
    Peer { name: "ws-tls", check: ws },
    Peer { name: "python-tls", check: python },
    Peer { name: "proxy-chain", check: proxy_chain },
    Peer { name: "go-socks5", check: go_socks5 },
    Peer { name: "pproxy", check: pproxy },
];

pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    PEERS.iter().map(|peer| peer.name)
}

/// The runtime of the library.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Runtime {
    Tokio,
    Compio,
}

impl Runtime {
    /// Returns the name for `--on` of the program.
    const fn name(self) -> &'static str {
        match self {
            Self::Tokio => "tokio",
            Self::Compio => "compio",
        }
    }
}

/// Runs the chosen peers.
pub(crate) fn run(runtime: Runtime, wants: impl Fn(&str) -> bool) -> Outcome {
    println!("library on {}", runtime.name());
    let mut ground = Ground::prepare(runtime)?;
    let mut count = Count::default();
    for peer in PEERS.iter().filter(|peer| wants(peer.name)) {
        count = count + (peer.check)(&ground).unwrap_or_else(|missing| missing.report(peer.name));
    }
    for how in [&mut ground.plain, &mut ground.tls].into_iter().filter_map(Server::ended) {
        println!("FAIL {how}");
        count = count + Count::FAILED;
    }
    Ok(count)
}

/// Runs the program to write a certificate for localhost, and its key.
pub(crate) fn make_certificate(program: &Path, folder: &Path) -> Result<(), String> {
    let log = folder.join("certificate.log");
    let mut command = Command::new(program);
    let end = process::run(command.arg("certificate").arg(folder), &log, CERTIFICATE_LIMIT)?;
    end.check("a certificate", &log)
}

/// The environment that all peers share.
struct Ground {
    /// The program on the library.
    program: PathBuf,
    runtime: Runtime,
    /// Folder of the certificate, its key, and logs.
    folder: PathBuf,
    /// Echo servers on the library.
    plain: Server,
    tls: Server,
}

impl Ground {
    fn prepare(runtime: Runtime) -> Result<Self, String> {
        let program = server::build_debug("sinews-interop")?;
        let folder = process::target().join("xtask/interop").join(runtime.name());
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        make_certificate(&program, &folder)?;
        let serve = |name: &str, with: Option<&Path>| {
            let mut command = Command::new(&program);
            Server::start_announced(
                command.args(["--on", runtime.name(), "serve"]).args(with),
                &folder.join(name),
            )
        };
        let plain = serve("server.log", None)?;
        let tls = serve("server-tls.log", Some(&folder))?;
        Ok(Self { program, runtime, folder, plain, tls })
    }

    fn log(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{}.log", name.replace(' ', "-")))
    }

    /// Starts a server or proxy of another project, which prints its listen address.
    fn start(&self, name: &str, command: &mut Command) -> Result<Server, Missing> {
        Server::start_announced(command, &self.log(name)).map_err(Missing::Broken)
    }

    /// Runs a client of another project against our TLS server.
    fn client(&self, name: &str, command: &mut Command) -> Count {
        let command = command.arg(self.tls.address().port().to_string()).arg(&self.folder);
        tools::run_checks(&format!("{name} as client"), command, &self.log(&format!("{name} client")))
    }

    /// Runs our client against an echo server.
    fn check(&self, name: &str, url: &str, further: &[&str]) -> Count {
        let mut command = Command::new(&self.program);
        command.args(["--on", self.runtime.name(), "check", url, "--trust"]).arg(&self.folder).args(further);
        tools::run_checks(name, &mut command, &self.log(name))
    }

    /// Runs our client against a server of another project, without and with TLS.
    fn check_servers(
        &self,
        name: &str,
        prepare: impl Fn() -> Result<Command, Missing>,
    ) -> Result<Count, Missing> {
        let plain = self.start(&format!("{name} server"), &mut prepare()?)?;
        let tls = self.start(&format!("{name} server tls"), prepare()?.arg(&self.folder))?;
        let count = self.check(&format!("{name} as server, ws"), &url("ws", plain.address()), &[]);
        Ok(count + self.check(&format!("{name} as server, wss"), &url("wss", tls.address()), &[]))
    }

    /// Runs our client through a proxy to our servers; `start` starts the proxy, with credentials or without.
    fn check_proxy(
        &self,
        name: &str,
        schemes: &[&str],
        start: impl Fn(Option<(&str, &str)>, &Path) -> Result<Server, Missing>,
    ) -> Result<Count, Missing> {
        let mut count = Count::default();
        for credentials in [None, Some((USER, PASSWORD))] {
            let proxy = start(credentials, &self.log(&format!("{name} proxy")))?;
            for scheme in schemes {
                count = count + self.check_tunnels(name, scheme, &proxy, credentials);
            }
        }
        Ok(count)
    }

    fn check_tunnels(
        &self,
        name: &str,
        scheme: &str,
        proxy: &Server,
        credentials: Option<(&str, &str)>,
    ) -> Count {
        let address = proxy.address().to_string();
        let through = |credentials: Option<(&str, &str)>| match credentials {
            Some((user, password)) => format!("{scheme}://{user}:{password}@{address}"),
            None => format!("{scheme}://{address}"),
        };
        let check = |name: &str, url: &str, proxy: String, further: &[&str]| {
            self.check(name, url, &[&["--proxy", &*proxy, "--proxy-address", &address], further].concat())
        };
        let whose = if credentials.is_some() { "a password" } else { "no password" };
        let [ws, wss] = [url("ws", self.plain.address()), url("wss", self.tls.address())];
        let name = format!("{name}, {scheme}, {whose}");
        let mut count = check(&format!("{name}, ws"), &ws, through(credentials), &[]);
        count = count + check(&format!("{name}, wss"), &wss, through(credentials), &[]);
        if credentials.is_some() {
            let wrong = through(Some((USER, "wrong")));
            count = count + check(&format!("{name}, a wrong one"), &ws, wrong, &["--refused"]);
            count = count + check(&format!("{name}, none given"), &ws, through(None), &["--refused"]);
        }
        count
    }
}

/// Contains the host name, so that either end resolves it.
fn url(scheme: &str, address: SocketAddr) -> String {
    format!("{scheme}://localhost:{}/", address.port())
}

fn openssl(ground: &Ground) -> Result<Count, Missing> {
    tools::need("bash", "apt-get install bash")?;
    tools::need("openssl", "apt-get install openssl")?;
    let mut command = Command::new("bash");
    Ok(ground.client("openssl s_client", command.arg(tools::source("tls/s_client.sh"))))
}

fn ws(ground: &Ground) -> Result<Count, Missing> {
    let count = ground.client("ws", &mut tools::node("tls-client.mjs")?);
    Ok(count + ground.check_servers("ws", || tools::node("echo-server.mjs"))?)
}

fn python(ground: &Ground) -> Result<Count, Missing> {
    let count = ground.client("websockets", &mut tools::python(&["tls_client.py"])?);
    Ok(count + ground.check_servers("websockets", || tools::python(&["echo_server.py"]))?)
}

/// HTTP CONNECT.
fn proxy_chain(ground: &Ground) -> Result<Count, Missing> {
    ground.check_proxy("proxy-chain", &["http"], |credentials, log| {
        let mut command = tools::node("proxy.mjs")?;
        let arguments = credentials.map(|(user, password)| [user, password]);
        Server::start_announced(command.args(arguments.iter().flatten()), log).map_err(Missing::Broken)
    })
}

fn go_socks5(ground: &Ground) -> Result<Count, Missing> {
    ground.check_proxy("go-socks5", &["socks5", "socks5h"], |credentials, log| {
        let mut command = tools::go("socks5")?;
        let arguments = credentials.map(|(user, password)| [user, password]);
        Server::start_announced(command.args(arguments.iter().flatten()), log).map_err(Missing::Broken)
    })
}

/// Both protocols, on one port.
fn pproxy(ground: &Ground) -> Result<Count, Missing> {
    ground.check_proxy("pproxy", &["http", "socks5", "socks5h"], |credentials, log| {
        let address = server::free_address().map_err(Missing::Broken)?;
        let behind = credentials.map_or_else(String::new, |(user, password)| format!("#{user}:{password}"));
        let listen = format!("http+socks5://{address}{behind}");
        // 0: every connection has to authenticate.
        let mut command = tools::python(&["-m", "pproxy", "-l", &listen, "--auth", "0"])?;
        Server::start_on(&mut command, address, log).map_err(Missing::Broken)
    })
}
