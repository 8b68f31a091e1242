//! `sinews serve`.

use std::error::Error;
use std::io::{self, Write};
use std::net::SocketAddr;

use sinews_server::{BackendChoice, BindError, EngineConfig, HttpConfig, Server, StopHandle};
use tracing_subscriber::EnvFilter;

use crate::args::{Backend, Deflate, ServeArgs};
use crate::routes::{self, Settings};

/// Serves until a signal stops it.
pub(crate) fn run(args: &ServeArgs) -> Result<(), Box<dyn Error>> {
    start_log(&args.log)?;
    let backend = match args.backend {
        Backend::Auto => BackendChoice::Auto,
        Backend::Poll => BackendChoice::Poll,
        Backend::Uring => BackendChoice::Uring,
    };
    let origin = args.origin_policy()?;
    let descriptors = raise_descriptor_limit();
    let settings = Settings { max_message: args.max_message, deflate: args.deflate, origin };
    let mut server = Server::new(routes::router(&settings))
        .http(HttpConfig::default().with_max_body(args.max_message))
        .engine(EngineConfig::default().backend(backend));
    if let Some(threads) = args.threads {
        server = server.threads(threads.get());
    }
    for address in &args.listen {
        server = server.listen(*address);
    }
    let threads = server.thread_count();
    let server = server.bind().map_err(explain)?;
    stop_on_signals(server.stop_handle())?;
    let table = table(server.addresses(), threads, server.backend(), args.deflate, descriptors);
    // Nobody may be reading.
    let _ = io::stdout().lock().write_all(table.as_bytes());
    server.run()?;
    tracing::info!("stopped");
    Ok(())
}

fn start_log(filter: &str) -> Result<(), String> {
    let filter: EnvFilter = filter.parse().map_err(|error| format!("--log {filter}: {error}"))?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_target(false);
    // Told where it cannot be told (`2>&1 | head`), it would panic, and take the thread along.
    log.log_internal_errors(false).init();
    Ok(())
}

/// A connection is a descriptor, and the usual soft limit of 1,024 is for programs that use select.
fn raise_descriptor_limit() -> Option<u64> {
    match rlimit::increase_nofile_limit(u64::MAX) {
        Ok(limit) => {
            if limit < DESCRIPTORS_MIN {
                tracing::warn!(
                    limit,
                    "few file descriptors, and each connection takes one: raise the hard limit (ulimit -Hn, \
                     LimitNOFILE= in a unit, --ulimit nofile= for a container)"
                );
            }
            Some(limit)
        }
        Err(error) => {
            tracing::warn!(%error, "cannot raise the limit of file descriptors (ulimit -n)");
            None
        }
    }
}

/// Below this a server of connections is likely not meant.
const DESCRIPTORS_MIN: u64 = 1_024;

/// Says what to do about it.
fn explain(error: BindError) -> String {
    if error.address().is_none() && error.io_error().kind() == io::ErrorKind::Unsupported {
        return format!("--backend uring: {}; or use auto or poll", error.io_error());
    }
    let hint = match error.io_error().kind() {
        io::ErrorKind::AddrInUse => "; choose another port with --listen, or stop what listens there",
        io::ErrorKind::PermissionDenied => "; ports below 1024 need rights, choose another with --listen",
        io::ErrorKind::AddrNotAvailable => "; this machine has no such address, see --listen",
        _ if error.io_error().raw_os_error() == Some(EMFILE) => {
            "; raise the limit of file descriptors (ulimit -n), or lower --threads"
        }
        _ => "",
    };
    format!("{error}{hint}")
}

/// "Too many open files" on every system that has the number at all.
const EMFILE: i32 = 24;

fn stop_on_signals(stop: StopHandle) -> io::Result<()> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])?;
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        let mut signals = signals.forever();
        if signals.next().is_some() {
            stop.stop();
            tracing::info!("stopping; a second signal stops at once");
        }
        if signals.next().is_some() {
            stop.stop_now();
        }
    })?;
    Ok(())
}

/// What is where.
fn table(
    addresses: &[SocketAddr],
    threads: usize,
    backend: BackendChoice,
    deflate: Deflate,
    descriptors: Option<u64>,
) -> String {
    let mut table = String::new();
    let backend = if backend == BackendChoice::Uring { "io_uring" } else { "readiness" };
    let deflate = match deflate {
        Deflate::Off => "off",
        Deflate::Shared => "shared",
        Deflate::Dedicated => "dedicated",
    };
    let plural = if threads == 1 { "" } else { "s" };
    let version = env!("CARGO_PKG_VERSION");
    let limit = descriptors.map_or_else(String::new, |limit| format!(" · {limit} descriptors"));
    table.push_str(&format!(
        "\n  sinews {version} · {threads} thread{plural} · {backend} · deflate {deflate}{limit}\n"
    ));
    for address in addresses {
        let host = reachable(*address);
        table.push_str(&format!(
            "\n  chat      http://{host}/\n  echo      ws://{host}/echo\n  topics    ws://{host}/topics/{{name}}\n  \
             publish   curl -d hello http://{host}/topics/lobby\n  health    http://{host}/healthz\n"
        ));
    }
    table.push_str("\n  Ctrl-C stops.\n\n");
    table
}

/// An address that a browser on this machine can open.
fn reachable(address: SocketAddr) -> String {
    if address.ip().is_unspecified() { format!("localhost:{}", address.port()) } else { address.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_says_where_everything_is() {
        let addresses = ["127.0.0.1:8080".parse().unwrap(), "[::]:9000".parse().unwrap()];
        let table = table(&addresses, 2, BackendChoice::Uring, Deflate::Shared, Some(20_000));
        for expected in [
            "http://127.0.0.1:8080/\n",
            "ws://localhost:9000/topics/{name}",
            "2 threads",
            "20000 descriptors",
        ] {
            assert!(table.contains(expected), "{expected} in {table}");
        }
    }
}
