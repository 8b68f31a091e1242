//! The measured targets, and their programs.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::ValueEnum;

use crate::Error;
use crate::args::ProgramArgs;
use crate::process::{SERVER_CORE, Server};
use crate::programs::Program;

/// A measured target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Target {
    /// This program's `plain-mio`
    PlainMio,
    /// This program's `plain-ring`
    PlainRing,
    /// The engine's `tcp_echo` example on readiness
    TcpEchoPoll,
    /// The engine's `tcp_echo` example on io_uring
    TcpEchoRing,
    /// `sinews serve --backend poll` on one thread
    SinewsPoll,
    /// `sinews serve --backend uring` on one thread
    SinewsRing,
    /// On Tokio
    TokioTungstenite,
    /// On Tokio with `feed`, and one flush for messages that arrived together
    TokioTungsteniteFeed,
    /// On Tokio with `feed` and a read buffer of 4 KiB
    #[value(name = "tokio-tungstenite-feed-4k")]
    TokioTungsteniteFeed4k,
    /// On Tokio and hyper
    Fastwebsockets,
    /// With a write buffer that is flushed when no further message has arrived
    FastwebsocketsBuffered,
    /// On Tokio
    TokioWebsockets,
    /// On Tokio with `feed`, and one flush for messages that arrived together
    TokioWebsocketsFeed,
    /// sockudo-ws on Tokio
    Sockudo,
    /// sockudo-ws on Tokio with `feed`
    SockudoFeed,
    /// sockudo-ws on compio
    SockudoCompio,
    /// sockudo-ws on compio, with the best flags for its ring
    SockudoCompioTuned,
    /// On compio
    CompioWs,
    /// With `feed`, one flush for messages that arrived together, and the best flags for its ring
    CompioWsFeed,
    /// With `feed`, the best flags for its ring, and a read buffer of 4 KiB
    #[value(name = "compio-ws-feed-4k")]
    CompioWsFeed4k,
    /// tungstenite over the library's `SyncBridge`, on compio
    TungsteniteBridge,
    /// On Tokio, hyper and tungstenite
    Axum,
    /// With `feed`, and one flush for messages that arrived together
    AxumFeed,
    /// With `feed` and a read buffer of 4 KiB
    #[value(name = "axum-feed-4k")]
    AxumFeed4k,
    /// HTTP only, on Tokio
    Hyper,
    /// The library on Tokio, on one thread
    SinewsTokio,
    /// The library on Tokio, on two threads
    SinewsTokioMulti,
    /// The library on axum
    SinewsAxum,
    /// The library on compio, on io_uring
    SinewsCompio,
    /// The plain echo on compio, on io_uring
    PlainCompio,
}

impl Target {
    pub(crate) const OURS: [Self; 6] = [
        Self::PlainMio,
        Self::PlainRing,
        Self::TcpEchoPoll,
        Self::TcpEchoRing,
        Self::SinewsPoll,
        Self::SinewsRing,
    ];

    pub(crate) const SINEWS: [Self; 2] = [Self::SinewsPoll, Self::SinewsRing];

    /// The library, and the plain echo on compio: measured by name or with `--library`.
    pub(crate) const LIBRARY: [Self; 5] =
        [Self::SinewsTokio, Self::SinewsTokioMulti, Self::SinewsAxum, Self::SinewsCompio, Self::PlainCompio];

    /// Other WebSocket libraries in their simplest form.
    pub(crate) const PEERS: [Self; 8] = [
        Self::TokioTungstenite,
        Self::Fastwebsockets,
        Self::TokioWebsockets,
        Self::Sockudo,
        Self::SockudoCompio,
        Self::CompioWs,
        Self::TungsteniteBridge,
        Self::Axum,
    ];

