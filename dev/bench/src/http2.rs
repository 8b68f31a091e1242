//! HTTP/2 with TLS: WebSockets beside the same over HTTP/1.1 and beside axum, and `GET /hello` by h2load beside hyper and
//! nginx. All servers have the same certificate.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use clap::ValueEnum;

use crate::Error;
use crate::args::Http2Args;
use crate::generator::Generator;
use crate::nginx;
use crate::process::{LOAD_CORE, SERVER_CORE};
use crate::programs::Program;
use crate::round::{Done, Measure, Rounds, Work as _};
use crate::tls::{BACKENDS, EchoContender, PartResult, TlsPrograms, short};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Http2Part {
    /// 64 WebSockets, 64 bytes, on 64 connections and over HTTP/2 also on one: one message in flight
    Echo,
    /// The same with 16 messages in flight
    EchoPipelined,
    /// `GET /hello` by h2load, 100 streams on each connection
    Requests,
}

/// Runs the measurement of the arguments, and prints a table for each part.
pub(crate) fn run(args: &Http2Args) -> Result<(), Error> {
    let programs = TlsPrograms::build(&args.programs, &Program::PEERS)?;
    crate::prepare_load()?;
    let mut bars = Vec::new();
    for part in args.parts() {
        bars.extend(match part {
            Http2Part::Echo => programs.echo(args, 1)?,
            Http2Part::EchoPipelined => programs.echo(args, 16)?,
            Http2Part::Requests => programs.requests(args)?,
        });
    }
    println!();
    bars.iter().for_each(PartResult::print_bars);
    Ok(())
}

impl TlsPrograms {
    /// WebSockets over HTTP/1.1 and HTTP/2, with bursts of messages.
    fn echo(&self, args: &Http2Args, in_flight: usize) -> Result<Vec<PartResult>, Error> {
        let mut servers = Vec::new();
        for backend in BACKENDS {
            servers.push((format!("sinews, {}", short(backend)), self.serve(backend, &[])?));
        }
        servers.push(("axum".to_owned(), self.peer("axum-http2")?));
        let depth = in_flight.to_string();
        let mut contenders = Vec::new();
        for (index, (name, server)) in servers.iter().enumerate() {
            for (load, options) in ECHO_LOADS {
                if load == HTTP1 && index == BACKENDS.len() {
                    continue;
                }
                let url = format!("wss://{}/echo", server.address);
                let fixed = ["--insecure", "-i", &depth, "-s", "64", "--binary", "--burst"];
                let load_name = format!("{name}, {load}");
                let load = Generator::warm(&url, &[options, &fixed].concat())
                    .map_err(|error| format!("{load_name}: {error}"))?;
                contenders.push(EchoContender { name: load_name, server: index, load });
            }
        }
        let plan = args.plan.plan();
        let names: Vec<String> = contenders.iter().map(|one| one.name.clone()).collect();
        let rounds = Rounds::run(plan, contenders.len(), |index| {
            let EchoContender { name, server, load } = &mut contenders[index];
            let measure = Measure::of(&servers[*server].1, || load.run(plan.window));
            Ok(measure.map_err(|error| format!("{name}: {error}"))?)
        })?;
        let at = |server: usize, load: &str| {
            let name = format!("{}, {load}", servers[server].0);
            names.iter().position(|known| *known == name)
        };
        let axum = BACKENDS.len();
        let mut bars = Vec::new();
        for ours in 0..BACKENDS.len() {
            for (load, other, other_load, most) in [
                (MANY_CONNECTIONS, ours, HTTP1, 1.15),
                (ONE_CONNECTION, ours, HTTP1, 1.0),
                (MANY_CONNECTIONS, axum, MANY_CONNECTIONS, 0.5),
                (ONE_CONNECTION, axum, ONE_CONNECTION, 0.5),
            ] {
                bars.extend(
                    at(ours, load).zip(at(other, other_load)).map(|(this, other)| (this, other, most)),
                );
            }
        }
        let title = format!("64 WebSockets, 64 bytes, {in_flight} in flight");
        let result = PartResult { title, names, rounds, bars };
        result.print_table(["message", "messages"]);
        Ok(vec![result])
    }

