//! Compares servers of other projects with ours, by `sinews bench compare`. Each server starts anew for every
//! round, on a processor of its own, in turns; the load runs on another processor. docs/book/src/reference/benchmarks.md has the
//! results.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::{Args, ValueEnum};
use serde_json::Value;

use crate::Outcome;
use crate::count::Count;
use crate::process;
use crate::server::{self, DIST_PROFILE};

#[derive(Args)]
pub(crate) struct Options {
    /// Loads to measure [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    load: Vec<Load>,
    /// Servers to measure beside the first, such as `axum,hyper` [default: all]; `--list` prints their names
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Also measure the fast form in the documentation of each library: `feed`, and one flush for messages
    /// that arrived together
    #[arg(long)]
    fastest: bool,
    /// Rounds of each server; a difference needs at least eight to show
    #[arg(long, value_name = "N", default_value_t = 10)]
    rounds: u32,
    /// Duration of each measurement
    #[arg(long, value_name = "TIME", default_value = "2s")]
    duration: String,
    /// Duration of the warm-up before each measurement
    #[arg(long, value_name = "TIME", default_value = "1s")]
    warm_up: String,
    /// Messages per second at a fixed rate, instead of a closed loop; fan-out has a rate of its own
    #[arg(long, value_name = "N")]
    rate: Option<u32>,
    /// Processor of the servers
    #[arg(long, value_name = "N", default_value = "0")]
    server_core: String,
    /// Processor of the load
    #[arg(long, value_name = "N", default_value = "1")]
    load_core: String,
    /// Build profile; profiles other than dist have no meaningful figures
    #[arg(long, value_name = "NAME", default_value = DIST_PROFILE)]
    profile: String,
    /// Print JSON, an object for each load, instead of tables
    #[arg(long)]
    json: bool,
    /// Print the loads and their servers without measuring
    #[arg(long)]
    list: bool,
}

impl Options {
    /// All servers in their usual form, with the servers on processor 0 and the load on processor 1; as JSON.
    pub(crate) fn for_figures(rounds: u32, duration: &str, warm_up: &str) -> Self {
        Self {
            load: Vec::new(),
            only: Vec::new(),
            fastest: false,
            rounds,
            duration: duration.to_owned(),
            warm_up: warm_up.to_owned(),
            rate: None,
            server_core: "0".to_owned(),
            load_core: "1".to_owned(),
            profile: DIST_PROFILE.to_owned(),
            json: true,
            list: false,
        }
    }

    /// The same at a fixed rate.
    pub(crate) fn at_rate(&self, rate: u32) -> Self {
        Self { rate: Some(rate), ..Self::for_figures(self.rounds, &self.duration, &self.warm_up) }
    }
}

/// The traffic to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Load {
    /// 64 connections, 64 bytes, one message in flight
    Echo,
    /// 64 connections, 64 bytes, 16 messages in flight
    Pipelined,
    /// 500 connections, text of 1 KiB
    Text,
    /// 32 connections, 16 KiB
    Large,
    /// 4 connections, 1 MiB
    Huge,
    /// 200 subscribers of one topic, 200 publications a second
    FanOut,
    /// `GET /hello` on 64 connections
    Http,
    /// `GET /hello` on 64 connections with 16 requests in flight
    HttpPipelined,
}

