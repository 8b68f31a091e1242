//! The command line. What it does not say, the configuration file or a default says ([`crate::settings`]).

mod connection;
mod listen;
mod server;
mod streams;
mod tls;

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use serde::Deserialize;
use sinews_bench::BenchArgs;

pub(crate) use self::connection::{HttpArgs, RejectBrowsers, Slow, WebSocketArgs};
pub(crate) use self::listen::{ListenArgs, ProxyHeader};
pub(crate) use self::server::{Full, LimitArgs, StopArgs};
pub(crate) use self::streams::{StoreArgs, StreamArgs};
pub(crate) use self::tls::TlsArgs;
use crate::config::units::{Bytes, Keep, Wait};
use crate::connect::ConnectArgs;
use crate::copy::StreamsCommand;
use crate::log::LogFormat;
use crate::manual::{CompletionsArgs, ManArgs};
use crate::token::TokenArgs;
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
  sinews connect localhost:8080/echo       talk to a WebSocket server
  sinews bench localhost:8080/echo         measure one";

/// The command line. The options of `serve` are taken without `serve` too; only its own help lists them.
pub(crate) fn command() -> clap::Command {
    Cli::command().mut_args(|argument| argument.hide(true))
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve HTTP and WebSocket: topics, streams, and pages to try them.
    Serve(Box<ServeArgs>),
    /// Check a configuration file, or print one to begin with.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Load a server and measure its throughput, latency and cost.
    Bench(Box<BenchArgs>),
    /// Open a WebSocket from a terminal or a pipe, or inspect the frames of one.
    Connect(Box<ConnectArgs>),
    /// Write a script that completes commands and options in a shell.
    Completions(CompletionsArgs),
    /// Write manual pages.
    Man(ManArgs),
    /// Check, repair or delete streams of a directory, or copy them to a broker.
    #[command(subcommand)]
    Streams(StreamsCommand),
    /// Make an access token, or inspect one.
    Token(Box<TokenArgs>),
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Read a file as `serve` would, with everything that it names, and say what is wrong.
    Check {
        /// The file to check.
        file: PathBuf,
    },
    /// Print a file with every key, what it means and what holds without it.
    Default,
}

#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ServeArgs {
    /// Configuration file in TOML; what is set here or in the environment goes before it. `sinews config
    /// default` prints one. SIGHUP reads it again; SIGUSR2 has a new process take over, with everything that is
    /// set and the program that is installed then, and nobody is refused
    #[arg(long, value_name = "FILE", env = "SINEWS_CONFIG")]
    pub(crate) config: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) listen: ListenArgs,

    /// Threads, each with its own event loop; at most 64, or 4 for each processor if that is more [default: one for
    /// each processor]
    #[arg(long, value_name = "N", env = "SINEWS_THREADS")]
    pub(crate) threads: Option<NonZeroUsize>,

    /// What drives the sockets: `uring` is Linux's io_uring, `poll` is epoll or kqueue; `auto` takes io_uring
    /// where the system permits it, and says why where it does not [default: auto]
    #[arg(long, value_enum, value_name = "NAME", env = "SINEWS_BACKEND")]
    pub(crate) backend: Option<Backend>,

    /// Largest message or request body, in bytes; `k`, `m` and `g` mean KiB, MiB and GiB [default: 16m]
    #[arg(long, value_name = "BYTES", env = "SINEWS_MAX_MESSAGE")]
    pub(crate) max_message: Option<Bytes>,

    /// Compression (permessage-deflate) where the client offers it: `shared` keeps no memory for a
    /// connection between messages, `dedicated` remembers earlier messages and compresses better [default:
    /// shared]
    #[arg(long, value_enum, value_name = "MODE", env = "SINEWS_DEFLATE")]
    pub(crate) deflate: Option<Deflate>,

    /// From which pages browsers may connect and publish: `same` (pages of this server), `any`, or
    /// origins such as `https://example.com`; may be given several times [default: same]
    #[arg(long, value_name = "ORIGIN", env = "SINEWS_ORIGIN", value_delimiter = ',')]
    pub(crate) origin: Option<Vec<String>>,

    /// Names by which this server is called, such as `ws.example.com` or `*.example.com`, or `any`; requests with
    /// another host are rejected with 421. Addresses, localhost and the hosts of --origin are accepted, too. May be
    /// given several times [default: any name, but from this machine only names of this machine]
    #[arg(long, value_name = "NAME", env = "SINEWS_HOSTS", value_delimiter = ',')]
    pub(crate) hosts: Option<Vec<String>>,

    /// Topics whose last messages are kept for those who come back, as a pattern and how many: `chat.>=100`;
    /// may be given several times
    #[arg(long, value_name = "PATTERN=N", env = "SINEWS_HISTORY", value_delimiter = ',')]
    pub(crate) history: Option<Vec<Keep>>,

    /// Least severe level to log (error, warn, info, debug, trace, off), or a filter such as `sinews_engine=debug`:
    /// targets that it does not name are logged from info on [default: info]
    #[arg(long, value_name = "LEVEL", env = "SINEWS_LOG")]
    pub(crate) log: Option<String>,

    /// Format of the log: `text` is a line for a person, `json` is a JSON object in a line [default: text]
    #[arg(long, value_enum, value_name = "FORMAT", env = "SINEWS_LOG_FORMAT")]
    pub(crate) log_format: Option<LogFormat>,

    /// Log each answer, at level info: who asked for what, and what came of it [default: false]
    #[arg(
        long,
        value_name = "BOOL",
        env = "SINEWS_ACCESS_LOG",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    pub(crate) access_log: Option<bool>,

    #[command(flatten)]
    pub(crate) auth: AuthArgs,

    #[command(flatten)]
    pub(crate) streams: StreamArgs,

    #[command(flatten)]
    pub(crate) limits: LimitArgs,

    #[command(flatten)]
    pub(crate) stop: StopArgs,

    #[command(flatten)]
    pub(crate) tls: TlsArgs,

    #[command(flatten)]
    pub(crate) http: HttpArgs,

    #[command(flatten)]
    pub(crate) websocket: WebSocketArgs,
}

