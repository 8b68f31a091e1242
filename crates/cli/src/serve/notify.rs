//! Notifications for the service manager.

use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use sd_notify::NotifyState;

/// Maximum number of notifications that wait for the service manager; a process sends a few.
const QUEUE_MAX: usize = 16;

/// Maximum time to wait for the service manager, which reads a notification at once unless it stalls.
const TIMEOUT: Duration = Duration::from_secs(1);

struct Notification {
    state: Vec<NotifyState<'static>>,
    sent: SyncSender<()>,
}

/// Notifies the service manager, if there is one. A thread sends the notification: a manager that does not read its socket delays
/// the caller by a second at most.
pub(super) fn notify(state: &[NotifyState<'static>]) {
    static QUEUE: OnceLock<Option<SyncSender<Notification>>> = OnceLock::new();
    if std::env::var_os("NOTIFY_SOCKET").is_none() {
        return;
    }
    let Some(queue) = QUEUE.get_or_init(start) else { return };
    let (sent, is_sent) = sync_channel(1);
    let is_queued = queue.try_send(Notification { state: state.to_vec(), sent }).is_ok();
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
    for Notification { state, sent } in notifications {
        if let Err(error) = sd_notify::notify(&state) {
            tracing::warn!(%error, "cannot notify the service manager");
        }
        // The caller may have stopped waiting.
        let _ = sent.try_send(());
    }
}
