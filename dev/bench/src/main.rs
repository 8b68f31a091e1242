//! What an echoed message costs the server, measured over loopback.
//!
//! Three servers answer the same load in turns: a plain echo on mio written by hand, a plain echo on our
//! engine, and `sinews serve`. The figure is the server's CPU time per message, from the scheduler's own
//! books, and the ratios between the servers, taken within one round.
//!
//! ```text
//!            core 1                                     core 0
//!   ┌─────────────────────────┐  masked frames    ┌────────────────────┐
//!   │ load: one thread, polls │ ────────────────► │ one server, the    │  run time of its threads
//!   │ without sleeping        │ ◄──────────────── │ others sleep       │  ÷ messages = the figure
//!   └─────────────────────────┘  echoes           └────────────────────┘
//! ```
//!
//! The plain echoes are sent the same bytes, masked frames and all, and return them as they are; `sinews`
//! returns frames without mask. `docs/performance.md` has results and what they do not show.
#![forbid(unsafe_code)]

mod args;
mod client;
mod load;
mod plain_mio;
mod report;
mod round;
mod target;

use clap::Parser;

use crate::args::{Cli, Command};

type Error = Box<dyn std::error::Error>;

fn main() -> Result<(), Error> {
    let cli = Cli::parse();
    match cli.command {
        Some(Command::PlainMio { port }) => plain_mio::run(port),
        None => round::run(&cli.measure),
    }
}