/// `[auth]` of the configuration file.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Who may publish and subscribe")]
pub(crate) struct AuthArgs {
    /// The key of HMAC tokens. Others on this machine can read a command line: `--auth-secret-file` is better
    #[arg(long, value_name = "SECRET", env = "SINEWS_AUTH_SECRET", hide_env_values = true)]
    pub(crate) auth_secret: Option<String>,

    /// File with the key of HMAC tokens (HS256, HS384, HS512)
    #[arg(long, value_name = "FILE", env = "SINEWS_AUTH_SECRET_FILE")]
    pub(crate) auth_secret_file: Option<PathBuf>,

    /// File with a public key in PEM, RSA or EC (RS*, PS*, ES*)
    #[arg(long, value_name = "FILE", env = "SINEWS_AUTH_PUBLIC_KEY_FILE")]
    pub(crate) auth_public_key_file: Option<PathBuf>,

    /// File with a set of keys in JSON (JWKS)
    #[arg(long, value_name = "FILE", env = "SINEWS_AUTH_JWKS_FILE")]
    pub(crate) auth_jwks_file: Option<PathBuf>,

    /// Whom tokens must be meant for (`aud`); may be given several times
    #[arg(long, value_name = "NAME", env = "SINEWS_AUTH_AUDIENCE", value_delimiter = ',')]
    pub(crate) auth_audience: Option<Vec<String>>,

    /// Whom tokens must come from (`iss`); may be given several times
    #[arg(long, value_name = "NAME", env = "SINEWS_AUTH_ISSUER", value_delimiter = ',')]
    pub(crate) auth_issuer: Option<Vec<String>>,

    /// How far the clocks of issuer and server may be apart [default: 30s]
    #[arg(long, value_name = "TIME", env = "SINEWS_AUTH_LEEWAY")]
    pub(crate) auth_leeway: Option<Wait>,

    /// Topics that anybody may subscribe to, as a pattern; may be given several times
    #[arg(long, value_name = "PATTERN", env = "SINEWS_AUTH_PUBLIC_SUBSCRIBE", value_delimiter = ',')]
    pub(crate) auth_public_subscribe: Option<Vec<String>>,

    /// Topics that anybody may publish to, as a pattern; may be given several times
    #[arg(long, value_name = "PATTERN", env = "SINEWS_AUTH_PUBLIC_PUBLISH", value_delimiter = ',')]
    pub(crate) auth_public_publish: Option<Vec<String>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Backend {
    Auto,
    Poll,
    Uring,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Deflate {
    Off,
    Shared,
    Dedicated,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::keys;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn serve_is_what_no_subcommand_means() {
        let bare = Cli::parse_from(["sinews", "--listen", "[::1]:9000"]);
        assert!(bare.command.is_none());
        assert_eq!(bare.serve.listen.listen, Some(vec!["[::1]:9000".parse().unwrap()]));
        let named = Cli::parse_from(["sinews", "serve", "--listen", "[::1]:9000"]);
        let Some(Command::Serve(named)) = named.command else { panic!("serve was named") };
        assert_eq!(named.listen.listen, bare.serve.listen.listen);
    }

    /// Names and defaults are written in several places: they must agree.
    #[test]
    fn every_key_of_the_file_has_its_flag_and_its_variable() {
        let command = Cli::command();
        let serve = command.find_subcommand("serve").unwrap();
        for key in keys::KEYS {
            let id = key.name.replace('.', "_");
            let found = serve.get_arguments().find(|argument| argument.get_id() == id.as_str());
            let argument = found.unwrap_or_else(|| panic!("no flag for {}", key.name));
            assert_eq!(argument.get_long(), Some(&*id.replace('_', "-")));
            assert_eq!(argument.get_env().unwrap(), &*format!("SINEWS_{}", id.to_uppercase()));
            let help = argument.get_help().unwrap().to_string();
            if let Some(default) = key.default.filter(|default| *default != "[]") {
                let plain = default.trim_matches(['[', ']', '"']);
                assert!(help.ends_with(&format!("[default: {plain}]")), "{}: {help}", key.name);
            }
        }
        let flags = serve.get_arguments().filter(|argument| argument.get_id() != "config").count();
        assert_eq!(flags, keys::KEYS.len(), "a flag without a key in the file");
    }
}
