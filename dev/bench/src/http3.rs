//! HTTP/3: WebSockets beside the same over HTTP/1.1 with TLS, beside sockudo-ws on quinn and beside aioquic; and
//! `GET /hello` beside the crate `h3` on quinn and beside aioquic; and sessions of WebTransport beside WebSockets, and beside
//! web-transport-quinn. All servers have the same certificate.
//!
//! The load has a socket for each connection, as clients on different machines have.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::ValueEnum;

use crate::Error;
use crate::args::Http3Args;
use crate::generator::Generator;
use crate::process::{SERVER_CORE, Server};
use crate::programs::Program;
use crate::round::{Measure, Rounds, Work as _};
use crate::tls::{BACKENDS, EchoContender, PartResult, TlsPrograms, short, start};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Http3Part {
    /// 64 WebSockets, 64 bytes, on 64 connections and over HTTP/3 also on one: one message in flight
    Echo,
    /// The same with 16 messages in flight
    EchoPipelined,
    /// `GET /hello`, 64 connections with one request at a time, and 8 with 100
    Requests,
    /// 64 sessions of WebTransport, 64 bytes, on 64 connections, beside WebSockets: one message in flight, and 16
    Sessions,
    /// Publications for 64 subscribers on 64 connections: WebSockets, streams and datagrams of sessions
    Deliveries,
}

/// Runs the measurement of the arguments, and prints a table for each part.
pub(crate) fn run(args: &Http3Args) -> Result<(), Error> {
    let programs = TlsPrograms::build(&args.programs, &Program::HTTP3_PEERS)?;
    crate::prepare_load()?;
    let mut results = Vec::new();
    for part in args.parts() {
        match part {
            Http3Part::Echo => results.push(programs.echo_http3(args, 1)?),
            Http3Part::EchoPipelined => results.push(programs.echo_http3(args, 16)?),
            Http3Part::Sessions => {
                for in_flight in [1, 16] {
                    results.push(programs.echo_sessions(args, in_flight)?);
                }
            }
            Http3Part::Deliveries => results.push(programs.deliveries(args)?),
            Http3Part::Requests => {
                for load in REQUEST_LOADS {
                    results.push(programs.requests_http3(args, load)?);
                }
            }
        }
    }
    println!();
    results.iter().for_each(PartResult::print_bars);
    Ok(())
}

/// A server, and the options that its clients need.
struct Http3Server {
    name: String,
    server: Server,
    options: &'static [&'static str],
}

impl TlsPrograms {
    /// A server on another library in Rust.
    fn http3_peer(&self, name: &str) -> Result<Server, Error> {
        let program = self.peers.with_file_name("sinews-peers-http3");
        start(&program, &[name, "--certificate", &self.certificate, "--key", &self.key])
    }

    /// aioquic, unless its packages are not given.
    fn aioquic(&self, packages: Option<&PathBuf>) -> Result<Option<Http3Server>, Error> {
        let Some(packages) = packages else {
            println!("aioquic is left out: --python-packages is not given");
            return Ok(None);
        };
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/http3_aioquic.py");
        let packages = format!("PYTHONPATH={}", packages.display());
        let arguments = [packages, "python3".to_owned(), "-B".to_owned(), script.display().to_string()];
        let files = [&self.certificate, &self.key].map(String::as_str);
        let arguments = arguments.iter().map(String::as_str).chain(files).map(OsString::from);
        let server = Server::start(Path::new("env"), &arguments.collect::<Vec<_>>(), SERVER_CORE)?;
        Ok(Some(Http3Server { name: "aioquic".to_owned(), server, options: &[] }))
    }

