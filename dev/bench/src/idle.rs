//! Idle connections: memory of the server and of the kernel.

pub(crate) mod clients;
pub(crate) mod memory;

use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread;

use clap::ValueEnum;

use self::memory::Memory;
use crate::Error;
use crate::args::IdleArgs;
use crate::process::Server;
use crate::target::{Programs, ServeOptions, Target};

/// Runs the measurement of the arguments and prints a table.
pub(crate) fn run(args: &IdleArgs) -> Result<(), Error> {
    let programs = Programs::build(&args.programs, &args.targets())?;
    crate::prepare_load()?;
    let history = args.after.to_possible_value().expect("no history is left out of the command line");
    println!(
        "\n**{} connections after {}, deflate {}**, bytes a connection\n\n\
         | server | private and dirty | resident | kernel slab, both ends | socket buffers | threads |\n\
         |---|---|---|---|---|---|",
        args.connections,
        history.get_name(),
        args.deflate.name()
    );
    let mut caches = Vec::new();
    for target in programs.startable(&args.targets())? {
        let grown =
            measure(args, &programs, target).map_err(|error| format!("{}: {error}", target.name()))?;
        let each = |bytes: i64| bytes / args.connections as i64;
        let threads = if target.is_sinews() { args.threads() } else { 1 };
        println!(
            "| {} | {} | {} | {} | {} | {threads} |",
            target.name(),
            each(grown.private_dirty),
            each(grown.resident),
            each(grown.slab),
            each(grown.socket_buffers)
        );
        let grew: Vec<String> =
            grown.caches.iter().map(|(name, bytes)| format!("{name} {}", each(*bytes))).collect();
        caches.push(format!("{}: {}", target.name(), grew.join(", ")));
    }
    println!("\nAll processes share the kernel's memory: no other connections may open or close meanwhile.");
    println!("\nKernel caches that grew most, bytes a connection, both ends:\n");
    caches.iter().for_each(|line| println!("* {line}"));
    Ok(())
}

fn measure(args: &IdleArgs, programs: &Programs, target: Target) -> Result<Memory, Error> {
    let options = ServeOptions { threads: args.threads(), deflate: args.deflate, ..ServeOptions::default() };
    let server = programs.start(target, &options)?;
    // Waits until the kernel has freed the sockets of the last target.
    thread::sleep(args.settle());
    let before = Memory::now(server.pid())?;
    let mut clients = Vec::new();
    let mut left = args.connections;
    while left > 0 {
        let connections = left.min(CONNECTIONS_PER_CLIENT);
        clients.push(Clients::start(args, &server, clients.len(), connections)?);
        left -= connections;
    }
    thread::sleep(args.settle());
    server.settled_usage()?;
    Ok(Memory::now(server.pid())?.since(&before))
}

/// A process that holds some of the connections.
struct Clients(Child);

impl Clients {
    /// Starts the process and waits until its connections have run their history.
    fn start(args: &IdleArgs, server: &Server, number: usize, connections: usize) -> Result<Self, Error> {
        let name = |value: Option<clap::builder::PossibleValue>| {
            value.map(|value| value.get_name().to_owned()).unwrap_or_default()
        };
        // Each process has its own source address, and with it its own ports.
        let child = Command::new(env::current_exe()?)
            .args(["idle-clients", &server.address.to_string(), &format!("127.0.{}.1", number + 1)])
            .args([connections.to_string(), name(args.after.to_possible_value())])
            .arg(args.deflate.name())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut clients = Self(child);
        let stdout = clients.0.stdout.take().ok_or("standard output is piped")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        if line == clients::READY {
            Ok(clients)
        } else {
            Err("a process of clients failed, see above".into())
        }
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A connection takes a descriptor of the client process, and the limit is often 20,000.
const CONNECTIONS_PER_CLIENT: usize = 15_000;
