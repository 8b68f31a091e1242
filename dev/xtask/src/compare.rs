//! Compares servers of other projects with ours, by `sinews bench compare`. Each server starts anew for every
//! round, on a processor of its own, in turns; the load runs on another processor. docs/book/src/reference/benchmarks.md has the
//! results.

mod contenders;
mod programs;

use std::process::{Command, Stdio};

use clap::{Args, FromArgMatches as _, ValueEnum};
use serde_json::Value;

use self::contenders::{CONTENDERS, Contender, DATAGRAMS, Listed, Serves};
pub(crate) use self::contenders::{PLAIN_NAME, Program};
pub(crate) use self::programs::Programs;
use crate::Outcome;
use crate::count::Count;
use crate::process;
use crate::server::{self, DIST_PROFILE};

#[derive(Args)]
pub(crate) struct Options {
    /// Loads to measure [default: those without TLS]
    #[arg(long, value_enum, value_delimiter = ',')]
    load: Vec<Load>,
    /// Servers to measure beside the first, such as `axum,hyper` [default: all but the plain echoes and nginx]; `--list` prints
    /// their names
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Server that the others are compared with [default: the first of the load]
    #[arg(long, value_name = "NAME")]
    base: Option<String>,
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
    /// Messages per second at a fixed rate, instead of a closed loop; fan-out has a rate of its own, and loads with TLS have none
    #[arg(long, value_name = "N")]
    rate: Option<u32>,
    /// Threads of each server; with several, servers on Tokio have its multi-threaded runtime with two
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: u8,
    /// Processors of the servers, such as 0 or 0,1
    #[arg(long, value_name = "LIST", default_value = "0")]
    server_core: String,
    /// Processors of the load
    #[arg(long, value_name = "LIST", default_value = "1")]
    load_core: String,
    /// Folder with the Python packages aioquic and wsproto (`pip install --target PATH aioquic wsproto`), to measure
    /// aioquic too
    #[arg(long, value_name = "PATH")]
    python_packages: Option<String>,
    /// Build profile; profiles other than dist have no meaningful figures
    #[arg(long, value_name = "NAME", default_value = DIST_PROFILE)]
    profile: String,
    /// Print JSON, an object for each load, instead of tables
    #[arg(long)]
    json: bool,
    /// Print the loads and their servers without measuring
    #[arg(long)]
    list: bool,
    /// Options of `sinews bench`, in the place of those of the load, such as `-- -c 512 -s 512 --binary`
    #[arg(last = true)]
    options: Vec<String>,
}

impl Options {
    /// All servers in their usual form, with the servers on processor 0 and the load on processor 1; as JSON.
    pub(crate) fn for_figures(rounds: u32, duration: &str, warm_up: &str) -> Self {
        let rounds = rounds.to_string();
        let given = ["--json", "--rounds", &rounds, "--duration", duration, "--warm-up", warm_up];
        let command = Self::augment_args(clap::Command::new("compare").no_binary_name(true));
        let matches = command.get_matches_from(given);
        Self::from_arg_matches(&matches).expect("they are options")
    }

    /// The same at a fixed rate.
    pub(crate) fn at_rate(&self, rate: u32) -> Self {
        Self { rate: Some(rate), ..Self::for_figures(self.rounds, &self.duration, &self.warm_up) }
    }

