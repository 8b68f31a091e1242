//! Tasks of the repository: `cargo xtask test` runs every check, each other task runs one kind of check.
//!
//! Each task prints its steps and ends with `N passed, M failed` (and `K skipped` where an external tool may
//! be missing); the exit status is 0 when nothing failed.

#![forbid(unsafe_code)]

mod api;
mod backend;
mod binaries;
mod count;
mod features;
mod gates;
mod process;
mod quick;
mod rotation;
mod script;
mod steps;
mod tidy;
mod times;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::count::Count;

/// Result of a task: its counts, or the reason why it could not run at all.
pub(crate) type Outcome = Result<Count, String>;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Tasks of the repository")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Checks for each change: format, lints, layers, all Rust tests, Autobahn's cases, the pages. `--all`
    /// adds the long checks
    Test(steps::Options),
    /// Checks for the inner loop, within a minute: format, rules, lints and unit tests of the changed
    /// packages
    Quick(quick::Options),
    /// Project rules beyond the compiler and clippy: layers, lengths, unsafe, leftovers
    Tidy {
        /// Lower the bounds of measures that have fallen, in `dev/xtask/tidy-ratchets.txt`
        #[arg(long)]
        lower: bool,
    },
    /// Code of the product crates that occurs twice
    Duplicates,
    /// Import cycles of a product crate: files, and top-level modules, that import each other, directly or through others
    Cycles {
        /// The crate's folder in `crates/`
        #[arg(value_name = "CRATE")]
        name: String,
    },
    /// HTTP cases against the server; the Autobahn suite against the server, with TLS too, and the library
    #[command(disable_help_flag = true)]
    Conformance(script::Options),
    /// Clients and tools of other projects against the server, servers and proxies of other projects for the
    /// library
    #[command(disable_help_flag = true)]
    Interop(script::Options),
    /// The pages and the client of the server in Chromium
    #[command(disable_help_flag = true)]
    Browser(script::Options),
    /// The bridges to Kafka, Redis and NATS, against real brokers, which are started, killed and frozen
    #[command(disable_help_flag = true)]
    Brokers(script::Options),
    /// The files of `deploy/`, by the tools that read them; and their nodes and commands as processes on loopback
    #[command(disable_help_flag = true)]
    Deploy(script::Options),
    /// The tutorials in `examples/`, each by its own test against the server
    #[command(disable_help_flag = true)]
    Examples(script::Options),
    /// Archives of static programs, the npm package, and a trial of publishing the crates
    #[command(disable_help_flag = true)]
    Dist(script::Options),
    /// The library in every choice of up to two features, and in all: each compiles without a warning
    #[command(disable_help_flag = true)]
    Features(script::Options),
    /// The library with the oldest version of each dependency that its manifest allows: it compiles
    Floors,
    /// The public API of the library, compared with its recorded list
    Api(api::Options),
    /// The packages for Node.js and Python in `bindings`: compiled, installed and tested
    #[command(disable_help_flag = true)]
    Bindings(script::Options),
    /// All client behavior against the server, at once and for long, without leaks or wrong results
    #[command(disable_help_flag = true)]
    Soak(script::Options),
    /// Servers of other projects beside ours, measured in turns, with differences beyond noise
    #[command(disable_help_flag = true)]
    Compare(script::Options),
    /// The figures of the documents, measured at this commit and written into them
    #[command(disable_help_flag = true)]
    Figures(script::Options),
    /// Instructions of the server for each message, delivery and request: growth by more than 3 % fails
    #[command(disable_help_flag = true)]
    Instructions(script::Options),
    /// Other compilers and targets, the audit of dependencies, the sanitizer: steps of `test`
    #[command(hide = true, disable_help_flag = true)]
    Gates(script::Options),
    /// Programs or examples, compiled as for the tests: for the scripts of `dev/tasks`
    #[command(hide = true)]
    Build {
        #[arg(long, value_delimiter = ',')]
        bin: Vec<String>,
        #[arg(long, value_delimiter = ',')]
        example: Vec<String>,
    },
    /// System calls of the server for each message, where strace can count them
    #[command(disable_help_flag = true)]
    Syscalls(script::Options),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().task {
        Task::Test(options) => steps::run(&options),
        Task::Quick(options) => quick::run(&options),
        Task::Tidy { lower } => {
            if lower {
                tidy::lower()
            } else {
                tidy::run()
            }
        }
        Task::Duplicates => tidy::print_duplicates(),
        Task::Cycles { name } => tidy::print_cycles(&name),
        Task::Conformance(_) => script::run("conformance", &[]),
        Task::Interop(_) => script::run("interop", &[]),
        Task::Browser(_) => script::run("browser", &[]),
        Task::Brokers(_) => script::run("brokers", &[]),
        Task::Deploy(_) => script::run("deploy", &[]),
        Task::Examples(_) => script::run("examples", &[]),
        Task::Dist(_) => script::run("dist", &[]),
        Task::Features(_) => script::features(),
        Task::Floors => script::floors(),
        Task::Api(options) => api::run(&options),
        Task::Bindings(_) => script::run("bindings", &[]),
        Task::Soak(_) => script::run("soak", &[]),
        Task::Compare(_) => script::run("compare", &[]),
        Task::Figures(_) => script::run("figures", &[]),
        Task::Instructions(_) => script::run("instructions", &[]),
        Task::Gates(_) => script::run("gates", &[]),
        Task::Build { bin, example } => binaries::build_tested(&bin, &example).map(|()| Count::PASSED),
        Task::Syscalls(_) => script::run("syscalls", &[]),
    };
    let count = outcome.unwrap_or_else(|why| {
        println!("failed: {why}");
        Count::FAILED
    });
    println!("{count}");
    if count.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
