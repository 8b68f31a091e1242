//! Messages that are larger than memory, or that go where the application wants them.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use sinews_proto::Kind;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::websocket::WebSocket;
use crate::error::Error;
use crate::message::Filled;
use crate::reading::Reading;

impl<S: AsyncRead + AsyncWrite + Unpin> WebSocket<S> {
    /// Waits for the next text or binary message and reads it piece by piece, as it comes: it need not fit into
    /// memory. What bounds it are [`max_message`](crate::Config::max_message),
    /// [`max_frame`](crate::Config::max_frame) and [`max_fragments`](crate::Config::max_fragments). `None` when the
    /// connection is over.
    ///
    /// Cancel-safe. What is left of a message whose reader is dropped is passed over.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub async fn next_reader(&mut self) -> Option<Result<MessageReader<'_, S>, Error>> {
        let began = poll_fn(|cx| {
            self.leave_reading();
            self.drive.link.expect_pieces(true);
            while let Some(event) = ready!(self.drive.poll_event(cx)) {
                if let Some(reading) = Reading::begin(&mut self.drive.link, event) {
                    return Poll::Ready(Some(reading));
                }
            }
            Poll::Ready(None)
        });
        match began.await {
            Some(reading) => Some(Ok(MessageReader { socket: self, reading })),
            None => self.last_words().map(Err),
        }
    }

    /// Receives the next text or binary message into memory of the caller's, such as memory that is aligned for
    /// direct I/O: behind the first part of a large message, the system itself receives there, and it is unmasked in
    /// place. `None` when the connection is over.
    ///
    /// Cancel-safe: call again with the same buffer, and it goes on where it stood. Where the message does not fit,
    /// [`Filled::last`] is false, and the next call receives what follows; any other way to receive passes it over.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub async fn recv_into(&mut self, buffer: &mut [u8]) -> Option<Result<Filled, Error>> {
        match poll_fn(|cx| self.poll_recv_into(cx, buffer)).await {
            Some(filled) => Some(Ok(filled)),
            None => self.last_words().map(Err),
        }
    }

    fn poll_recv_into(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<Option<Filled>> {
        self.drive.link.expect_pieces(true);
        loop {
            // Another buffer, and a smaller one, may have come after a dropped call.
            let room = buffer.get_mut(self.filled..).unwrap_or_default();
            if let Some(reading) = &mut self.reading {
                let piece = reading.take(&mut self.drive.link, room.len());
                let copied = piece.len();
                room[..copied].copy_from_slice(piece);
                self.filled += copied;
                if reading.is_over() || copied == room.len() {
                    return Poll::Ready(Some(self.finish_filling()));
                }
                if let Some((count, last)) = self.drive.poll_piece(cx, &mut room[copied..]) {
                    self.filled += count;
                    reading.last = last;
                    continue;
                }
            }
            let Some(event) = ready!(self.drive.poll_event(cx)) else { return Poll::Ready(None) };
            match &mut self.reading {
                Some(reading) => reading.go_on(&mut self.drive.link, event),
                None => self.reading = Reading::begin(&mut self.drive.link, event).map(Box::new),
            }
        }
    }

    fn finish_filling(&mut self) -> Filled {
        let len = std::mem::take(&mut self.filled);
        let mut filled = Filled { kind: Kind::Binary, len, last: false };
        if let Some(mut reading) = self.reading.take() {
            filled.kind = reading.kind;
            filled.last = reading.is_over();
            if !filled.last {
                reading.keep(&mut self.drive.link);
                self.reading = Some(reading);
            }
        }
        filled
    }

    /// Whoever read a message into memory of its own does not want the rest.
    #[inline]
    pub(super) fn leave_reading(&mut self) {
        if let Some(reading) = self.reading.take() {
            self.filled = 0;
            if !reading.last {
                self.drive.link.skip_rest();
            }
        }
    }

    /// Sends a message piece by piece: its length need not be known, and it need not fit into memory. Each write is a
    /// fragment; pings, pongs and Close pass between them, other messages have to wait for its end.
    pub fn writer(&mut self, kind: Kind) -> MessageWriter<'_, S> {
        MessageWriter { socket: self, kind }
    }
}

/// A message that is read as it comes: by [`next_chunk`](Self::next_chunk), without a copy, or as an [`AsyncRead`],
/// which ends with the message.
///
/// In text, a code point may be cut by the edge of a piece; the whole is checked, and text that is none ends the
/// connection.
#[derive(Debug)]
pub struct MessageReader<'a, S: AsyncRead + AsyncWrite + Unpin> {
    socket: &'a mut WebSocket<S>,
    reading: Reading,
}