    /// WebSockets over HTTP/1.1 and HTTP/3, with bursts of messages.
    fn echo_http3(&self, args: &Http3Args, in_flight: usize) -> Result<PartResult, Error> {
        let mut servers = Vec::new();
        for backend in BACKENDS {
            let server = self.hello(backend, &["http3"])?;
            servers.push(Http3Server { name: format!("sinews, {}", short(backend)), server, options: &[] });
        }
        servers.push(Http3Server {
            name: "sockudo-ws".to_owned(),
            server: self.http3_peer("sockudo")?,
            // h3 rejects `websocket`.
            options: &["--http3-protocol", "webtransport"],
        });
        servers.extend(self.aioquic(args.python_packages.as_ref())?);
        let depth = in_flight.to_string();
        let (mut contenders, mut bars) = (Vec::new(), Vec::new());
        for (load, options) in ECHO_LOADS {
            let first = contenders.len();
            for (index, server) in servers.iter().enumerate() {
                let is_http3 = load != HTTP1;
                if !is_http3 && index >= BACKENDS.len() {
                    continue;
                }
                let url = format!("wss://{}/echo", server.server.address);
                let fixed = ["--insecure", "-i", &depth, "-s", "64", "--binary", "--burst"];
                let more = if is_http3 { server.options } else { &[] };
                let name = format!("{}, {load}", server.name);
                let load = Generator::warm(&url, &[options, more, &fixed].concat())
                    .map_err(|error| format!("{name}: {error}"))?;
                contenders.push(EchoContender { name, server: index, load });
            }
            let peers = first + BACKENDS.len()..contenders.len();
            bars.extend(
                (first..first + BACKENDS.len())
                    .flat_map(|this| peers.clone().map(move |peer| (this, peer, 1.0))),
            );
        }
        let title = format!("64 WebSockets over HTTP/3, 64 bytes, {in_flight} in flight");
        let result = measure(args, title, &servers, contenders, bars)?;
        result.print_table(["message", "messages"]);
        Ok(result)
    }

    /// Sessions of WebTransport, and WebSockets over HTTP/3, that echo bursts of messages.
    fn echo_sessions(&self, args: &Http3Args, in_flight: usize) -> Result<PartResult, Error> {
        let mut servers = Vec::new();
        for backend in BACKENDS {
            let server = self.hello(backend, &["http3"])?;
            servers.push(Http3Server { name: format!("sinews, {}", short(backend)), server, options: &[] });
        }
        let depth = in_flight.to_string();
        let fixed = ["--insecure", "-c", "64", "-i", &depth, "-s", "64", "--binary", "--burst"];
        let path = |_: &str, _: usize| "/echo".to_owned();
        let (mut contenders, mut bars) = open_kinds(&servers, &KINDS[..2], path, &fixed)?;
        let name = "web-transport-quinn".to_owned();
        let server = self.http3_peer(&name)?;
        let url = format!("wss://{}/echo", server.address);
        let load = Generator::warm(&url, &[&["--webtransport"], &fixed[..]].concat())
            .map_err(|error| format!("{name}: {error}"))?;
        let sessions = contenders.iter().enumerate().filter(|(_, one)| one.name.ends_with(KINDS[1].0));
        bars.extend(sessions.map(|(this, _)| (this, contenders.len(), 1.0)));
        contenders.push(EchoContender { name: name.clone(), server: servers.len(), load });
        servers.push(Http3Server { name, server, options: &[] });
        let title = format!("64 sessions of WebTransport, 64 bytes, {in_flight} in flight");
        let result = measure(args, title, &servers, contenders, bars)?;
        result.print_table(["message", "messages"]);
        Ok(result)
    }

    /// Publications for subscribers on connections of HTTP/3.
    fn deliveries(&self, args: &Http3Args) -> Result<PartResult, Error> {
        let mut servers = Vec::new();
        for backend in BACKENDS {
            let server = self.serve(backend, &["--http-http3"])?;
            servers.push(Http3Server { name: format!("sinews, {}", short(backend)), server, options: &[] });
        }
        let fixed = ["--insecure", "-m", "fan-out", "-c", "65", "-s", "64", "--burst"];
        // Each load has a topic of its own: all of them are open at once.
        let path = |query: &str, kind: usize| format!("/topics/{kind}-{{topic}}?self=false{query}");
        let (contenders, bars) = open_kinds(&servers, &KINDS, path, &fixed)?;
        let title = "64 subscribers over HTTP/3, publications of 64 bytes".to_owned();
        let result = measure(args, title, &servers, contenders, bars)?;
        result.print_table(["delivery", "deliveries"]);
        Ok(result)
    }

