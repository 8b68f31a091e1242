//! Tasks of the repository: `cargo xtask test` runs every check, each other task runs one kind of check.
//!
//! Each task prints its steps and ends with `N passed, M failed` (and `K skipped` where an external tool may
//! be missing); the exit status is 0 when nothing failed.

#![forbid(unsafe_code)]

mod api;
mod backend;
mod binaries;
mod compare;
mod count;
mod features;
mod figures;
mod gates;
mod process;
mod quick;
mod rotation;
mod script;
mod server;
mod soak;
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
    /// All client behavior against the server, at once and for long, without leaks or wrong results
    Soak(soak::Options),
    /// Servers of other projects beside ours, measured in turns, with differences beyond noise
    Compare(compare::Options),
    /// The figures of the documents, measured at this commit and written into them
    Figures(figures::Options),
    /// Instructions of the server for each message, delivery and request: growth by more than 3 % fails
    #[command(disable_help_flag = true)]
    Instructions(script::Options),
    /// Programs or examples, compiled as for the tests: for the scripts of `dev/tasks`
    #[command(hide = true)]
    Build {
        #[arg(long, value_delimiter = ',')]
        bin: Vec<String>,
        #[arg(long, value_delimiter = ',')]
        example: Vec<String>,
    },
    /// System calls of the server for each message, where strace can count them
    Syscalls(soak::SyscallOptions),
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
        Task::Conformance(options) => script::run("conformance", &options),
        Task::Interop(options) => script::run("interop", &options),
        Task::Browser(options) => script::run("browser", &options),
        Task::Brokers(options) => script::run("brokers", &options),
        Task::Deploy(options) => script::run("deploy", &options),
        Task::Examples(options) => script::run("examples", &options),
        Task::Dist(options) => script::run("dist", &options),
        Task::Features(options) => script::features(&options),
        Task::Floors => script::floors(),
        Task::Api(options) => api::run(&options),
        Task::Soak(options) => soak::run(&options),
        Task::Compare(options) => compare::run(&options),
        Task::Figures(options) => figures::run(&options),
        Task::Instructions(options) => script::run("instructions", &options),
        Task::Build { bin, example } => server::build_tested(&bin, &example).map(|()| Count::PASSED),
        Task::Syscalls(options) => soak::syscalls(&options),
    };
    let count = outcome.unwrap_or_else(|why| {
        println!("failed: {why}");
        Count::FAILED
    });
    println!("{count}");
    if count.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