    /// `GET /hello` by h2load.
    fn requests(&self, args: &Http2Args) -> Result<Vec<PartResult>, Error> {
        if Command::new("h2load").arg("--version").output().is_err() {
            return Err("h2load is needed (apt-get install nghttp2-client)".into());
        }
        let mut servers = Vec::new();
        for backend in BACKENDS {
            servers.push((format!("sinews, {}", short(backend)), self.hello(backend, &[])?));
        }
        servers.push(("hyper".to_owned(), self.peer("hyper-http2")?));
        let certificate = [&*self.certificate, &*self.key];
        match nginx::start(self.folder.path(), 1, SERVER_CORE, Some(certificate)) {
            Ok(nginx) => servers.push(("nginx".to_owned(), nginx)),
            Err(error) => println!("nginx is left out: {error}"),
        }
        let plan = args.plan.plan();
        let names: Vec<String> = servers.iter().map(|(name, _)| name.clone()).collect();
        let mut results = Vec::new();
        for connections in args.connections() {
            let rounds = Rounds::run(plan, servers.len(), |index| {
                let (name, server) = &servers[index];
                let measure = Measure::of(server, || h2load(server.address, connections, plan.window));
                Ok(measure.map_err(|error| format!("{name}: {error}"))?)
            })?;
            let title = format!("h2load -c{connections} -m100");
            let others = BACKENDS.len()..servers.len();
            let bars =
                (0..BACKENDS.len()).flat_map(|this| others.clone().map(move |other| (this, other, 1.0)));
            let result = PartResult { title, names: names.clone(), rounds, bars: bars.collect() };
            result.print_table(["request", "requests"]);
            results.push(result);
        }
        Ok(results)
    }
}

/// One run of h2load, of at least a second.
fn h2load(address: SocketAddr, connections: usize, window: Duration) -> Result<Done, Error> {
    let seconds = window.as_secs().max(1);
    let output = Command::new("taskset")
        .args(["--cpu-list", LOAD_CORE, "h2load", "-m100", "-t1"])
        .args([format!("-c{connections}"), format!("-D{seconds}"), format!("https://{address}/hello")])
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let units = answered(&text).ok_or_else(|| {
        format!("h2load: {}{text}{}", output.status, String::from_utf8_lossy(&output.stderr))
    })?;
    Ok(Done { units, elapsed: Duration::from_secs(seconds) })
}

/// Returns the number of answered requests in the output of h2load, if all have a status of 2xx.
fn answered(text: &str) -> Option<u64> {
    let count = |line: &str, of: &str| {
        let line = text.lines().find_map(|found| found.strip_prefix(line))?;
        line.split(", ").find_map(|part| part.trim().strip_suffix(of)?.parse::<u64>().ok())
    };
    let succeeded = count("requests:", " succeeded")?;
    let has_errors =
        [" failed", " errored", " timeout"].iter().any(|kind| count("requests:", kind) != Some(0));
    (!has_errors && succeeded > 0 && count("status codes:", " 2xx") >= Some(succeeded)).then_some(succeeded)
}

const HTTP1: &str = "HTTP/1.1";
const MANY_CONNECTIONS: &str = "64 HTTP/2 connections";
const ONE_CONNECTION: &str = "one HTTP/2 connection";

/// Loads of 64 WebSockets, as options of `sinews bench`.
const ECHO_LOADS: [(&str, &[&str]); 3] = [
    (HTTP1, &["-c", "64"]),
    (MANY_CONNECTIONS, &["-c", "64", "--http2"]),
    (ONE_CONNECTION, &["-c", "1", "--http2", "--sockets-per-connection", "64"]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_h2load_is_parsed_without_errors_only() {
        let text = "finished in 1.00s, 90.00 req/s, 1.2MB/s\nrequests: 90 total, 190 started, 90 done, \
                    90 succeeded, 0 failed, 0 errored, 0 timeout\nstatus codes: 92 2xx, 0 3xx, 0 4xx, 0 5xx\n";
        assert_eq!(answered(text), Some(90));
        assert_eq!(answered(&text.replace("0 failed", "1 failed")), None);
        assert_eq!(answered(&text.replace("92 2xx", "80 2xx")), None);
        assert_eq!(answered("unable to connect"), None);
    }
}
