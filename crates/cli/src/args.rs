//! The command line.

use std::net::SocketAddr;
use std::num::NonZeroUsize;

use clap::{Args, Parser, Subcommand, ValueEnum};
use sinews_server::OriginPolicy;

/// A real-time server: HTTP and WebSocket, topics, a chat page.
///
/// Without a subcommand it serves.
#[derive(Debug, Parser)]
#[command(name = "sinews", version, args_conflicts_with_subcommands = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,

    #[command(flatten)]
    pub(crate) serve: ServeArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve the chat page, echo and topics.
    Serve(ServeArgs),
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ServeArgs {
    /// Address to listen on; may be given several times. Port 0 takes a free one.
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "SINEWS_LISTEN",
        value_delimiter = ',',
        default_value = "127.0.0.1:8080"
    )]
    pub(crate) listen: Vec<SocketAddr>,

    /// Threads, each with its own event loop [default: one for each processor]
    #[arg(long, value_name = "N", env = "SINEWS_THREADS")]
    pub(crate) threads: Option<NonZeroUsize>,

    /// What drives the sockets: `uring` is Linux's io_uring, `poll` is epoll or kqueue; `auto` takes io_uring
    /// where the system permits it, and says why where it does not
    #[arg(long, value_enum, value_name = "NAME", env = "SINEWS_BACKEND", default_value = "auto")]
    pub(crate) backend: Backend,

    /// Largest message or request body, in bytes; `k` and `m` mean KiB and MiB
    #[arg(long, value_name = "BYTES", env = "SINEWS_MAX_MESSAGE", default_value = "16m", value_parser = bytes)]
    pub(crate) max_message: usize,

    /// Compression (permessage-deflate) where the client offers it: `shared` keeps no memory for a
    /// connection between messages, `dedicated` remembers earlier messages and compresses better
    #[arg(long, value_enum, value_name = "MODE", env = "SINEWS_DEFLATE", default_value = "shared")]
    pub(crate) deflate: Deflate,

    /// From which pages browsers may connect and publish: `same` (pages of this server), `any`, or
    /// origins such as `https://example.com`; may be given several times
    #[arg(long, value_name = "ORIGIN", env = "SINEWS_ORIGIN", value_delimiter = ',', default_value = "same")]
    pub(crate) origin: Vec<String>,

    /// What is logged: error, warn, info, debug, trace, or a filter such as `sinews_engine=debug`
    #[arg(long, value_name = "LEVEL", env = "SINEWS_LOG", default_value = "info")]
    pub(crate) log: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Backend {
    Auto,
    Poll,
    Uring,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Deflate {
    Off,
    Shared,
    Dedicated,
}

impl ServeArgs {
    /// What `--origin` allows.
    pub(crate) fn origin_policy(&self) -> Result<OriginPolicy, String> {
        match &self.origin[..] {
            [one] if one == "same" => Ok(OriginPolicy::same_origin()),
            [one] if one == "any" => Ok(OriginPolicy::any()),
            list => OriginPolicy::list(list.iter().cloned())
                .map_err(|error| format!("--origin {}: {error}", list.join(","))),
        }
    }
}

/// A number of bytes, `k` and `m` for KiB and MiB.
fn bytes(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 1 << 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    let number: usize = digits.parse().map_err(|_| "expected a number of bytes such as 65536, 64k or 16m")?;
    match number.checked_mul(unit) {
        Some(0) | None => Err("must be at least 1 byte and fit this machine".to_owned()),
        Some(bytes) => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn serve_is_what_no_subcommand_means() {
        let bare = Cli::parse_from(["sinews", "--listen", "[::1]:9000"]);
        assert!(bare.command.is_none());
        assert_eq!(bare.serve.listen, ["[::1]:9000".parse().unwrap()]);
        let named = Cli::parse_from(["sinews", "serve", "--listen", "[::1]:9000"]);
        let Some(Command::Serve(named)) = named.command else { panic!("serve was named") };
        assert_eq!(named.listen, bare.serve.listen);
    }

    #[test]
    fn byte_counts_are_read_with_units() {
        assert_eq!(bytes("65536"), Ok(65_536));
        assert_eq!(bytes("64k"), Ok(65_536));
        assert_eq!(bytes("16M"), Ok(16 << 20));
        for bad in ["", "k", "0", "-1", "1g", "99999999999999999999m", "1.5m"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn origins_are_checked_when_the_program_starts() {
        let with = |origin: &str| Cli::parse_from(["sinews", "--origin", origin]).serve.origin_policy();
        assert!(with("same").is_ok() && with("any").is_ok() && with("https://example.com").is_ok());
        assert!(
            with("https://example.com/path").unwrap_err().starts_with("--origin https://example.com/path")
        );
    }
}