impl Load {
    pub(crate) fn options(self) -> &'static [&'static str] {
        match self {
            Self::Echo => &["-c", "64", "-s", "64", "--binary"],
            Self::Pipelined => &["-c", "64", "-s", "64", "--binary", "-i", "16"],
            Self::Text => &["-c", "500", "-s", "1k", "--text"],
            Self::Large => &["-c", "32", "-s", "16k", "--binary"],
            Self::Huge => &["-c", "4", "-s", "1m", "--binary"],
            Self::FanOut => &["-m", "fan-out", "-c", "201", "-s", "64", "--rate", "200"],
            Self::Http => &["-c", "64", "--expect", "Hello, world!"],
            Self::HttpPipelined => &["-c", "64", "--expect", "Hello, world!", "-i", "16"],
        }
    }

    /// Messages per second at which latencies are measured: less than any server of the load reaches. `None`: the load has
    /// a rate of its own.
    pub(crate) const fn rate(self) -> Option<u32> {
        match self {
            Self::Echo | Self::Http => Some(20_000),
            Self::Pipelined | Self::HttpPipelined => Some(50_000),
            Self::Text | Self::Large => Some(10_000),
            Self::Huge => Some(200),
            Self::FanOut => None,
        }
    }

    fn url(self, port: u16) -> String {
        match self {
            Self::Echo | Self::Pipelined | Self::Text | Self::Large | Self::Huge => {
                format!("ws://127.0.0.1:{port}/echo")
            }
            // All servers have topics at /topics/{name}.
            Self::FanOut => format!("ws://127.0.0.1:{port}/"),
            Self::Http | Self::HttpPipelined => format!("http://127.0.0.1:{port}/hello"),
        }
    }

    pub(crate) const fn is_http(self) -> bool {
        matches!(self, Self::Http | Self::HttpPipelined)
    }

    fn takes(self, contender: &Contender) -> bool {
        match contender.serves {
            Serves::Echo | Serves::Bytes => !self.is_http() && self != Self::FanOut,
            Serves::Messages => !self.is_http(),
            Serves::Requests => self.is_http(),
            Serves::All => true,
        }
    }
}

/// Capabilities of a server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Serves {
    Echo,
    /// The bytes that it gets, over plain TCP.
    Bytes,
    /// Echo and topics.
    Messages,
    Requests,
    All,
}

/// The program of a server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Program {
    /// `sinews serve`.
    Serve,
    /// The example of the server as a library.
    Hello,
    /// The library, in `dev/bench/library`.
    Library,
    /// A library of another project, in `dev/bench/peers`.
    Peer,
    /// The plain echo, in `dev/bench`.
    Plain,
}

struct Contender {
    name: &'static str,
    program: Program,
    /// A backend, or the name of the server on the program's command line.
    what: &'static str,
    serves: Serves,
    /// In its fastest form instead of its usual form.
    fastest: bool,
}

const fn ours(name: &'static str, program: Program, what: &'static str, serves: Serves) -> Contender {
    Contender { name, program, what, serves, fastest: false }
}

const fn peer(name: &'static str, serves: Serves) -> Contender {
    Contender { name, program: Program::Peer, what: name, serves, fastest: false }
}

const fn fast(name: &'static str, serves: Serves) -> Contender {
    Contender { fastest: true, ..peer(name, serves) }
}

/// The least work of a server: the figures of echoes are relative to it.
const PLAIN: Contender = ours(PLAIN_NAME, Program::Plain, "plain-ring", Serves::Bytes);
pub(crate) const PLAIN_NAME: &str = "plain-echo";

/// The other servers are compared with the first that supports the load.
const CONTENDERS: [Contender; 23] = [
    ours("sinews", Program::Serve, "uring", Serves::Messages),
    ours("sinews-poll", Program::Serve, "poll", Serves::Messages),
    ours("sinews-http", Program::Hello, "uring", Serves::Requests),
    ours("sinews-http-poll", Program::Hello, "poll", Serves::Requests),
    ours("sinews-tokio", Program::Library, "sinews-tokio", Serves::Echo),
    ours("sinews-axum", Program::Library, "sinews-axum", Serves::Echo),
    ours("sinews-compio", Program::Library, "sinews-compio", Serves::Echo),
    peer("tokio-tungstenite", Serves::Echo),
    fast("tokio-tungstenite-feed", Serves::Echo),
    fast("tokio-tungstenite-feed-4k", Serves::Echo),
    peer("fastwebsockets", Serves::Echo),
    fast("fastwebsockets-buffered", Serves::Echo),
    peer("tokio-websockets", Serves::Echo),
    fast("tokio-websockets-feed", Serves::Echo),
    peer("sockudo", Serves::Echo),
    fast("sockudo-feed", Serves::Echo),
    peer("sockudo-compio", Serves::Echo),
    fast("sockudo-compio-tuned", Serves::Echo),
    peer("compio-ws", Serves::Echo),
    fast("compio-ws-feed", Serves::Echo),
    peer("axum", Serves::All),
    peer("hyper", Serves::Requests),
    peer("actix-web", Serves::Requests),
];

