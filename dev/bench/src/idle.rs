//! Idle connections: memory of the server and of the kernel.

pub(crate) mod memory;

use std::thread;

use clap::ValueEnum;

use self::memory::Memory;
use crate::Error;
use crate::args::{History, IdleArgs};
use crate::generator::{Generator, many};
use crate::process::Server;
use crate::target::{Deflate, Programs, ServeOptions, Target};

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
    let _idle = open(args, &server)?;
    thread::sleep(args.settle());
    server.settled_usage()?;
    Ok(Memory::now(server.pid())?.since(&before))
}

/// Opens the connections and runs their history on each. They answer pings; otherwise the server would close them.
fn open(args: &IdleArgs, server: &Server) -> Result<Generator, Error> {
    let (bursts, in_flight, size) = match args.after {
        History::Handshake => (0, "1", "64"),
        History::Small => (30, "50", "64"),
        History::Large => (1, "1", "256k"),
    };
    let many = many(args.connections);
    let mut load: Vec<&str> = many.iter().map(String::as_str).collect();
    load.extend(["-i", in_flight, "-s", size, "--text"]);
    if args.deflate != Deflate::Off {
        load.push("--deflate");
    }
    let mut idle = Generator::open(&format!("ws://{}/echo", server.address), &load)?;
    for _ in 0..bursts {
        idle.burst(TOGETHER)?;
    }
    Ok(idle)
}

/// Connections of a thread that send at a time: more would grow the server's buffers.
const TOGETHER: usize = 50;
