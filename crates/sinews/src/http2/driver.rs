//! The task of a connection: moves bytes between the socket and the streams.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use h2::SendStream;
use h2::client::Connection;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, Sleep, sleep_until};

use super::payload::{StreamPayload, Unsent};

/// The end of a stream whose owner dropped it before everything was sent. h2 discards the rest once the stream is
/// dropped, so that the driver owns it meanwhile.
pub(super) struct LingeringStream {
    pub(super) _stream: SendStream<StreamPayload>,
    pub(super) unsent: Unsent,
}

/// A handle to the driver. The connection is in use while there is one.
#[derive(Clone)]
pub(super) struct DriverHandle(UnboundedSender<LingeringStream>);

impl DriverHandle {
    /// Drops the stream once everything is sent. The queue has at most one entry of each stream, whose number the
    /// server limits.
    pub(super) fn linger(&self, stream: LingeringStream) {
        // An error means that the connection has ended.
        let _ = self.0.send(stream);
    }
}

/// Limit of the close timeout, so that a deadline is a time of the clock.
const LINGER_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// The connection, and the streams that outlive their WebSockets.
pub(super) struct Http2Driver<S: AsyncRead + AsyncWrite + Unpin> {
    connection: Connection<S, StreamPayload>,
    dropped: UnboundedReceiver<LingeringStream>,
    /// In the order of their deadlines.
    lingering: Vec<(Instant, LingeringStream)>,
    /// The longest wait for a server that takes no more data.
    linger: Duration,
    /// When the connection is dropped at the latest, once it is not in use.
    ends_at: Option<Instant>,
    timer: Pin<Box<Sleep>>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Http2Driver<S> {
    pub(super) fn new(connection: Connection<S, StreamPayload>, linger: Duration) -> (Self, DriverHandle) {
        let (sender, dropped) = unbounded_channel();
        let timer = Box::pin(sleep_until(Instant::now()));
        let linger = linger.min(LINGER_MAX);
        let driver = Self { connection, dropped, lingering: Vec::new(), linger, ends_at: None, timer };
        (driver, DriverHandle(sender))
    }

    /// Takes over the streams that were dropped, and notes that the last handle was.
    fn poll_dropped(&mut self, cx: &mut Context<'_>) {
        while let Poll::Ready(dropped) = self.dropped.poll_recv(cx) {
            let deadline = Instant::now() + self.linger;
            let Some(stream) = dropped else {
                self.ends_at.get_or_insert(deadline);
                break;
            };
            self.lingering.push((deadline, stream));
        }
    }

    /// Drops the streams that have sent everything, or have waited for too long. Ready: the connection has waited for
    /// too long.
    fn poll_lingering(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.lingering.retain(|(_, stream)| !stream.unsent.is_zero());
        loop {
            let first = self.lingering.first().map(|(deadline, _)| *deadline);
            let Some(deadline) = first.into_iter().chain(self.ends_at).min() else { return Poll::Pending };
            if self.timer.deadline() != deadline {
                self.timer.as_mut().reset(deadline);
            }
            ready!(self.timer.as_mut().poll(cx));
            if self.ends_at == Some(deadline) {
                return Poll::Ready(());
            }
            self.lingering.remove(0);
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Future for Http2Driver<S> {
    type Output = ();

    /// The end of the connection, and its error, reach every stream.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        this.poll_dropped(cx);
        if Pin::new(&mut this.connection).poll(cx).is_ready() {
            return Poll::Ready(());
        }
        this.poll_lingering(cx)
    }
}
