//! `GET /hello` by wrk: this server beside other HTTP servers, on one thread and on two.
//!
//! Each server replies with 13 bytes of text and `Date`, `Content-Length` and `Content-Type`. On one thread
//! the server runs on core 0 and wrk on core 1. With two threads each, server and wrk share both cores, so
//! that only the CPU time is meaningful.

use std::ffi::OsString;
use std::fs;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use clap::ValueEnum;

use crate::Error;
use crate::args::HelloArgs;
use crate::connect::{STALL_LIMIT, connect};
use crate::nginx;
use crate::process::Server;
use crate::programs::Program;
use crate::report;
use crate::round::{Done, Measure, Rounds};

/// A server to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum HelloServer {
    /// The server's `hello_http` example on readiness
    Poll,
    /// The same on io_uring
    Ring,
    /// `return 200`, without an access log
    Nginx,
    /// On Tokio, with one flush for pipelined requests (`pipeline_flush`)
    Hyper,
    /// On Tokio and hyper
    Axum,
    /// On Tokio, a runtime for each thread
    ActixWeb,
}

impl HelloServer {
    const fn name(self) -> &'static str {
        match self {
            Self::Poll => "sinews, poll",
            Self::Ring => "sinews, ring",
            Self::Nginx => "nginx",
            Self::Hyper => "hyper",
            Self::Axum => "axum",
            Self::ActixWeb => "actix-web",
        }
    }

    const fn is_sinews(self) -> bool {
        matches!(self, Self::Poll | Self::Ring)
    }

    const fn is_peer(self) -> bool {
        matches!(self, Self::Hyper | Self::Axum | Self::ActixWeb)
    }
}

/// Runs the measurement of the arguments and prints a table for each depth of pipelining.
pub(crate) fn run(args: &HelloArgs) -> Result<(), Error> {
    let bench = Bench { programs: HelloPrograms::build(args)?, args };
    crate::prepare_load()?;
    if Command::new("wrk").arg("-v").output().is_err() {
        return Err("wrk is needed (apt-get install wrk)".into());
    }
    // Declared before the servers: nginx deletes a file when it exits.
    let folder = tempfile::tempdir()?;
    let script = folder.path().join("pipeline.lua");
    fs::write(&script, PIPELINE)?;
    let mut servers = Vec::new();
    for kind in args.servers() {
        match bench.start(kind, folder.path()) {
            Ok(server) => servers.push((kind, server)),
            Err(error) if !kind.is_peer() => println!("{} is left out: {error}", kind.name()),
            Err(error) => return Err(format!("{}: {error}", kind.name()).into()),
        }
    }
    let names: Vec<String> = servers.iter().map(|(kind, _)| kind.name().to_owned()).collect();
    let ours: Vec<usize> = (0..servers.len()).filter(|index| servers[*index].0.is_sinews()).collect();
    let mut bars = Vec::new();
    for depth in args.depths() {
        let mut rounds = Rounds::run(args.plan.plan(), servers.len(), |index| {
            let (kind, server) = &servers[index];
            let mut measure = Measure::of(server, || bench.load(server.address, depth, &script))
                .map_err(|error| format!("{}: {error}", kind.name()))?;
            // With shared cores, all processes wait for each other: more rounds would not be quieter.
            measure.quiet |= args.threads > 1;
            Ok(measure)
        })?;
        rounds.quiet &= args.threads == 1;
        let title = format!("wrk -c{}, {depth} in flight, threads: {}", args.connections, args.threads);
        report::table(&title, ["request", "requests"], &names, &ours, &rounds);
        bars.push((title, rounds));
    }
    println!();
    for (title, rounds) in &bars {
        for &this in &ours {
            for other in (0..servers.len()).filter(|index| !servers[*index].0.is_sinews()) {
                report::bar(title, &names, this, other, 1., rounds);
            }
        }
    }
    Ok(())
}

struct Bench<'a> {
    programs: HelloPrograms,
    args: &'a HelloArgs,
}

/// Our programs and the programs of other projects.
struct HelloPrograms {
    hello: PathBuf,
    peers: PathBuf,
}

impl HelloPrograms {
    /// Builds the missing programs of the servers: paths in the arguments take precedence.
    fn build(args: &HelloArgs) -> Result<Self, Error> {
        let needs = |of: fn(HelloServer) -> bool| args.servers().into_iter().any(of);
        Ok(Self {
            hello: Program::HELLO.path(args.hello.as_ref(), needs(HelloServer::is_sinews))?,
            peers: Program::PEERS.path(args.sinews_peers.as_ref(), needs(HelloServer::is_peer))?,
        })
    }
}

