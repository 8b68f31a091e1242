//! System calls of a server for each message.
//!
//! strace counts the calls. It slows the server down, but the calls stay the same: for one message after the
//! other, and for a burst written at once, the numbers are the same each time. The number of receives and
//! sends of a large message depends on the bytes in the socket, and so on the machine.

use std::env;
use std::fs;
use std::path::Path;
use std::process;
use std::time::{Duration, Instant};

use sinews_strace::{Calls, Strace, page_faults};

use crate::Error;
use crate::args::SyscallsArgs;
use crate::load::Load;
use crate::process::Server;
use crate::round::Work;
use crate::target::{Programs, Target};

/// One connection: one message after the other, bursts of 50 written at once, and one large message after the
/// other.
pub(crate) const LOADS: [Load; 3] =
    [Load::new("1x64", 1, 64, 1), Load::new("1x64x50", 1, 64, 50), Load::new("1x16m", 1, 16 << 20, 1)];

/// Counts the calls and prints a table for each load.
pub(crate) fn run(args: &SyscallsArgs) -> Result<(), Error> {
    println!("Counted by {}.", sinews_strace::version().map_err(|error| error.to_string())?);
    let programs = Programs::build(&args.programs, &args.targets())?;
    crate::prepare_load()?;
    let targets = programs.startable(&args.targets())?;
    let log = env::temp_dir().join(format!("sinews-loopback-{}.strace", process::id()));
    let outcome = args.loads().iter().try_for_each(|load| {
        println!("\n**{}**, calls a message\n\n{}", load.name, head());
        for target in &targets {
            let name = target.full_name(args.options().runtime);
            let server = programs.start(*target, &args.options())?;
            let counted = count(&server, *target, load, args.window(), &log);
            println!("{}", row(&name, &counted.map_err(|error| format!("{name}, {}: {error}", load.name))?));
        }
        Ok(())
    });
    let _ = fs::remove_file(&log);
    println!("\n{LEGEND}");
    outcome
}

/// System calls of one server under one load.
#[derive(Debug)]
struct Counted {
    messages: u64,
    calls: Calls,
    page_faults: u64,
}

fn count(
    server: &Server,
    target: Target,
    load: &Load,
    window: Duration,
    log: &Path,
) -> Result<Counted, Error> {
    let mut client = load.open(target, server.address)?;
    // The warm-up excludes one-time calls.
    client.run(WARM_UP)?;
    let strace = Strace::attach(server.pid(), log)?;
    let before = page_faults(server.pid())?;
    let start = Instant::now();
    let mut messages = client.run(window)?.units;
    while messages < MESSAGES_MIN && start.elapsed() < COUNT_MAX {
        messages += client.run(AT_LEAST_ONE)?.units;
    }
    let page_faults = page_faults(server.pid())? - before;
    Ok(Counted { messages, calls: strace.detach()?, page_faults })
}

fn head() -> String {
    let head: Vec<&str> = KINDS.iter().map(|(kind, _)| *kind).collect();
    let columns = ["server", &head.join(" | "), "other", "all", "ring operations", "page faults", "messages"];
    format!("| {} |\n|{}", columns.join(" | "), "---|".repeat(columns.len() + KINDS.len() - 1))
}

fn row(name: &str, counted: &Counted) -> String {
    let each = |count: u64| number(count as f64 / counted.messages as f64);
    let kinds: Vec<u64> = KINDS.iter().map(|(_, names)| counted.calls.of(names)).collect();
    let all = counted.calls.all();
    let other = all - kinds.iter().sum::<u64>();
    let cells = kinds.into_iter().chain([other, all, counted.calls.submitted(), counted.page_faults]);
    let cells: Vec<String> = cells.map(each).collect();
    format!("| {name} | {} | {} |", cells.join(" | "), counted.messages)
}

/// Formats a number with two decimals: one call for 50 messages is 0.02 for each.
fn number(number: f64) -> String {
    match number {
        0. => "0".to_owned(),
        few if few < 0.005 => "< 0.01".to_owned(),
        few if few < 100. => format!("{few:.2}"),
        many => format!("{many:.0}"),
    }
}

/// Columns of the table.
const KINDS: [(&str, &[&str]); 5] = [
    ("receive", &["read", "readv", "recvfrom", "recvmsg", "recvmmsg"]),
    ("send", &["write", "writev", "sendto", "sendmsg", "sendmmsg"]),
    ("wait", &["epoll_wait", "epoll_pwait", "epoll_pwait2", "poll", "ppoll"]),
    ("io_uring_enter", &["io_uring_enter"]),
    ("memory", &["mmap", "mremap", "brk", "madvise", "munmap"]),
];

const LEGEND: &str = "receive: read, readv, recvfrom, recvmsg. send: write, writev, sendto, sendmsg. \
    wait: epoll_wait and its likes. memory: mmap, mremap, brk, madvise, munmap. other: futex and all else. \
    ring operations: what is handed to io_uring by its calls. page faults: pages that were mapped and touched.";

/// Long enough to fill the pools.
const WARM_UP: Duration = Duration::from_millis(200);

/// One call more or less then stays below a tenth of a call for each message, even for large and slow
/// messages.
const MESSAGES_MIN: u64 = 20;
/// Long enough to begin one more burst.
const AT_LEAST_ONE: Duration = Duration::from_millis(20);

/// Upper limit of the counting time.
const COUNT_MAX: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_and_rows_have_the_same_columns() {
        let row = row("x", &Counted { messages: 4, calls: Calls::default(), page_faults: 1 });
        assert_eq!(row, "| x | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 0.25 | 4 |");
        let head = head();
        let lines: Vec<&str> = head.lines().collect();
        assert_eq!(lines[0].matches('|').count(), row.matches('|').count());
        assert_eq!(lines[1].matches('|').count(), row.matches('|').count());
    }

    #[test]
    fn one_call_for_fifty_messages_is_shown() {
        assert_eq!([0., 0.004, 0.02, 3., 513.4].map(number), ["0", "< 0.01", "0.02", "3.00", "513"]);
    }

    #[test]
    fn each_call_belongs_to_one_kind() {
        let mut all: Vec<&str> = KINDS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn load_names_follow_their_parameters() {
        for load in &LOADS {
            assert!(load.name.starts_with(&format!("{}x", load.connections)));
            assert_eq!(load.name.ends_with("x50"), load.in_flight == 50);
        }
    }
}
