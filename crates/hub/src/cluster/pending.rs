//! Work of the link's thread that waits for other threads.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, Stream as _};

use super::outbox::Outbox;

/// Maximum pending futures; further ones are rejected. Each waits for connections, which execute at most 64 commands at
/// a time, or for other nodes, which have 2 s.
const PENDING_MAX: usize = 1_024;

/// Futures that the link's thread polls; their wakers wake it.
pub(super) struct PendingWork<T> {
    futures: FuturesUnordered<BoxFuture<'static, T>>,
    waker: Waker,
}

impl<T> fmt::Debug for PendingWork<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingWork").field("len", &self.futures.len()).finish_non_exhaustive()
    }
}

struct LinkWaker(Arc<Outbox>);

impl Wake for LinkWaker {
    fn wake(self: Arc<Self>) {
        self.0.wake();
    }
}

impl<T> PendingWork<T> {
    pub(super) fn new(outbox: &Arc<Outbox>) -> Self {
        let waker = Waker::from(Arc::new(LinkWaker(Arc::clone(outbox))));
        Self { futures: FuturesUnordered::new(), waker }
    }

    /// Adds a future. Returns `false` if too many are pending.
    pub(super) fn add(&self, future: BoxFuture<'static, T>) -> bool {
        let has_room = self.futures.len() < PENDING_MAX;
        if has_room {
            self.futures.push(future);
        }
        has_room
    }

    /// Returns the output of a completed future.
    pub(super) fn next_done(&mut self) -> Option<T> {
        match Pin::new(&mut self.futures).poll_next(&mut Context::from_waker(&self.waker)) {
            Poll::Ready(done) => done,
            Poll::Pending => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_channel::oneshot;
    use futures_util::FutureExt as _;

    use super::*;
    use crate::cluster::message::NodeId;
    use crate::cluster::options::BrokerKind;
    use crate::cluster::subject::Subjects;

    #[test]
    fn pending_futures_complete_in_any_order_and_are_bounded() {
        let (kind, node) = (BrokerKind::Nats, NodeId { id: 1, start: 1 });
        let outbox = Arc::new(Outbox::new(kind, node, Subjects::new(kind, "p")));
        let mut pending = PendingWork::new(&outbox);
        let channels: Vec<_> = (0..PENDING_MAX)
            .map(|number| {
                let (sender, receiver) = oneshot::channel::<()>();
                assert!(pending.add(receiver.map(move |_| number).boxed()));
                sender
            })
            .collect();
        assert!(!pending.add(std::future::ready(0).boxed()));
        assert_eq!(pending.next_done(), None);
        let mut channels = channels.into_iter();
        let (first, second) = (channels.next().unwrap(), channels.next().unwrap());
        second.send(()).unwrap();
        assert_eq!((pending.next_done(), pending.next_done()), (Some(1), None));
        // A sender that is gone completes as well.
        drop(first);
        assert_eq!(pending.next_done(), Some(0));
        assert!(pending.add(std::future::ready(7).boxed()));
        assert_eq!(pending.next_done(), Some(7));
    }
}