    /// The same libraries in forms that are faster for some loads.
    pub(crate) const FASTEST: [Self; 10] = [
        Self::TokioTungsteniteFeed,
        Self::TokioTungsteniteFeed4k,
        Self::FastwebsocketsBuffered,
        Self::TokioWebsocketsFeed,
        Self::SockudoFeed,
        Self::SockudoCompioTuned,
        Self::CompioWsFeed,
        Self::CompioWsFeed4k,
        Self::AxumFeed,
        Self::AxumFeed4k,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::PlainMio => "TCP on mio",
            Self::PlainRing => "TCP on io_uring",
            Self::TcpEchoPoll => "TCP on the engine, poll",
            Self::TcpEchoRing => "TCP on the engine, ring",
            Self::SinewsPoll => "sinews, poll",
            Self::SinewsRing => "sinews, ring",
            Self::TokioTungstenite => "tokio-tungstenite",
            Self::TokioTungsteniteFeed => "tokio-tungstenite, feed",
            Self::TokioTungsteniteFeed4k => "tokio-tungstenite, feed, 4 KiB",
            Self::Fastwebsockets => "fastwebsockets",
            Self::FastwebsocketsBuffered => "fastwebsockets, buffered",
            Self::TokioWebsockets => "tokio-websockets",
            Self::TokioWebsocketsFeed => "tokio-websockets, feed",
            Self::Sockudo => "sockudo-ws, Tokio",
            Self::SockudoFeed => "sockudo-ws, Tokio, feed",
            Self::SockudoCompio => "sockudo-ws, compio",
            Self::SockudoCompioTuned => "sockudo-ws, compio, tuned",
            Self::CompioWs => "compio-ws",
            Self::CompioWsFeed => "compio-ws, feed",
            Self::CompioWsFeed4k => "compio-ws, feed, 4 KiB",
            Self::TungsteniteBridge => "tungstenite, SyncBridge",
            Self::Axum => "axum",
            Self::AxumFeed => "axum, feed",
            Self::AxumFeed4k => "axum, feed, 4 KiB",
            Self::Hyper => "hyper",
            Self::SinewsTokio => "sinews, Tokio",
            Self::SinewsTokioMulti => "sinews, Tokio, threads",
            Self::SinewsAxum => "sinews, axum",
            Self::SinewsCompio => "sinews, compio",
            Self::PlainCompio => "TCP on compio",
        }
    }

    pub(crate) const fn speaks_websocket(self) -> bool {
        !matches!(
            self,
            Self::PlainMio
                | Self::PlainRing
                | Self::PlainCompio
                | Self::TcpEchoPoll
                | Self::TcpEchoRing
                | Self::Hyper
        )
    }

    pub(crate) const fn is_sinews(self) -> bool {
        matches!(self, Self::SinewsPoll | Self::SinewsRing)
    }

    /// Whether `sinews-library` serves it.
    pub(crate) const fn is_library(self) -> bool {
        matches!(
            self,
            Self::SinewsTokio
                | Self::SinewsTokioMulti
                | Self::SinewsAxum
                | Self::SinewsCompio
                | Self::PlainCompio
        )
    }

    /// Whether the target is a library of another project.
    pub(crate) const fn is_peer(self) -> bool {
        self.speaks_websocket() && !self.is_sinews() && !self.is_library() || matches!(self, Self::Hyper)
    }

    /// Whether its program takes `--threads`.
    const fn has_threads(self) -> bool {
        matches!(
            self,
            Self::TokioTungstenite
                | Self::TokioTungsteniteFeed
                | Self::TokioTungsteniteFeed4k
                | Self::Fastwebsockets
                | Self::FastwebsocketsBuffered
                | Self::TokioWebsockets
                | Self::TokioWebsocketsFeed
                | Self::Sockudo
                | Self::SockudoFeed
                | Self::Axum
                | Self::AxumFeed
                | Self::AxumFeed4k
                | Self::Hyper
                | Self::SinewsAxum
        )
    }

    /// Returns the name, and the number of threads where it is configurable.
    pub(crate) fn full_name(self, threads: Threads) -> String {
        match threads {
            Threads::Multi if self.has_threads() => format!("{}, threads", self.name()),
            _ => self.name().to_owned(),
        }
    }

    /// Whether the target needs io_uring, which a kernel or a container may deny.
    pub(crate) const fn needs_ring(self) -> bool {
        matches!(
            self,
            Self::PlainRing | Self::PlainCompio | Self::TcpEchoRing | Self::SinewsRing | Self::SinewsCompio
        )
    }
}

/// Returns the servers with their names.
pub(crate) fn named(servers: &[(Target, Server)]) -> Vec<(String, &Server)> {
    servers.iter().map(|(target, server)| (target.name().to_owned(), server)).collect()
}

/// Options of a server start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServeOptions {
    /// Number of threads of `sinews serve`.
    pub(crate) threads: usize,
    /// Compression of `sinews serve`.
    pub(crate) deflate: Deflate,
    /// Overflow policy of `sinews serve` for slow subscribers.
    pub(crate) overflow: &'static str,
    /// Ping interval of `sinews serve` on idle connections.
    pub(crate) ping_interval: &'static str,
    /// Tokio's runtime, where it is configurable.
    pub(crate) runtime: Threads,
    /// In the format of `taskset --cpu-list`.
    pub(crate) cores: &'static str,
}

