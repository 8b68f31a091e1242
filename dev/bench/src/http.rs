//! HTTP: `GET /healthz` on persistent connections, one by one and pipelined.

use std::io::{Read, Write};
use std::net::SocketAddr;

use crate::Error;
use crate::args::HttpArgs;
use crate::client::Client;
use crate::connect::{STALL_LIMIT, connect};
use crate::load::Batch;
use crate::report;
use crate::round::Rounds;
use crate::target::{Programs, ServeOptions, named};

/// Runs the measurement of the arguments and prints a table for each depth of pipelining.
pub(crate) fn run(args: &HttpArgs) -> Result<(), Error> {
    let programs = Programs::build(&args.programs, &args.targets())?;
    crate::prepare_load()?;
    let targets = programs.startable(&args.targets())?;
    let names: Vec<String> = targets.iter().map(|target| target.name().to_owned()).collect();
    let ours: Vec<usize> = (0..targets.len()).filter(|index| targets[*index].is_sinews()).collect();
    let mut bars = Vec::new();
    for depth in args.depths() {
        let servers = programs.start_all(&targets, &ServeOptions::default())?;
        let rounds = Rounds::of_servers(args.plan.plan(), &named(&servers), args.connections, |index| {
            let (target, server) = &servers[index];
            let batch =
                batch(server.address, depth).map_err(|error| format!("{}: {error}", target.name()))?;
            Client::connect(server.address, args.connections, None, batch)
        })?;
        let title = format!("{} connections, {depth} in flight", args.connections);
        report::table(&title, ["request", "requests"], &names, &ours, &rounds);
        bars.push((title, rounds));
    }
    println!();
    for (title, rounds) in &bars {
        for &this in &ours {
            for other in (0..targets.len()).filter(|index| targets[*index].is_peer()) {
                report::bar(title, &names, this, other, 1., rounds);
            }
        }
    }
    Ok(())
}

/// Builds a batch of `depth` requests, with the length of this server's answers, which differ in their dates
/// only.
fn batch(address: SocketAddr, depth: usize) -> Result<Batch, Error> {
    let answer = answer(address)?;
    let (request, reply) = (REQUEST.repeat(depth), answer.repeat(depth));
    Ok(Batch { request, reply, messages: depth as u64, exact: false })
}

/// Fetches one answer and checks it.
fn answer(address: SocketAddr) -> Result<Vec<u8>, Error> {
    let mut stream = connect(address)?;
    stream.set_read_timeout(Some(STALL_LIMIT))?;
    stream.write_all(REQUEST)?;
    let (mut answer, mut chunk) = (Vec::new(), [0; 4096]);
    while !answer.ends_with(BODY) {
        match stream.read(&mut chunk)? {
            0 => return Err("the target closed the connection".into()),
            bytes => answer.extend_from_slice(&chunk[..bytes]),
        }
        if answer.len() > ANSWER_MAX {
            return Err("unexpected answer to GET /healthz".into());
        }
    }
    if answer.starts_with(STATUS) { Ok(answer) } else { Err("GET /healthz is not answered with 200".into()) }
}

const REQUEST: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
const STATUS: &[u8] = b"HTTP/1.1 200 ";
/// The body, with the end of the head.
const BODY: &[u8] = b"\r\n\r\nok\n";
const ANSWER_MAX: usize = 4096;