    /// The options of `sinews bench` for all servers of a load.
    fn load_options(&self, load: Load) -> Vec<&str> {
        if self.options.is_empty() {
            load.options().to_vec()
        } else {
            self.options.iter().map(String::as_str).collect()
        }
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
    /// 64 WebSockets with TLS, 64 bytes: over HTTP/1.1, on 64 connections of HTTP/2, and on one
    Http2,
    /// `GET /hello` on 8 connections of HTTP/2, 100 at a time
    Http2Requests,
    /// 64 WebSockets with TLS, 64 bytes: over HTTP/1.1, on 64 connections of HTTP/3, and on one
    Http3,
    /// `GET /hello` on 64 connections of HTTP/3
    Http3Requests,
    /// 64 WebSockets over HTTP/3, and 64 sessions of WebTransport, 64 bytes
    Sessions,
    /// Publications for 64 subscribers over HTTP/3: WebSockets, streams and datagrams of sessions
    Deliveries,
}

impl Load {
    /// The loads without TLS: those of the figures.
    pub(crate) const PLAIN: [Self; 8] = [
        Self::Echo,
        Self::Pipelined,
        Self::Text,
        Self::Large,
        Self::Huge,
        Self::FanOut,
        Self::Http,
        Self::HttpPipelined,
    ];

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
            Self::Http2 | Self::Http3 => &["--insecure", "-s", "64", "--binary", "--burst"],
            Self::Http2Requests => {
                &["--insecure", "--http2", "-c", "8", "-i", "100", "--expect", "Hello, world!"]
            }
            Self::Http3Requests => &["--insecure", "--http3", "-c", "64", "--expect", "Hello, world!"],
            Self::Sessions => &["--insecure", "-c", "64", "-s", "64", "--binary", "--burst"],
            Self::Deliveries => &["--insecure", "-m", "fan-out", "-c", "65", "-s", "64", "--burst"],
        }
    }

    /// Messages per second at which latencies are measured: less than any server of the load reaches. `None`: the load has
    /// a rate of its own, or is always a closed loop.
    pub(crate) const fn rate(self) -> Option<u32> {
        match self {
            Self::Echo | Self::Http => Some(20_000),
            Self::Pipelined | Self::HttpPipelined => Some(50_000),
            Self::Text | Self::Large => Some(10_000),
            Self::Huge => Some(200),
            _ => None,
        }
    }

    fn url(self, contender: &Contender, port: u16) -> String {
        match self {
            _ if contender.serves == Serves::Bytes => format!("tcp://127.0.0.1:{port}"),
            Self::Echo | Self::Pipelined | Self::Text | Self::Large | Self::Huge => {
                format!("ws://127.0.0.1:{port}/echo")
            }
            // All servers have topics at /topics/{name}.
            Self::FanOut => format!("ws://127.0.0.1:{port}/"),
            Self::Http | Self::HttpPipelined => format!("http://127.0.0.1:{port}/hello"),
            Self::Http2 | Self::Http3 | Self::Sessions => format!("wss://127.0.0.1:{port}/echo"),
            Self::Http2Requests | Self::Http3Requests => format!("https://127.0.0.1:{port}/hello"),
            Self::Deliveries => {
                let datagrams = if contender.name == DATAGRAMS { "&datagrams=true" } else { "" };
                format!("wss://127.0.0.1:{port}/topics/{{topic}}?self=false{datagrams}")
            }
        }
    }

    const fn is_http(self) -> bool {
        matches!(self, Self::Http | Self::HttpPipelined)
    }

    /// Whether the plain echoes take it.
    const fn is_echo(self) -> bool {
        matches!(self, Self::Echo | Self::Pipelined | Self::Text | Self::Large | Self::Huge)
    }

    fn takes(self, contender: &Contender) -> bool {
        match contender.serves {
            Serves::Echo | Serves::Bytes => self.is_echo(),
            Serves::Messages => self.is_echo() || self == Self::FanOut,
            Serves::Requests => self.is_http(),
            Serves::All => Self::PLAIN.contains(&self),
            Serves::Only(load) => self == load,
        }
    }
}

/// Measures the loads one after the other. A load without failures has passed.
pub(crate) fn run(options: &Options) -> Outcome {
    let names = options.only.iter().chain(&options.base);
    if let Some(unknown) = names.into_iter().find(|name| !CONTENDERS.iter().any(|one| one.name == **name)) {
        return Err(format!("no such server: {unknown} (--list names them)"));
    }
    let loads = match options.load.is_empty() {
        false => &options.load[..],
        true if options.list => Load::value_variants(),
        true => &Load::PLAIN,
    };
    if options.list {
        for load in loads {
            let all = CONTENDERS.iter().filter(|one| load.takes(one));
            let names: Vec<&str> = all.map(|one| one.name).collect();
            println!("{}: {}", name(*load), names.join(", "));
        }
        return Ok(Count::PASSED);
    }
    let mut programs = Programs::new(&options.profile, options.threads, options.python_packages.as_deref());
    let chosen: Vec<_> =
        loads.iter().flat_map(|load| chosen(*load, options, options.base.as_deref())).collect();
    let is_http3 = loads.iter().any(|load| load.uses_http3());
    let bench = if is_http3 { Program::ServeHttp3 } else { Program::Serve };
    programs.build(chosen.iter().map(|one| one.program).chain([bench]))?;
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

/// Returns the chosen servers, the base first. Without one it is the first server of the load.
fn chosen(load: Load, options: &Options, base: Option<&str>) -> Vec<&'static Contender> {
    let mut all: Vec<_> = CONTENDERS.iter().filter(|one| load.takes(one)).collect();
    let base = base.and_then(|base| all.iter().position(|one| one.name == base));
    let base = (!all.is_empty()).then(|| all.remove(base.unwrap_or_default()));
    let wants = |one: &&Contender| match options.only.is_empty() {
        true => match one.listed {
            Listed::Always => one.program != Program::Aioquic || options.python_packages.is_some(),
            Listed::Fastest => options.fastest,
            Listed::Named => false,
        },
        false => options.only.iter().any(|only| only == one.name),
    };
    base.into_iter().chain(all.into_iter().filter(wants)).collect()
}

