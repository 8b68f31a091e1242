//! Arguments of `sinews bench compare`.

use clap::{Args, FromArgMatches};

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

    /// Load options of one server as `NAME=OPTIONS`, such as `one=--http2 -c 1`; repeatable. They replace the load options of the
    /// command line, except the durations
    #[arg(long, value_name = "NAME=OPTIONS")]
    pub(crate) options: Vec<String>,

    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Show no progress
    #[arg(short, long)]
    pub(crate) quiet: bool,

    #[command(flatten)]
    pub(crate) load: LoadArgs,
}

impl CompareArgs {
    /// The load on a server.
    ///
    /// # Errors
    ///
    /// Returns an error if its own options are wrong.
    pub(crate) fn load_on(&self, server: &str) -> Result<LoadArgs, String> {
        let own = self.options.iter().filter_map(|text| text.split_once('='));
        let Some((_, options)) = own.into_iter().find(|(name, _)| *name == server) else {
            return Ok(self.load.clone());
        };
        let command = LoadArgs::augment_args(clap::Command::new("--options").no_binary_name(true));
        let matches = command.try_get_matches_from(options.split_whitespace());
        let own = matches.and_then(|matches| LoadArgs::from_arg_matches(&matches));
        let mut own = own.map_err(|error| format!("--options {server}: {error}"))?;
        (own.amount.duration, own.amount.warm_up) = (self.load.amount.duration, self.load.amount.warm_up);
        Ok(own)
    }

    /// Rejects options of servers that are not compared.
    pub(crate) fn check_options<'n>(&self, names: impl Iterator<Item = &'n str>) -> Result<(), String> {
        let known: Vec<&str> = names.collect();
        let unknown =
            self.options.iter().find(|text| !known.iter().any(|name| text.starts_with(&format!("{name}="))));
        match unknown {
            Some(text) => Err(format!(
                "--options {text}: expected NAME=OPTIONS with the name of a server ({})",
                known.join(", ")
            )),
            None => Ok(()),
        }
    }
}
