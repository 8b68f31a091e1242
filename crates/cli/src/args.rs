//! Command-line arguments. The options for `serve` follow from the settings schema ([`crate::settings`]).

use std::path::PathBuf;

use clap::{CommandFactory, Parser, Subcommand};
#[cfg(feature = "bench")]
use sinews_bench::BenchArgs;

#[cfg(not(feature = "bench"))]
use crate::absent::AbsentArgs as BenchArgs;
#[cfg(not(feature = "connect"))]
use crate::absent::{AbsentArgs as ConnectArgs, AbsentArgs as PubArgs, AbsentArgs as SubArgs};
use crate::app::AppCommand;
#[cfg(feature = "connect")]
use crate::connect::ConnectArgs;
use crate::copy::StreamsCommand;
use crate::health::HealthArgs;
use crate::init::InitArgs;
use crate::manual::{CompletionsArgs, ManArgs};
use crate::nodes::NodesArgs;
use crate::settings::ServeArgs;
use crate::token::TokenArgs;
#[cfg(feature = "connect")]
use crate::topic::{PubArgs, SubArgs};
use crate::version;

/// A real-time server: HTTP and WebSocket, topics, durable streams.
#[derive(Debug, Parser)]
#[command(name = "sinews", version = version::SHORT, args_conflicts_with_subcommands = true)]
#[command(override_usage = USAGE, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,

    #[command(flatten)]
    pub(crate) serve: ServeArgs,
}

const USAGE: &str = "sinews [OPTIONS OF SERVE]\n       sinews <COMMAND>";

const EXAMPLES: &str = "Without a command, sinews serves; `sinews serve --help` lists the options.

Examples:
  sinews                                   serve at http://127.0.0.1:8080/
  sinews --listen :8080 --streams ./data   serve on every address, with durable streams
  sinews init                              write a configuration with tokens, and a first token
  sinews sub 'chat.>'                      print the messages of topics
  sinews pub chat.room hello              publish a message
  sinews connect localhost:8080/echo       talk to a WebSocket server
  sinews bench localhost:8080/echo         measure its performance";

/// Returns the command. The options for `serve` are also accepted without it, but only `serve --help` lists them.
pub(crate) fn command() -> clap::Command {
    Cli::command().mut_args(|argument| argument.hide(true))
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve HTTP and WebSocket: topics, streams, and pages to try them.
    Serve(Box<ServeArgs>),
    /// Make an app of the Pusher protocol.
    #[command(subcommand)]
    App(AppCommand),
    /// Check a configuration file, or print a default one.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Measure a server's throughput, latency and cost under load.
    #[cfg_attr(
        not(feature = "bench"),
        command(about = "Not in this program: needs the Cargo feature bench.")
    )]
    Bench(Box<BenchArgs>),
    /// Open a WebSocket from a terminal or a pipe, or inspect its frames.
    #[cfg_attr(
        not(feature = "connect"),
        command(about = "Not in this program: needs the Cargo feature connect.")
    )]
    Connect(Box<ConnectArgs>),
    /// Write a shell completion script.
    Completions(CompletionsArgs),
    /// Ask a server whether it serves: for container images and scripts.
    Health(HealthArgs),
    /// Write a configuration file, secrets and a first token for a new server.
    Init(InitArgs),
    /// Write manual pages.
    Man(ManArgs),
    /// List the living nodes of a cluster.
    Nodes(NodesArgs),
    /// Publish a message, or each line of the input, to a topic.
    #[cfg_attr(
        not(feature = "connect"),
        command(about = "Not in this program: needs the Cargo feature connect.")
    )]
    Pub(Box<PubArgs>),
    /// Check, repair or delete streams of a directory, or copy them to a broker.
    #[command(subcommand)]
    Streams(StreamsCommand),
    /// Print the messages of topics and patterns.
    #[cfg_attr(
        not(feature = "connect"),
        command(about = "Not in this program: needs the Cargo feature connect.")
    )]
    Sub(Box<SubArgs>),
    /// Make an access token, or inspect a token.
    Token(Box<TokenArgs>),
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check configuration files and all files that they name, each for itself, and report errors.
    Check {
        /// The files to check.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Print a configuration file with every key, its description and its default.
    Default,
}

#[cfg(test)]
mod tests {
    use clap::Arg;

    use super::*;
    use crate::config::{flags, key};
    use crate::settings::{ServeSettings, TABLES};

    #[test]
    fn command_line_is_consistent() {
        command().debug_assert();
    }

