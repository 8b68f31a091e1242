//! Command-line arguments. Other settings come from the environment, the configuration file or defaults
//! ([`crate::settings`]).

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
  sinews bench localhost:8080/echo         measure its performance";

/// Returns the command. Options of `serve` are also accepted without `serve`, but only `serve --help` lists them.
pub(crate) fn command() -> clap::Command {
    Cli::command().mut_args(|argument| argument.hide(true))
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve HTTP and WebSocket: topics, streams, and pages to try them.
    Serve(Box<ServeArgs>),
    /// Check a configuration file, or print a default one.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Measure a server's throughput, latency and cost under load.
    Bench(Box<BenchArgs>),
    /// Open a WebSocket from a terminal or a pipe, or inspect its frames.
    Connect(Box<ConnectArgs>),
    /// Write a shell completion script.
    Completions(CompletionsArgs),
    /// Write manual pages.
    Man(ManArgs),
    /// Check, repair or delete streams of a directory, or copy them to a broker.
    #[command(subcommand)]
    Streams(StreamsCommand),
    /// Make an access token, or inspect a token.
    Token(Box<TokenArgs>),
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check a configuration file and all files that it names, and report errors.
    Check {
        /// The file to check.
        file: PathBuf,
    },
    /// Print a configuration file with every key, its description and its default.
    Default,
}

#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ServeArgs {
    /// Configuration file in TOML. Command line and environment override it. `sinews config default` prints a default
    /// file. SIGHUP reloads the file. SIGUSR2 starts the installed program with all settings of the file and hands over
    /// to it, without refusing connections
    #[arg(long, value_name = "FILE", env = "SINEWS_CONFIG")]
    pub(crate) config: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) listen: ListenArgs,

    /// Threads, each with its own event loop; at most 64, or 4 per processor if that is more [default: one per
    /// processor]
    #[arg(long, value_name = "N", env = "SINEWS_THREADS")]
    pub(crate) threads: Option<NonZeroUsize>,

    /// I/O backend: `uring` is Linux's io_uring, `poll` is epoll or kqueue; `auto` uses io_uring if the system
    /// permits it, and logs the reason otherwise [default: auto]
    #[arg(long, value_enum, value_name = "NAME", env = "SINEWS_BACKEND")]
    pub(crate) backend: Option<Backend>,

    /// Maximum size of a message or request body, in bytes; `k`, `m` and `g` mean KiB, MiB and GiB [default: 16m]
    #[arg(long, value_name = "BYTES", env = "SINEWS_MAX_MESSAGE")]
    pub(crate) max_message: Option<Bytes>,

    /// Compression (permessage-deflate), if the client offers it: `shared` keeps no memory per connection between
    /// messages, `dedicated` keeps a context per connection and compresses better [default: shared]
    #[arg(long, value_enum, value_name = "MODE", env = "SINEWS_DEFLATE")]
    pub(crate) deflate: Option<Deflate>,

    /// Origins whose pages may connect and publish: `same` (pages of this server), `any`, or origins such as
    /// `https://example.com`; repeatable [default: same]
    #[arg(long, value_name = "ORIGIN", env = "SINEWS_ORIGIN", value_delimiter = ',')]
    pub(crate) origin: Option<Vec<String>>,

    /// Host names of this server, such as `ws.example.com` or `*.example.com`, or `any`; requests with another host
    /// are rejected with 421. Addresses, localhost and the hosts of --origin are always accepted. Repeatable
    /// [default: any name, but requests from this machine only with names of this machine]
    #[arg(long, value_name = "NAME", env = "SINEWS_HOSTS", value_delimiter = ',')]
    pub(crate) hosts: Option<Vec<String>>,

    /// Topics with a history, as a pattern and a number of messages: `chat.>=100`. Clients receive retained messages
    /// after a reconnect or on request; repeatable
    #[arg(long, value_name = "PATTERN=N", env = "SINEWS_HISTORY", value_delimiter = ',')]
    pub(crate) history: Option<Vec<Keep>>,

    /// Lowest level to log (error, warn, info, debug, trace, off), or a filter such as `sinews_engine=debug`; targets
    /// that the filter does not name are logged from info on [default: info]
    #[arg(long, value_name = "LEVEL", env = "SINEWS_LOG")]
    pub(crate) log: Option<String>,

    /// Log format: `text` is human-readable, `json` is one JSON object per line [default: text]
    #[arg(long, value_enum, value_name = "FORMAT", env = "SINEWS_LOG_FORMAT")]
    pub(crate) log_format: Option<LogFormat>,

    /// Log each response at level info: client, request and status [default: false]
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
#[command(next_help_heading = "Authorization")]
pub(crate) struct AuthArgs {
    /// Secret of HMAC tokens. Other users of this machine can read a command line: prefer `--auth-secret-file`
    #[arg(long, value_name = "SECRET", env = "SINEWS_AUTH_SECRET", hide_env_values = true)]
    pub(crate) auth_secret: Option<String>,

    /// File with the secret of HMAC tokens (HS256, HS384, HS512)
    #[arg(long, value_name = "FILE", env = "SINEWS_AUTH_SECRET_FILE")]
    pub(crate) auth_secret_file: Option<PathBuf>,

    /// File with a public key in PEM: RSA (RS*, PS*), EC (ES256, ES384) or Ed25519 (EdDSA)
    #[arg(long, value_name = "FILE", env = "SINEWS_AUTH_PUBLIC_KEY_FILE")]
    pub(crate) auth_public_key_file: Option<PathBuf>,

    /// File with a key set in JSON (JWKS)
    #[arg(long, value_name = "FILE", env = "SINEWS_AUTH_JWKS_FILE")]
    pub(crate) auth_jwks_file: Option<PathBuf>,

    /// Accepted audience of tokens (`aud`); repeatable
    #[arg(long, value_name = "NAME", env = "SINEWS_AUTH_AUDIENCE", value_delimiter = ',')]
    pub(crate) auth_audience: Option<Vec<String>>,

    /// Accepted issuer of tokens (`iss`); repeatable
    #[arg(long, value_name = "NAME", env = "SINEWS_AUTH_ISSUER", value_delimiter = ',')]
    pub(crate) auth_issuer: Option<Vec<String>>,

    /// Tolerated clock difference between issuer and server [default: 30s]
    #[arg(long, value_name = "TIME", env = "SINEWS_AUTH_LEEWAY")]
    pub(crate) auth_leeway: Option<Wait>,

    /// Topics that all clients may subscribe to without a token, as a pattern; repeatable
    #[arg(long, value_name = "PATTERN", env = "SINEWS_AUTH_PUBLIC_SUBSCRIBE", value_delimiter = ',')]
    pub(crate) auth_public_subscribe: Option<Vec<String>>,

    /// Topics that all clients may publish to without a token, as a pattern; repeatable
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
    fn command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn missing_subcommand_means_serve() {
        let bare = Cli::parse_from(["sinews", "--listen", "[::1]:9000"]);
        assert!(bare.command.is_none());
        assert_eq!(bare.serve.listen.listen, Some(vec!["[::1]:9000".parse().unwrap()]));
        let named = Cli::parse_from(["sinews", "serve", "--listen", "[::1]:9000"]);
        let Some(Command::Serve(named)) = named.command else { panic!("serve was named") };
        assert_eq!(named.listen.listen, bare.serve.listen.listen);
    }

    /// Names and defaults are duplicated between file and flags: they must agree.
    #[test]
    fn every_file_key_has_a_flag_and_a_variable() {
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
