//! A thread that answers requests in sequence: most librdkafka requests block.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use sinews_stream::broker::{BrokerError, BrokerResponder, BrokerResponse};

/// Maximum pending requests. Each is answered or fails within seconds.
const REQUESTS_MAX: usize = 1024;

/// The work of a request thread.
pub(super) trait RequestHandler: Send + 'static {
    type Request: Send + 'static;

    /// Idle time after which periodic work runs.
    const IDLE: Duration;

    /// Answers the requests that have arrived, at least one.
    fn handle(&mut self, requests: Vec<Self::Request>);

    /// Does periodic work, after an idle time or many requests.
    fn run_periodic(&mut self);
}

/// Handle of such a thread. When closed, the thread ends after its current request; closing does not wait for it.
pub(super) struct RequestThread<Q> {
    requests: RwLock<Option<SyncSender<Q>>>,
    is_closed: Arc<AtomicBool>,
}

impl<Q: Send + 'static> RequestThread<Q> {
    pub(super) fn start<W: RequestHandler<Request = Q>>(name: &str, handler: W) -> io::Result<Self> {
        let (sender, receiver) = mpsc::sync_channel(REQUESTS_MAX);
        let is_closed = Arc::new(AtomicBool::new(false));
        let closed = is_closed.clone();
        start(name, move || run(handler, &receiver, &closed))?;
        Ok(Self { requests: RwLock::new(Some(sender)), is_closed })
    }

    /// Sends a request; the answer is an error if the queue is full or the thread has ended.
    pub(super) fn send<T>(&self, request: impl FnOnce(BrokerResponder<T>) -> Q) -> BrokerResponse<T> {
        let (reply, response) = BrokerResponse::channel();
        let requests = self.requests.read().unwrap_or_else(PoisonError::into_inner);
        match requests.as_ref().map(|requests| requests.try_send(request(reply))) {
            Some(Ok(())) => response,
            Some(Err(TrySendError::Full(_))) => BrokerResponse::ready(Err(BrokerError::Busy)),
            Some(Err(TrySendError::Disconnected(_))) | None => {
                BrokerResponse::ready(Err(BrokerError::Closed))
            }
        }
    }

    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        self.requests.write().unwrap_or_else(PoisonError::into_inner).take();
    }
}

fn run<W: RequestHandler>(mut handler: W, requests: &Receiver<W::Request>, is_closed: &AtomicBool) {
    loop {
        let first = match requests.recv_timeout(W::IDLE) {
            Ok(first) => Some(first),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        // Each request may take seconds when the broker is unreachable; the remaining requesters get `Closed`.
        if is_closed.load(Ordering::Relaxed) {
            return;
        }
        if let Some(first) = first {
            handler.handle(std::iter::once(first).chain(requests.try_iter().take(REQUESTS_MAX)).collect());
        }
        handler.run_periodic();
    }
}

/// Starts a named thread.
pub(super) fn start(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name.to_owned()).spawn(run)
}