    #[cfg(not(feature = "bench"))]
    #[test]
    fn absent_commands_take_any_arguments_and_their_help_names_the_feature() {
        let cli = Cli::parse_from(["sinews", "bench", "ws://localhost/", "--connections", "7", "-s", "1"]);
        assert!(matches!(cli.command, Some(Command::Bench(_))));
        let help = command().render_help().to_string();
        assert!(help.contains("needs the Cargo feature bench"), "{help}");
        assert!(help.contains("needs the Cargo feature connect"), "{help}");
        let error = crate::absent::error("bench");
        assert!(error.contains("`sinews bench`") && error.contains("feature bench"), "{error}");
    }

    #[test]
    fn missing_subcommand_means_serve() {
        let bare = Cli::parse_from(["sinews", "--listen", "[::1]:9000"]);
        assert!(bare.command.is_none());
        assert!(listens(&bare.serve));
        let named = Cli::parse_from(["sinews", "serve", "--listen", "[::1]:9000"]);
        let Some(Command::Serve(named)) = named.command else { panic!("serve was named") };
        assert!(listens(&named));
    }

    fn listens(args: &ServeArgs) -> bool {
        let settings = ServeSettings::load(args).unwrap();
        settings.listen.addresses().eq(["[::1]:9000".parse().unwrap()])
    }

    #[test]
    fn every_key_has_a_flag_and_a_variable() {
        let command = Cli::command();
        let serve = command.find_subcommand("serve").unwrap();
        for key in key::keys(TABLES) {
            let found = serve.get_arguments().find(|argument| argument.get_id() == key.id().as_str());
            let argument = found.unwrap_or_else(|| panic!("no flag for {}", key.name));
            assert_eq!(argument.get_long(), Some(&*key.name.replace(['.', '_'], "-")));
            assert_eq!(argument.get_env().unwrap(), &*key.variable());
            let help = argument.get_help().unwrap().to_string();
            assert!(
                key.default.is_empty() || help.ends_with(&format!("[default: {}]", key.default)),
                "{help}"
            );
        }
        let flags = serve.get_arguments().filter(|argument| argument.get_id() != "config").count();
        assert_eq!(flags, key::keys(TABLES).count(), "a flag without a key in the file");
    }

    #[test]
    fn copy_describes_the_broker_as_its_target() {
        let command = Cli::command();
        let copy = command.find_subcommand("streams").unwrap().find_subcommand("copy").unwrap();
        let help = copy.clone().render_long_help().to_string();
        assert!(help.contains("Broker to copy to: ") && !help.contains("holds a copy"), "{help}");
    }

    #[test]
    fn value_behind_a_switch_is_explained() {
        let error = |arguments: &[&str]| {
            let mut command = command();
            let error = command.clone().try_get_matches_from(arguments).unwrap_err();
            flags::explain(error, &mut command, arguments.iter().map(Into::into)).to_string()
        };
        let serve = Cli::command();
        let serve = serve.find_subcommand("serve").unwrap();
        for key in key::keys(TABLES).filter(|key| key.kind.form == crate::config::value::Form::Bool) {
            let argument =
                serve.get_arguments().find(|argument| argument.get_id() == key.id().as_str()).unwrap();
            for name in argument.get_long_and_visible_aliases().unwrap() {
                let flag = format!("--{name}");
                for arguments in [&["sinews", "serve", &flag, "true"][..], &["sinews", &flag, "false"]] {
                    let text = error(arguments);
                    let expected = format!("write {flag}=true or {flag}=false");
                    assert!(text.contains(&expected), "{text}");
                }
            }
        }
        assert!(error(&["sinews", "serve", "true"]).contains("unexpected argument 'true'"));
    }

    #[test]
    fn error_about_a_variable_names_the_variable() {
        let error = || {
            let arg = Arg::new("n").long("n").env("N").value_name("N").value_parser(clap::value_parser!(u8));
            let command = clap::Command::new("a").arg(arg);
            let error = command.clone().try_get_matches_from(["a", "--n=x"]).unwrap_err();
            (command, error)
        };
        let named = |arguments: &[&str]| {
            let (mut command, error) = error();
            flags::explain(error, &mut command, arguments.iter().map(Into::into)).to_string()
        };
        assert!(named(&["a"]).contains("invalid value 'x' for 'N'"), "{}", named(&["a"]));
        assert!(named(&["a", "--n=x"]).contains("invalid value 'x' for '--n <N>'"));
    }
}