impl Bench<'_> {
    const fn cores(&self) -> &'static str {
        if self.args.threads > 1 { "0,1" } else { crate::process::SERVER_CORE }
    }

    /// Starts a server, and checks its answer.
    fn start(&self, kind: HelloServer, folder: &Path) -> Result<Server, Error> {
        let threads = self.args.threads.to_string();
        let runtime = if self.args.threads > 1 { "multi" } else { "one" };
        let peer = |name| (&*self.programs.peers, vec![name, "--threads", runtime]);
        let (program, arguments) = match kind {
            HelloServer::Poll => (&*self.programs.hello, vec!["0", "poll", &threads]),
            HelloServer::Ring => (&*self.programs.hello, vec!["0", "uring", &threads]),
            HelloServer::Hyper => peer("hyper"),
            HelloServer::Axum => peer("axum"),
            HelloServer::ActixWeb => peer("actix-web"),
            HelloServer::Nginx => {
                let server = nginx::start(folder, self.args.threads, self.cores(), None)?;
                check(server.address)?;
                return Ok(server);
            }
        };
        let arguments: Vec<OsString> = arguments.into_iter().map(OsString::from).collect();
        let server = Server::start(program, &arguments, self.cores())?;
        check(server.address)?;
        Ok(server)
    }

    /// One run of wrk.
    fn load(&self, address: SocketAddr, depth: usize, script: &Path) -> Result<Done, Error> {
        let seconds = self.args.plan.plan().window.as_secs().max(1);
        let mut command = Command::new("taskset");
        command.args(["--cpu-list", if self.args.threads > 1 { "0,1" } else { "1" }, "wrk"]);
        command.arg(format!("-c{}", self.args.connections)).arg(format!("-t{}", self.args.threads));
        command.arg(format!("-d{seconds}"));
        if depth > 1 {
            command.arg("-s").arg(script);
        }
        command.arg(format!("http://{address}/hello"));
        if depth > 1 {
            command.args(["--", &depth.to_string()]);
        }
        let started = Instant::now();
        let output = command.output()?;
        let elapsed = started.elapsed().min(Duration::from_secs(seconds));
        let text = String::from_utf8_lossy(&output.stdout);
        let units = requests(&text).ok_or_else(|| {
            format!("wrk: {}{text}{}", output.status, String::from_utf8_lossy(&output.stderr))
        })?;
        Ok(Done { units, elapsed })
    }
}

/// Returns the number of answered requests in wrk's output, if wrk reports no errors.
fn requests(text: &str) -> Option<u64> {
    if text.contains("Socket errors") || text.contains("Non-2xx") {
        return None;
    }
    let line = text.lines().find(|line| line.contains(" requests in "))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Checks the answer of a server against the answer that all servers must give.
fn check(address: SocketAddr) -> Result<(), Error> {
    let mut stream = connect(address)?;
    stream.set_read_timeout(Some(STALL_LIMIT))?;
    stream.write_all(b"GET /hello HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let lower = answer.to_lowercase();
    let has = ["http/1.1 200 ", "\r\ndate: ", "\r\ncontent-length: 13\r\n", "\r\ncontent-type: text/plain"];
    if has.iter().all(|part| lower.contains(part)) && answer.ends_with("\r\n\r\nHello, world!") {
        return Ok(());
    }
    Err(format!("unexpected answer to GET /hello: {answer:?}").into())
}

/// Sends a number of requests in one write.
const PIPELINE: &str = "\
function init(args)
  local one = wrk.format(nil, \"/hello\")
  pipelined = string.rep(one, tonumber(args[1]))
end

function request()
  return pipelined
end
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_wrk_is_parsed_without_errors_only() {
        let text = "Running 2s test\n  239804 requests in 2.00s, 30.19MB read\nRequests/sec: 119902.00\n";
        assert_eq!(requests(text), Some(239_804));
        assert_eq!(requests(&format!("{text}  Socket errors: connect 0, read 3\n")), None);
        assert_eq!(requests(&format!("{text}  Non-2xx or 3xx responses: 5\n")), None);
        assert_eq!(requests("unable to connect"), None);
    }
}
