//! A transport before it is a WebSocket: sends and receives bytes, with one operation of each in flight.

use std::future::poll_fn;
use std::io;
use std::task::{Poll, ready};

use sinews_session::Chain;

use super::transport::{ReceiveResult, SendResult, Sink as _, Source as _, Transport};

/// Both sides of a transport. Operations in flight are stored here and not in a future.
pub(crate) struct TransportIo<S: Transport> {
    pub(super) source: S::Source,
    pub(super) sink: S::Sink,
}

impl<S: Transport> TransportIo<S> {
    pub(super) fn open(transport: S) -> Self {
        let (source, sink) = transport.open();
        Self { source, sink }
    }

    /// Sends all bytes of `out`.
    pub(super) async fn send_all(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        let mut waits = (!out.is_empty()).then(|| {
            let mut chain = Box::<Chain>::default();
            chain.write(|arena| std::mem::swap(arena, out));
            chain
        });
        poll_fn(|cx| {
            loop {
                if !self.sink.is_busy() {
                    match waits.take() {
                        Some(chain) => self.sink.start(Some(chain)),
                        None => return Poll::Ready(Ok(())),
                    }
                }
                if let SendResult::Sent(Some(mut chain), sent) = ready!(self.sink.poll(cx)) {
                    match sent? {
                        0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                        count => chain.advance(count),
                    }
                    if !chain.is_empty() {
                        waits = Some(chain);
                    }
                }
            }
        })
        .await
    }

    /// Receives at most `most` bytes, appends them, and returns their number; 0: the end.
    pub(super) async fn receive_some(&mut self, into: &mut Vec<u8>, most: usize) -> io::Result<usize> {
        poll_fn(|cx| {
            loop {
                if !self.source.is_busy() {
                    self.source.start(None);
                }
                match ready!(self.source.poll(cx)) {
                    ReceiveResult::Buffered => return Poll::Ready(Ok(self.source.drain(into, most))),
                    ReceiveResult::Nothing | ReceiveResult::Filled(..) | ReceiveResult::AppMemory(..) => {}
                    ReceiveResult::Ended(None) => return Poll::Ready(Ok(0)),
                    ReceiveResult::Ended(Some(error)) => return Poll::Ready(Err(error)),
                }
            }
        })
        .await
    }

    /// Whether no operation is in flight, and no received bytes are left.
    #[cfg(feature = "url-connect")]
    pub(super) fn is_idle(&self) -> bool {
        !self.source.is_busy() && !self.sink.is_busy()
    }

    /// Ends the sending side, after the operation in flight.
    pub(super) async fn shut(&mut self) -> io::Result<()> {
        self.send_all(&mut Vec::new()).await?;
        self.sink.start_shut();
        poll_fn(|cx| match ready!(self.sink.poll(cx)) {
            SendResult::Shut(result) => Poll::Ready(result),
            SendResult::Sent(_, result) => Poll::Ready(result.map(drop)),
        })
        .await
    }
}
