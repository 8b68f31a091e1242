//! A stream of HTTP/2 as the transport of a WebSocket.

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use h2::{Reason, RecvStream, SendStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connection::io_error;
use super::driver::{DriverHandle, LingeringStream};
use super::payload::{StreamPayload, Unsent};
use crate::tokio::Split;

/// A stream of a connection of HTTP/2.
///
/// The end of the stream is the end of the transport. After a reset, reads fail with the kind
/// [`ConnectionReset`](io::ErrorKind::ConnectionReset) and writes with [`BrokenPipe`](io::ErrorKind::BrokenPipe), as for
/// TCP (RFC 8441 section 5). An error of the connection has the same kind on all its streams:
/// [`ConnectionAborted`](io::ErrorKind::ConnectionAborted) after GOAWAY, otherwise that of the socket.
#[derive(Debug)]
pub struct Http2Stream {
    read: Http2ReadSide,
    write: Http2WriteSide,
}

/// The receiving side of an [`Http2Stream`].
pub struct Http2ReadSide {
    stream: RecvStream,
    /// Received bytes that were not read. Their capacity is returned to the server once they are read.
    received: Bytes,
    /// The connection is in use.
    _driver: DriverHandle,
}

/// The sending side of an [`Http2Stream`].
pub struct Http2WriteSide {
    /// `None` in drop only.
    stream: Option<SendStream<StreamPayload>>,
    unsent: Unsent,
    driver: DriverHandle,
    is_shut_down: bool,
}

/// Most bytes of one stream that wait for the connection: a full send of the kernel.
const SEND_BUFFER: usize = 64 << 10;

impl Http2Stream {
    pub(super) fn new(write: SendStream<StreamPayload>, read: RecvStream, driver: DriverHandle) -> Self {
        Self {
            read: Http2ReadSide { stream: read, received: Bytes::new(), _driver: driver.clone() },
            write: Http2WriteSide {
                stream: Some(write),
                unsent: Unsent::default(),
                driver,
                is_shut_down: false,
            },
        }
    }
}

impl Split for Http2Stream {
    type Stream = Self;
    type Read = Http2ReadSide;
    type Write = Http2WriteSide;

    fn split(stream: Self) -> (Http2ReadSide, Http2WriteSide) {
        (stream.read, stream.write)
    }

    fn reunite(read: Http2ReadSide, write: Http2WriteSide) -> Self {
        Self { read, write }
    }
}

impl AsyncRead for Http2ReadSide {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.received.is_empty() {
            this.received = match ready!(this.stream.poll_data(cx)) {
                None => return Poll::Ready(Ok(())),
                Some(Ok(data)) => data,
                // A server that needs no more input has ended its side, and says so (RFC 9113 section 8.1).
                Some(Err(error)) if error.reason() == Some(Reason::NO_ERROR) && error.is_reset() => {
                    return Poll::Ready(Ok(()));
                }
                Some(Err(error)) => return Poll::Ready(Err(io_error(error))),
            };
        }
        let count = this.received.len().min(buf.remaining());
        buf.put_slice(&this.received[..count]);
        this.received.advance(count);
        // An error means that the stream has ended, which the next read reports.
        let _ = this.stream.flow_control().release_capacity(count);
        Poll::Ready(Ok(()))
    }
}

impl Http2WriteSide {
    /// Waits until a write fits the buffer; returns how much of it does, at least one byte.
    fn poll_free(&self, cx: &Context<'_>, wanted: usize) -> Poll<usize> {
        self.unsent.poll_at_most(SEND_BUFFER / 2, cx).map(|unsent| wanted.min(SEND_BUFFER - unsent))
    }

    /// Queues the data. h2 requests a part of the windows for what is queued only, so that a stream that is not polled
    /// keeps no part from the others.
    fn send(&mut self, cx: &mut Context<'_>, data: Bytes) -> Poll<io::Result<usize>> {
        let count = data.len();
        let payload = self.unsent.payload(data);
        match self.stream().send_data(payload, false) {
            Ok(()) => Poll::Ready(Ok(count)),
            Err(_) => Poll::Ready(Err(self.end_error(cx))),
        }
    }

    /// The error of a stream that takes no more data.
    fn end_error(&mut self, cx: &mut Context<'_>) -> io::Error {
        match self.stream().poll_reset(cx) {
            Poll::Ready(Ok(reason)) => io::Error::new(io::ErrorKind::BrokenPipe, h2::Error::from(reason)),
            Poll::Ready(Err(error)) => io_error(error),
            Poll::Pending => io::ErrorKind::BrokenPipe.into(),
        }
    }

    fn stream(&mut self) -> &mut SendStream<StreamPayload> {
        self.stream.as_mut().expect("it is taken in drop only")
    }
}

/// A socket, too, sends what was written to it before it was dropped.
impl Drop for Http2WriteSide {
    fn drop(&mut self) {
        if let Some(stream) = self.stream.take().filter(|_| !self.unsent.is_zero()) {
            self.driver.linger(LingeringStream { _stream: stream, unsent: self.unsent.clone() });
        }
    }
}

impl AsyncWrite for Http2WriteSide {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let count = ready!(self.poll_free(cx, buf.len()));
        self.send(cx, Bytes::copy_from_slice(&buf[..count]))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wanted = bufs.iter().map(|buf| buf.len()).sum();
        if wanted == 0 {
            return Poll::Ready(Ok(0));
        }
        let mut left = ready!(self.poll_free(cx, wanted));
        let mut data = BytesMut::with_capacity(left);
        for buf in bufs {
            let count = buf.len().min(left);
            data.put_slice(&buf[..count]);
            left -= count;
        }
        self.send(cx, data.freeze())
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Waits until the connection has taken everything: the task of the connection writes it to the socket, which
    /// outlives the stream.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.unsent.poll_at_most(0, cx).map(|_| Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.is_shut_down {
            self.is_shut_down = true;
            let end = self.unsent.payload(Bytes::new());
            if let Err(error) = self.stream().send_data(end, true) {
                return match self.stream().poll_reset(cx) {
                    // The server needs no more input.
                    Poll::Ready(Ok(Reason::NO_ERROR)) => Poll::Ready(Ok(())),
                    _ => Poll::Ready(Err(io_error(error))),
                };
            }
        }
        self.poll_flush(cx)
    }
}

impl AsyncRead for Http2Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.read).poll_read(cx, buf)
    }
}

impl AsyncWrite for Http2Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.write).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.write).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.write.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.write).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.write).poll_shutdown(cx)
    }
}

/// Omits received bytes.
impl fmt::Debug for Http2ReadSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http2ReadSide")
            .field("stream", &self.stream.stream_id().as_u32())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Http2WriteSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http2WriteSide")
            .field("stream", &self.stream.as_ref().map(|stream| stream.stream_id().as_u32()))
            .field("is_shut_down", &self.is_shut_down)
            .finish_non_exhaustive()
    }
}
