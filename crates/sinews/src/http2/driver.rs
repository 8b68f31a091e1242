//! The task of a connection: moves bytes between the socket and the streams.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use h2::SendStream;
use h2::client::Connection;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, Sleep, sleep_until};

use super::payload::{Payload, Unsent};

/// The end of a stream whose owner dropped it before everything was sent. h2 discards the rest once the stream is
/// dropped, so that the driver owns it meanwhile.
pub(super) struct LingeringStream {
    pub(super) _stream: SendStream<Payload>,
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

/// The connection, and the streams that outlive their WebSockets.
pub(super) struct Http2Driver<S: AsyncRead + AsyncWrite + Unpin> {
    connection: Connection<S, Payload>,
    dropped: UnboundedReceiver<LingeringStream>,
    /// In the order of their deadlines.
    lingering: Vec<(Instant, LingeringStream)>,
    /// The longest wait for a peer that takes no more data.
    linger: Duration,
    timer: Pin<Box<Sleep>>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Http2Driver<S> {
    pub(super) fn new(connection: Connection<S, Payload>, linger: Duration) -> (Self, DriverHandle) {
        let (sender, dropped) = unbounded_channel();
        let timer = Box::pin(sleep_until(Instant::now()));
        (Self { connection, dropped, lingering: Vec::new(), linger, timer }, DriverHandle(sender))
    }

    /// Takes over the streams that were dropped.
    fn poll_dropped(&mut self, cx: &mut Context<'_>) {
        while let Poll::Ready(Some(stream)) = self.dropped.poll_recv(cx) {
            self.lingering.push((Instant::now() + self.linger, stream));
        }
    }

    /// Drops the streams that have sent everything, or have waited for too long.
    fn poll_lingering(&mut self, cx: &mut Context<'_>) {
        self.lingering.retain(|(_, stream)| !stream.unsent.is_zero());
        while let Some((deadline, _)) = self.lingering.first() {
            if self.timer.deadline() != *deadline {
                self.timer.as_mut().reset(*deadline);
            }
            if self.timer.as_mut().poll(cx).is_pending() {
                break;
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
        this.poll_lingering(cx);
        Poll::Pending
    }
}