/// Measures the loads one after the other. A load without failures has passed.
pub(crate) fn run(options: &Options) -> Outcome {
    if let Some(unknown) = options.only.iter().find(|only| !CONTENDERS.iter().any(|one| one.name == **only)) {
        return Err(format!("no such server: {unknown} (--list names them)"));
    }
    let loads = if options.load.is_empty() { Load::value_variants() } else { &options.load };
    if options.list {
        for load in loads {
            let names: Vec<&str> = chosen(*load, options).iter().map(|one| one.name).collect();
            println!("{}: {}", name(*load), names.join(", "));
        }
        return Ok(Count::PASSED);
    }
    let programs = Programs::build(&options.profile)?;
    let mut git = Command::new("git");
    git.args(["describe", "--always", "--dirty"]).current_dir(process::root());
    if let Some(commit) = process::output_of(&mut git).filter(|_| !options.json) {
        println!("commit {}, profile {}", commit.trim(), options.profile);
    }
    let mut count = Count::default();
    for load in loads {
        count = count + measure(*load, options, &programs)?;
    }
    Ok(count)
}

pub(crate) fn name(load: Load) -> String {
    load.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Returns the chosen servers; the first is always among them.
fn chosen(load: Load, options: &Options) -> Vec<&'static Contender> {
    let all = CONTENDERS.iter().filter(|one| load.takes(one)).enumerate();
    let wants = |one: &Contender| match options.only.is_empty() {
        true => options.fastest || !one.fastest,
        false => options.only.iter().any(|only| only == one.name),
    };
    all.filter(|(place, one)| *place == 0 || wants(one)).map(|(_, one)| one).collect()
}

fn measure(load: Load, options: &Options, programs: &Programs) -> Outcome {
    let mut bench = measurement(load, options, programs, &chosen(load, options))?;
    if !options.json {
        println!("\n{}: {}", name(load), load.options().join(" "));
    }
    let status = bench.status().map_err(|error| format!("{}: {error}", programs.sinews.display()))?;
    Ok(if status.success() { Count::PASSED } else { Count::FAILED })
}

/// The figures of one load beside the plain echo, where it takes the load, as `sinews bench compare --json` prints them.
pub(crate) fn figures(load: Load, options: &Options, programs: &Programs) -> Result<Value, String> {
    let is_built = |one: &&Contender| one.program != Program::Peer || programs.peers.is_some();
    let mut contenders: Vec<_> = chosen(load, options).into_iter().filter(is_built).collect();
    if load.takes(&PLAIN) {
        contenders.insert(0, &PLAIN);
    }
    let mut bench = measurement(load, options, programs, &contenders)?;
    let output = bench.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{}: {error}", programs.sinews.display()))?;
    if !output.status.success() {
        return Err(format!("{}: {}", name(load), String::from_utf8_lossy(&output.stderr).trim()));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("{}: {error}", name(load)))
}

fn measurement(
    load: Load,
    options: &Options,
    programs: &Programs,
    contenders: &[&Contender],
) -> Result<Command, String> {
    let mut bench = Command::new(&programs.sinews);
    let rounds = options.rounds.to_string();
    bench.args(["bench", "compare", "--rounds", &rounds, "--duration", &options.duration]);
    bench.args(["--warm-up", &options.warm_up]);
    bench.args(["--server-core", &options.server_core, "--load-core", &options.load_core]);
    bench.args(load.options());
    if let Some(rate) = options.rate.filter(|_| load.rate().is_some()) {
        bench.args(["--rate", &rate.to_string()]);
    }
    if options.json {
        bench.args(["--json", "--quiet"]);
    }
    for one in contenders {
        let port = server::free_address()?.port();
        let url = match one.serves {
            Serves::Bytes => format!("tcp://127.0.0.1:{port}"),
            _ => load.url(port),
        };
        bench.arg(format!("{}={url}={}", one.name, programs.command(one, port)));
    }
    Ok(bench)
}

