//! Clients and tools of other people against the server. The scripts in `dev/interop` drive them;
//! each prints a line per check, `ok NAME` or `FAIL NAME: why`, which are counted here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Args;

use crate::Outcome;
use crate::backend::{Backend, Choice};
use crate::count::Count;
use crate::process::{self, find_program};
use crate::server::{self, Server};

/// For one installation from a package registry.
const INSTALL_LIMIT: Duration = Duration::from_secs(5 * 60);
/// For one client's checks, which need seconds; each check has a shorter limit of its own.
const CLIENT_LIMIT: Duration = Duration::from_secs(5 * 60);
/// The message limit of the second server, in octets: the clients go to it and over it.
const MESSAGE_OCTETS_MAX: &str = "2000000";

#[derive(Args)]
pub(crate) struct Options {
    /// The `sinews` program to test, in place of one built here
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Only these clients: curl, ws, undici, python, gorilla, coder
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// What the servers wait with: the checks run once for each
    #[arg(long, value_enum, default_value_t = Choice::Both)]
    backend: Choice,
}

/// How the servers of one run of all clients are set up.
#[derive(Clone, Copy)]
struct Setup {
    backend: Backend,
    deflate: &'static str,
}

impl Setup {
    /// Every backend with the compression that remembers, where more can go wrong; the one that does not is
    /// the default of the program, and knows nothing of backends.
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

const CLIENTS: [Client; 6] = [
    Client { name: "curl", prepare: curl },
    Client { name: "ws", prepare: || node("ws.mjs") },
    Client { name: "undici", prepare: || node("undici.mjs") },
    Client { name: "python", prepare: python },
    Client { name: "gorilla", prepare: || go("gorilla") },
    Client { name: "coder", prepare: || go("coder") },
];

/// Why a client cannot run.
enum Missing {
    /// Something of the outside world is not there: no fault of this repository.
    Tool(String),
    /// Our own part does not build.
    Broken(String),
}

/// Starts the servers and runs each client.
pub(crate) fn run(options: &Options) -> Outcome {
    let known = |name: &String| CLIENTS.iter().any(|client| client.name == name);
    if let Some(unknown) = options.only.iter().find(|name| !known(name)) {
        return Err(format!("no such client: {unknown}"));
    }
    let binary = server::binary(options.binary.as_deref())?;
    let permitted = options.backend.permitted(&binary)?;
    let mut count = permitted.print_skipped();
    for setup in Setup::all(&permitted.backends) {
        println!("backend {}, deflate {}", setup.backend.name(), setup.deflate);
        count = count + run_clients(options, setup, &binary)?;
    }
    Ok(count)
}

fn run_clients(options: &Options, setup: Setup, binary: &Path) -> Outcome {
    let logs = process::target().join(format!("xtask/interop/{}-{}", setup.backend.name(), setup.deflate));
    let mut servers = [
        setup.start(binary, &[], &logs.join("server.log"))?,
        setup.start(binary, &["--max-message", MESSAGE_OCTETS_MAX], &logs.join("server-limited.log"))?,
    ];
    let mut count = Count::default();
    let chosen =
        |client: &&Client| options.only.is_empty() || options.only.iter().any(|name| name == client.name);
    for client in CLIENTS.iter().filter(chosen) {
        count = count + run_client(client, &servers, &logs.join(format!("{}.log", client.name)));
    }
    for how in servers.iter_mut().filter_map(Server::ended) {
        println!("FAIL {how}");
        count = count + Count::FAILED;
    }
    Ok(count)
}

fn run_client(client: &Client, servers: &[Server; 2], log: &Path) -> Count {
    let mut command = match (client.prepare)() {
        Ok(command) => command,
        Err(Missing::Tool(why)) => {
            println!("skipped: {}: {why}", client.name);
            return Count::SKIPPED;
        }
        Err(Missing::Broken(why)) => {
            println!("FAIL {}: {why}", client.name);
            return Count::FAILED;
        }
    };
    let started = Instant::now();
    command.args(servers.iter().map(Server::url));
    let end = process::run(&mut command, log, CLIENT_LIMIT).and_then(|end| end.check(client.name, log));
    let output = fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let mut count = count_lines(&output);
    if end.is_err() && count.failed == 0 || count == Count::default() {
        count = count + Count::FAILED;
        println!("FAIL {}", end.err().unwrap_or_else(|| format!("{} checked nothing", client.name)));
    }
    println!("{}: {count} in {:.1} s", client.name, started.elapsed().as_secs_f64());
    for line in output.lines().filter(|line| line.starts_with("FAIL ")) {
        println!("    {line}");
    }
    count
}

fn count_lines(output: &str) -> Count {
    let count = |prefix: &str| output.lines().filter(|line| line.starts_with(prefix)).count() as u64;
    Count { passed: count("ok "), failed: count("FAIL "), skipped: 0 }
}

fn curl() -> Result<Command, Missing> {
    need("bash", "apt-get install bash")?;
    need("curl", "apt-get install curl")?;
    let mut command = Command::new("bash");
    command.arg(source("http/client.sh"));
    Ok(command)
}

fn node(script: &str) -> Result<Command, Missing> {
    need("node", "apt-get install nodejs npm")?;
    need("npm", "apt-get install npm")?;
    // Modules are looked up beside the script, so the scripts move beside the modules.
    let dir = process::cache("interop").join("node");
    let lock = source("node/package-lock.json");
    let files = ["package.json", "package-lock.json", "suite.mjs", "ws.mjs", "undici.mjs"];
    let copy = |file: &&str| fs::copy(source("node").join(file), dir.join(file)).map(|_| ());
    let copied = fs::create_dir_all(&dir).and_then(|()| files.iter().try_for_each(copy));
    copied.map_err(|error| Missing::Broken(format!("{}: {error}", dir.display())))?;
    let mut install = Command::new("npm");
    install.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]).current_dir(&dir);
    once(&dir, &lock, &mut install)?;
    let mut command = Command::new("node");
    command.arg(dir.join(script));
    Ok(command)
}