fn measure(load: Load, options: &Options, programs: &Programs) -> Outcome {
    let mut bench = measurement(load, options, programs, &chosen(load, options, options.base.as_deref()))?;
    if !options.json {
        println!("\n{}: {}", name(load), options.load_options(load).join(" "));
    }
    let status = bench.status().map_err(|error| format!("{}: {error}", programs.sinews().display()))?;
    Ok(if status.success() { Count::PASSED } else { Count::FAILED })
}

/// The figures of one load beside the plain echo, where it takes the load, as `sinews bench compare --json` prints them.
pub(crate) fn figures(load: Load, options: &Options, programs: &Programs) -> Result<Value, String> {
    let base = load.is_echo().then_some(PLAIN_NAME);
    let mut contenders = chosen(load, options, base);
    contenders.retain(|one| programs.has(one.program));
    let mut bench = measurement(load, options, programs, &contenders)?;
    let output = bench.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{}: {error}", programs.sinews().display()))?;
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
    let mut bench = Command::new(programs.sinews());
    let rounds = options.rounds.to_string();
    bench.args(["bench", "compare", "--rounds", &rounds, "--duration", &options.duration]);
    bench.args(["--warm-up", &options.warm_up]);
    bench.args(["--server-core", &options.server_core, "--load-core", &options.load_core]);
    let shared = options.load_options(load);
    bench.args(&shared);
    if let Some(rate) = options.rate.filter(|_| load.rate().is_some()) {
        bench.args(["--rate", &rate.to_string()]);
    }
    if options.json {
        bench.args(["--json", "--quiet"]);
    }
    for one in contenders {
        let port = server::free_address()?.port();
        bench.arg(format!("{}={}={}", one.name, load.url(one, port), programs.command(one, port)?));
    }
    // Behind the servers, which are one list.
    for one in contenders.iter().filter(|one| !one.options.is_empty()) {
        bench.args(["--options", &format!("{}={} {}", one.name, shared.join(" "), one.options)]);
    }
    Ok(bench)
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
                let all = chosen(*load, &options, None);
                assert!(all[0].name.starts_with("sinews") || *load == Load::Deliveries, "{load:?}");
                let has_axum = all.iter().any(|one| one.name == "axum");
                assert_eq!(has_axum, Load::PLAIN.contains(load), "{load:?}");
                assert!(options.fastest || !all.iter().any(|one| one.listed == Listed::Fastest));
            }
        }
        assert_eq!(chosen(Load::Http, &options(&["hyper"], false), None).len(), 2);
    }

    #[test]
    fn named_base_replaces_the_first_server() {
        let names = |only: &[&str], base| -> Vec<&str> {
            chosen(Load::Echo, &options(only, false), base).iter().map(|one| one.name).collect()
        };
        assert_eq!(names(&["axum"], Some("plain-mio")), ["plain-mio", "axum"]);
        let all = names(&[], Some("plain-mio"));
        assert_eq!(all[..2], ["plain-mio", "sinews"]);
        assert!(!all.contains(&PLAIN_NAME) && !names(&[], None).contains(&"plain-mio"), "{all:?}");
    }

    #[test]
    fn names_are_unique() {
        for (place, one) in CONTENDERS.iter().enumerate() {
            assert!(CONTENDERS[..place].iter().all(|other| other.name != one.name), "{}", one.name);
        }
    }
}