/// Paths of the built programs.
pub(crate) struct Programs {
    pub(crate) sinews: PathBuf,
    hello: PathBuf,
    library: PathBuf,
    plain: PathBuf,
    /// Without it, servers on other libraries are not measured.
    peers: Option<PathBuf>,
}

impl Programs {
    fn build(profile: &str) -> Result<Self, String> {
        let mut programs = Self::build_own(profile)?;
        programs.build_peers(profile)?;
        Ok(programs)
    }

    /// The programs of this repository, without servers on other libraries.
    pub(crate) fn build_own(profile: &str) -> Result<Self, String> {
        let folder = folder(profile);
        for what in [
            &["--package", "sinews-cli"][..],
            &["--package", "sinews-server", "--example", "hello_http"],
            &["--package", "sinews-library"],
            &["--package", "sinews-loopback"],
        ] {
            build(profile, what)?;
        }
        Ok(Self {
            sinews: folder.join("sinews"),
            hello: folder.join("examples/hello_http"),
            library: folder.join("sinews-library"),
            plain: folder.join("sinews-loopback"),
            peers: None,
        })
    }

    pub(crate) fn build_peers(&mut self, profile: &str) -> Result<(), String> {
        build(profile, &["--package", "sinews-peers", "--features", "peers"])?;
        self.peers = Some(folder(profile).join("sinews-peers"));
        Ok(())
    }

    /// Returns the command that starts the server on a port, on one thread.
    fn command(&self, one: &Contender, port: u16) -> String {
        let Contender { program, what, .. } = one;
        match program {
            Program::Serve => {
                let options = format!("--threads 1 --deflate off --log error --backend {what}");
                format!("{} serve --listen 127.0.0.1:{port} {options}", quoted(&self.sinews))
            }
            Program::Hello => format!("{} {port} {what} 1", quoted(&self.hello)),
            Program::Library => format!("{} {what} {port}", quoted(&self.library)),
            Program::Plain => format!("{} {what} {port}", quoted(&self.plain)),
            Program::Peer => {
                format!("{} {what} {port}", quoted(self.peers.as_deref().unwrap_or_else(|| Path::new(""))))
            }
        }
    }
}

fn folder(profile: &str) -> PathBuf {
    process::target().join(if profile == "dev" { "debug" } else { profile })
}

fn build(profile: &str, what: &[&str]) -> Result<(), String> {
    let log = process::target().join(format!("xtask/compare-{}.log", what[1]));
    let mut build = process::cargo();
    build.args(["build", "--profile", profile]).args(what);
    process::run(&mut build, &log, process::COMMAND_LIMIT)?.check(&format!("build of {}", what[1]), &log)
}

/// Quotes a path for the shell.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(only: &[&str], fastest: bool) -> Options {
        let only = only.iter().map(|&name| name.to_owned()).collect();
        Options { only, fastest, ..Options::for_figures(3, "1s", "1s") }
    }

    #[test]
    fn our_server_is_first_in_every_load() {
        for load in Load::value_variants() {
            for options in [options(&[], false), options(&[], true), options(&["axum"], false)] {
                let all = chosen(*load, &options);
                assert!(all[0].name.starts_with("sinews"), "{load:?}");
                assert!(all.iter().any(|one| one.name == "axum"), "{load:?}");
                assert!(options.fastest || !all.iter().any(|one| one.fastest));
            }
        }
        assert_eq!(chosen(Load::Http, &options(&["hyper"], false)).len(), 2);
    }

    #[test]
    fn names_are_unique() {
        for (place, one) in CONTENDERS.iter().enumerate() {
            assert!(CONTENDERS[..place].iter().all(|other| other.name != one.name), "{}", one.name);
        }
    }

    #[test]
    fn paths_are_quoted_for_the_shell() {
        assert_eq!(quoted(Path::new("/a b/it's")), "'/a b/it'\\''s'");
    }
}