fn python() -> Result<Command, Missing> {
    need("python3", "apt-get install python3 python3-pip")?;
    let dir = process::cache("interop").join("python");
    let requirements = source("python/requirements.txt");
    let mut install = Command::new("python3");
    install.args(["-m", "pip", "install", "--quiet", "--upgrade", "--target"]).arg(dir.join("packages"));
    once(&dir, &requirements, install.arg("--requirement").arg(&requirements))?;
    let mut command = Command::new("python3");
    command.arg("-B").arg(source("python/client.py")).env("PYTHONPATH", dir.join("packages"));
    Ok(command)
}

fn go(program: &str) -> Result<Command, Missing> {
    need("go", "https://go.dev/dl")?;
    let dir = process::cache("interop").join("go");
    let modules = source("go");
    // Does nothing when Go's own cache has the modules.
    let mut download = Command::new("go");
    download.args(["mod", "download"]).current_dir(&modules);
    execute(&mut download, &dir.join("download.log")).map_err(Missing::Tool)?;
    let binary = dir.join(program);
    let mut build = Command::new("go");
    build
        .args(["build", "-mod=readonly", "-o"])
        .arg(&binary)
        .arg(format!("./{program}"))
        .current_dir(&modules);
    execute(&mut build, &dir.join(format!("{program}.log"))).map_err(Missing::Broken)?;
    Ok(Command::new(binary))
}

/// Runs the installation unless it has been done for the same list of versions.
fn once(dir: &Path, versions: &Path, install: &mut Command) -> Result<(), Missing> {
    let broken = |path: &Path, error| Missing::Broken(format!("{}: {error}", path.display()));
    let wanted = fs::read(versions).map_err(|error| broken(versions, error))?;
    let stamp = dir.join("installed");
    if fs::read(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(());
    }
    execute(install, &dir.join("install.log")).map_err(Missing::Tool)?;
    fs::write(&stamp, wanted).map_err(|error| broken(&stamp, error))
}

fn execute(command: &mut Command, log: &Path) -> Result<(), String> {
    let what = command.get_program().to_string_lossy().into_owned();
    process::run(command, log, INSTALL_LIMIT)?.check(&what, log)
}

fn need(program: &str, remedy: &str) -> Result<(), Missing> {
    let found = find_program(program).map(|_| ());
    found.ok_or_else(|| Missing::Tool(format!("no {program} ({remedy})")))
}

fn source(path: &str) -> PathBuf {
    process::root().join("dev/interop").join(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_client_are_counted() {
        let output = "ok text of 1\nnoise\nFAIL ping: late\nok close\n";
        assert_eq!(count_lines(output), Count { passed: 2, failed: 1, skipped: 0 });
    }
}
