//! Arguments of `sinews bench compare`.

use clap::Args;

use super::load::LoadArgs;

/// Measure several servers in alternation, and report differences above the noise.
///
/// Each round measures every server once, in rotating order, so that drift of the machine affects all servers alike.
/// Servers are compared with the first server.
#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    /// URLs of running servers, or `NAME=URL=COMMAND ARGUMENTS` to start a server: the shell starts the command for
    /// each round, and the command is killed after the round
    #[arg(value_name = "SERVER", required = true, num_args = 2..)]
    pub(crate) servers: Vec<String>,

    /// Rounds, each of which measures every server once. At least eight are needed to tell a difference with 99 %
    /// confidence
    #[arg(long, value_name = "N", default_value = "10", value_parser = clap::value_parser!(u32).range(3..=1000))]
    pub(crate) rounds: u32,

    /// Processors of the started servers, in taskset's format, such as 0 or 0,2
    #[arg(long, value_name = "LIST")]
    pub(crate) server_core: Option<String>,

    /// Processors of the load generator, in taskset's format, such as 1 or 1,3
    #[arg(long, value_name = "LIST")]
    pub(crate) load_core: Option<String>,

    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Show no progress
    #[arg(short, long)]
    pub(crate) quiet: bool,

    #[command(flatten)]
    pub(crate) load: LoadArgs,
}
