//! Notifications for the service manager.

use std::ffi::OsStr;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;
use std::{env, fmt, io, thread};

use rustix::time::{ClockId, clock_gettime};

/// Environment variable with the address of the service manager's socket.
const MANAGER: &str = "NOTIFY_SOCKET";

/// Maximum notifications that wait for the service manager; a process sends a few.
const QUEUE_MAX: usize = 16;

/// Maximum time to wait for the service manager, which reads a notification at once unless it stalls.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Service state, as `sd_notify(3)` defines it.
#[derive(Clone, Copy, Debug)]
pub(super) enum ServiceState {
    Ready,
    Reloading,
    Stopping,
    /// Another process serves from now on.
    MainPid(u32),
}

impl fmt::Display for ServiceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready => f.write_str("READY=1\n"),
            Self::Reloading => {
                let now = clock_gettime(ClockId::Monotonic);
                let micros = now.tv_sec * 1_000_000 + now.tv_nsec / 1_000;
                write!(f, "RELOADING=1\nMONOTONIC_USEC={micros}\n")
            }
            Self::Stopping => f.write_str("STOPPING=1\n"),
            Self::MainPid(process) => writeln!(f, "MAINPID={process}"),
        }
    }
}

struct Notification {
    text: String,
    sent: SyncSender<()>,
}

/// Notifies the service manager, if there is one. A thread sends the notification: a manager that does not read its socket delays
/// the caller by a second at most.
pub(super) fn notify(state: ServiceState) {
    static QUEUE: OnceLock<Option<SyncSender<Notification>>> = OnceLock::new();
    if env::var_os(MANAGER).is_none() {
        return;
    }
    let Some(queue) = QUEUE.get_or_init(start) else { return };
    let (sent, is_sent) = sync_channel(1);
    let is_queued = queue.try_send(Notification { text: state.to_string(), sent }).is_ok();
    if !is_queued || is_sent.recv_timeout(TIMEOUT).is_err() {
        tracing::warn!("the service manager does not read its notifications (NOTIFY_SOCKET)");
    }
}

/// Starts the thread.
fn start() -> Option<SyncSender<Notification>> {
    let (queue, notifications) = sync_channel(QUEUE_MAX);
    let spawned = thread::Builder::new().name("notify".to_owned()).spawn(move || send(&notifications));
    let started = spawned.inspect_err(|error| tracing::warn!(%error, "cannot notify the service manager"));
    started.ok().map(|_| queue)
}

fn send(notifications: &Receiver<Notification>) {
    for Notification { text, sent } in notifications {
        let address = env::var_os(MANAGER).unwrap_or_default();
        if let Err(error) = send_text(&address, &text) {
            tracing::warn!(%error, "cannot notify the service manager (NOTIFY_SOCKET)");
        }
        // The caller may have stopped waiting.
        let _ = sent.try_send(());
    }
}

/// Sends a datagram to a socket with a path, or on Linux to an abstract socket, whose address begins with `@`.
fn send_text(address: &OsStr, text: &str) -> io::Result<()> {
    UnixDatagram::unbound()?.send_to_addr(text.as_bytes(), &socket_address(address)?).map(drop)
}

#[cfg(target_os = "linux")]
fn socket_address(address: &OsStr) -> io::Result<SocketAddr> {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::ffi::OsStrExt;
    match address.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(address),
    }
}

#[cfg(not(target_os = "linux"))]
fn socket_address(address: &OsStr) -> io::Result<SocketAddr> {
    SocketAddr::from_pathname(address)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::ffi::OsString;

    use super::*;

    #[test]
    fn notification_reaches_sockets_with_paths_and_abstract_sockets() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("manager").into_os_string();
        let mut name = OsString::from("@");
        name.push(&path);
        for address in [path, name] {
            let manager = UnixDatagram::bind_addr(&socket_address(&address).unwrap()).unwrap();
            send_text(&address, &ServiceState::MainPid(7).to_string()).unwrap();
            let mut text = [0; 64];
            let len = manager.recv(&mut text).unwrap();
            assert_eq!(text[..len], *b"MAINPID=7\n", "{}", address.display());
        }
        assert!(send_text(OsStr::new("/nowhere/manager"), "READY=1\n").is_err());
    }
}