    /// `GET /hello` with a number of connections, and requests of each.
    fn requests_http3(
        &self,
        args: &Http3Args,
        (connections, streams): (&str, &str),
    ) -> Result<PartResult, Error> {
        let mut servers = Vec::new();
        for backend in BACKENDS {
            servers.push((format!("sinews, {}", short(backend)), self.hello(backend, &["http3"])?));
        }
        servers.push(("h3 on quinn".to_owned(), self.http3_peer("h3-quinn")?));
        let aioquic = self.aioquic(args.python_packages.as_ref())?;
        servers.extend(aioquic.map(|aioquic| (aioquic.name, aioquic.server)));
        let mut loads = Vec::new();
        for (name, server) in &servers {
            let url = format!("https://{}/hello", server.address);
            let options = ["--http3", "--insecure", "-c", connections, "-i", streams, "--burst"];
            let expected = ["--expect", "Hello, world!"];
            let load = Generator::warm(&url, &[&options[..], &expected].concat());
            loads.push(load.map_err(|error| format!("{name}: {error}"))?);
        }
        let plan = args.plan.plan();
        let rounds = Rounds::run(plan, servers.len(), |index| {
            let (name, server) = &servers[index];
            let measure = Measure::of(server, || loads[index].run(plan.window));
            Ok(measure.map_err(|error| format!("{name}: {error}"))?)
        })?;
        let others = BACKENDS.len()..servers.len();
        let bars = (0..BACKENDS.len()).flat_map(|this| others.clone().map(move |other| (this, other, 1.0)));
        let result = PartResult {
            title: format!("GET over HTTP/3, {connections} connections, {streams} requests at a time"),
            names: servers.iter().map(|(name, _)| name.clone()).collect(),
            rounds,
            bars: bars.collect(),
        };
        result.print_table(["request", "requests"]);
        Ok(result)
    }
}

/// The bars of a part, as in [`PartResult::bars`].
type Bars = Vec<(usize, usize, f64)>;

/// Measures loads that are open in turns.
fn measure(
    args: &Http3Args,
    title: String,
    servers: &[Http3Server],
    mut contenders: Vec<EchoContender>,
    bars: Bars,
) -> Result<PartResult, Error> {
    let plan = args.plan.plan();
    let names: Vec<String> = contenders.iter().map(|one| one.name.clone()).collect();
    let rounds = Rounds::run(plan, contenders.len(), |index| {
        let EchoContender { name, server, load } = &mut contenders[index];
        let measure = Measure::of(&servers[*server].server, || load.run(plan.window));
        Ok(measure.map_err(|error| format!("{name}: {error}"))?)
    })?;
    Ok(PartResult { title, names, rounds, bars })
}

/// Opens a load of each kind on each server. All others have a bar beside the first kind of their server.
fn open_kinds(
    servers: &[Http3Server],
    kinds: &[(&str, &str, &str)],
    path: impl Fn(&str, usize) -> String,
    options: &[&str],
) -> Result<(Vec<EchoContender>, Bars), Error> {
    let (mut contenders, mut bars) = (Vec::new(), Vec::new());
    for (server, Http3Server { name, server: process, .. }) in servers.iter().enumerate() {
        let first = contenders.len();
        for (number, (kind, option, query)) in kinds.iter().enumerate() {
            let name = format!("{name}, {kind}");
            let url = format!("wss://{}{}", process.address, path(query, number));
            let load = Generator::warm(&url, &[&[*option], options].concat())
                .map_err(|error| format!("{name}: {error}"))?;
            contenders.push(EchoContender { name, server, load });
        }
        bars.extend((first + 1..contenders.len()).map(|this| (this, first, 1.0)));
    }
    Ok((contenders, bars))
}

/// Kinds of a load on connections of HTTP/3, with an option of `sinews bench` and a part of the query.
const KINDS: [(&str, &str, &str); 3] = [
    ("WebSockets", "--http3", ""),
    ("streams of sessions", "--webtransport", ""),
    ("datagrams of sessions", "--webtransport", "&datagrams=true"),
];

const HTTP1: &str = "HTTP/1.1";

/// Loads of 64 WebSockets, as options of `sinews bench`.
const ECHO_LOADS: [(&str, &[&str]); 3] = [
    (HTTP1, &["-c", "64"]),
    ("64 HTTP/3 connections", &["-c", "64", "--http3"]),
    ("one HTTP/3 connection", &["-c", "1", "--http3", "--sockets-per-connection", "64"]),
];

/// Connections, and requests of each at a time: below the limits of streams of all servers.
const REQUEST_LOADS: [(&str, &str); 2] = [("64", "1"), ("8", "100")];