impl<S: AsyncRead + AsyncWrite + Unpin> MessageReader<'_, S> {
    /// Text or binary.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.reading.kind
    }

    /// The next piece where it lies, never an empty one; `None` at the end of the message.
    ///
    /// Cancel-safe.
    ///
    /// # Errors
    /// The connection ended before the message did.
    pub async fn next_chunk(&mut self) -> Option<Result<&mut [u8], Error>> {
        let more = poll_fn(|cx| {
            while self.reading.left() == 0 {
                if self.reading.last {
                    return Poll::Ready(Ok(false));
                }
                ready!(self.poll_piece(cx))?;
            }
            Poll::Ready(Ok(true))
        });
        match more.await {
            Ok(true) => Some(Ok(self.reading.take(&mut self.socket.drive.link, usize::MAX))),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        }
    }

    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        match ready!(self.socket.drive.poll_event(cx)) {
            Some(event) => {
                self.reading.go_on(&mut self.socket.drive.link, event);
                Poll::Ready(Ok(()))
            }
            None => Poll::Ready(Err(self.socket.broken_off())),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for MessageReader<'_, S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            if this.reading.left() > 0 || this.reading.last || buf.remaining() == 0 {
                buf.put_slice(this.reading.take(&mut this.socket.drive.link, buf.remaining()));
                return Poll::Ready(Ok(()));
            }
            let direct = this.socket.drive.poll_piece(cx, buf.initialize_unfilled());
            if let Some((count, last)) = direct {
                buf.advance(count);
                this.reading.last = last;
                return Poll::Ready(Ok(()));
            }
            ready!(this.poll_piece(cx))
                .map_err(|error| io::Error::new(io::ErrorKind::UnexpectedEof, error))?;
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Drop for MessageReader<'_, S> {
    fn drop(&mut self) {
        if !self.reading.last {
            self.socket.drive.link.skip_rest();
        }
    }
}

/// A message that is sent piece by piece: by [`write`](Self::write), or as an [`AsyncWrite`], whose shutdown is
/// [`finish`](Self::finish).
///
/// A writer that is dropped before that leaves the message open: [`WebSocket::writer`] goes on with it, and until its
/// end other messages are [`Misuse::MessageOpen`](crate::Misuse::MessageOpen).
#[derive(Debug)]
pub struct MessageWriter<'a, S> {
    socket: &'a mut WebSocket<S>,
    kind: Kind,
}

/// Most bytes of one write that become one fragment: what waits to be sent stays near
/// [`high_water`](crate::Config::high_water).
const FRAGMENT_MAX: usize = 64 << 10;

impl<S: AsyncRead + AsyncWrite + Unpin> MessageWriter<'_, S> {
    /// Sends a piece, in fragments of 64 KiB at most. It waits while more than
    /// [`high_water`](crate::Config::high_water) bytes are queued; small pieces leave together, at that mark, with
    /// [`flush`](Self::flush) or with the end.
    ///
    /// Not cancel-safe for pieces over 64 KiB: a dropped future may have sent a part.
    ///
    /// # Errors
    /// See [`Error`]; [`Misuse::MessageOpen`](crate::Misuse::MessageOpen) while a message of the other kind is open.
    pub async fn write(&mut self, piece: &[u8]) -> Result<(), Error> {
        for part in piece.chunks(FRAGMENT_MAX) {
            poll_fn(|cx| self.poll_part(cx, part, false)).await?;
        }
        Ok(())
    }

    /// Sends what is queued.
    ///
    /// Cancel-safe.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn flush(&mut self) -> Result<(), Error> {
        self.socket.flush().await
    }

    /// Ends the message, and sends what is queued.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn finish(self) -> Result<(), Error> {
        poll_fn(|cx| self.socket.poll_room(cx)).await;
        self.socket.drive.link.queue_piece(self.kind, &[], true)?;
        self.socket.flush().await
    }

    fn poll_part(&mut self, cx: &mut Context<'_>, part: &[u8], last: bool) -> Poll<Result<(), Error>> {
        ready!(self.socket.poll_room(cx));
        Poll::Ready(self.socket.drive.link.queue_piece(self.kind, part, last).map(drop))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for MessageWriter<'_, S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let part = &buf[..buf.len().min(FRAGMENT_MAX)];
        if !part.is_empty() {
            ready!(self.poll_part(cx, part, false)).map_err(io::Error::other)?;
        }
        Poll::Ready(Ok(part.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_out(cx).map_err(io::Error::other)
    }

    /// Ends the message.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.socket.drive.link.is_mid_message() {
            ready!(self.poll_part(cx, &[], true)).map_err(io::Error::other)?;
        }
        self.poll_flush(cx)
    }
}