impl Default for ServeOptions {
    fn default() -> Self {
        let (deflate, runtime) = (Deflate::Off, Threads::One);
        let (overflow, ping_interval) = ("close", "25s");
        Self { threads: 1, deflate, overflow, ping_interval, runtime, cores: SERVER_CORE }
    }
}

/// `--threads` of `sinews-peers`, and of `sinews-library` on axum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Threads {
    /// One thread
    One,
    /// Tokio's multi-threaded runtime, with two threads
    Multi,
}

/// `--deflate` of `sinews serve`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Deflate {
    Off,
    Shared,
    Dedicated,
}

impl Deflate {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Shared => "shared",
            Self::Dedicated => "dedicated",
        }
    }
}

/// Paths of the programs.
#[derive(Debug)]
pub(crate) struct Programs {
    sinews: PathBuf,
    tcp_echo: PathBuf,
    peers: PathBuf,
    library: PathBuf,
    this: PathBuf,
}

impl Programs {
    /// Builds the missing programs of the targets, optimized, into the target directory of this program:
    /// paths in the arguments take precedence.
    pub(crate) fn build(args: &ProgramArgs, targets: &[Target]) -> Result<Self, Error> {
        let needs = |of: fn(Target) -> bool| targets.iter().any(|target| of(*target));
        let echoes = |target| matches!(target, Target::TcpEchoPoll | Target::TcpEchoRing);
        Ok(Self {
            sinews: Program::SINEWS.path(args.sinews.as_ref(), needs(Target::is_sinews))?,
            tcp_echo: Program::TCP_ECHO.path(args.tcp_echo.as_ref(), needs(echoes))?,
            peers: Program::PEERS.path(args.sinews_peers.as_ref(), needs(Target::is_peer))?,
            library: Program::LIBRARY.path(args.sinews_library.as_ref(), needs(Target::is_library))?,
            this: env::current_exe()?,
        })
    }

    /// Returns the targets that can start. If io_uring is not available, prints the reason and leaves out the
    /// targets that need it.
    pub(crate) fn startable(&self, targets: &[Target]) -> Result<Vec<Target>, Error> {
        let mut startable = Vec::with_capacity(targets.len());
        for target in targets {
            match self.start(*target, &ServeOptions::default()) {
                Ok(_) => startable.push(*target),
                Err(error) if target.needs_ring() => println!("{} is left out: {error}", target.name()),
                Err(error) => return Err(error),
            }
        }
        Ok(startable)
    }

    pub(crate) fn start(&self, target: Target, options: &ServeOptions) -> Result<Server, Error> {
        let (program, arguments) = self.command(target, options);
        Server::start(program, &arguments, options.cores)
    }

    /// Starts all targets on the server core.
    pub(crate) fn start_all(
        &self,
        targets: &[Target],
        options: &ServeOptions,
    ) -> Result<Vec<(Target, Server)>, Error> {
        let start = |target: &Target| Ok((*target, self.start(*target, options)?));
        targets.iter().map(start).collect()
    }

    fn command(&self, target: Target, options: &ServeOptions) -> (&Path, Vec<OsString>) {
        let threads = options.threads.to_string();
        let serve = |backend| {
            let fixed = ["serve", "--listen", "127.0.0.1:0", "--log", "error", "--backend", backend];
            let chosen = ["--threads", &*threads, "--deflate", options.deflate.name()];
            let chosen = chosen.into_iter().chain(["--websocket-overflow", options.overflow]);
            let chosen = chosen.chain(["--websocket-ping-interval", options.ping_interval]);
            fixed.into_iter().chain(chosen).map(OsString::from).collect()
        };
        let plain = |arguments: &[&str]| arguments.iter().map(OsString::from).collect();
        match target {
            Target::PlainMio => (&self.this, plain(&["plain-mio"])),
            Target::PlainRing => (&self.this, plain(&["plain-ring"])),
            Target::TcpEchoPoll => (&self.tcp_echo, plain(&["0", "poll"])),
            Target::TcpEchoRing => (&self.tcp_echo, plain(&["0", "uring"])),
            Target::SinewsPoll => (&self.sinews, serve("poll")),
            Target::SinewsRing => (&self.sinews, serve("uring")),
            other => {
                let name = other.to_possible_value().expect("no target is left out of the command line");
                let program = if other.is_library() { &self.library } else { &self.peers };
                let mut arguments = vec![name.get_name()];
                if other.has_threads() && options.runtime == Threads::Multi {
                    arguments.extend(["--threads", "multi"]);
                }
                (program, plain(&arguments))
            }
        }
    }
}
