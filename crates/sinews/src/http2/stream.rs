//! A stream of HTTP/2 as the transport of a WebSocket.

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use h2::{Reason, RecvStream, SendStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connection::io_error;
use crate::tokio::Split;

/// A stream of a connection of HTTP/2.
///
/// The end of the stream is the end of the transport, and a reset is an error of the kind
/// [`ConnectionReset`](io::ErrorKind::ConnectionReset), as for TCP (RFC 8441 section 5).
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
}

/// The sending side of an [`Http2Stream`].
pub struct Http2WriteSide {
    stream: SendStream<Bytes>,
    is_shut_down: bool,
}

/// Most bytes of one write, so that a stream that stops in between reserves little of the connection's window.
const WRITE_MAX: usize = 64 << 10;

impl Http2Stream {
    pub(super) const fn new(write: SendStream<Bytes>, read: RecvStream) -> Self {
        Self {
            read: Http2ReadSide { stream: read, received: Bytes::new() },
            write: Http2WriteSide { stream: write, is_shut_down: false },
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
    /// Waits for a part of the windows of the stream and of the connection: at most `wanted` bytes, at least one.
    fn poll_capacity(&mut self, cx: &mut Context<'_>, wanted: usize) -> Poll<io::Result<usize>> {
        self.stream.reserve_capacity(wanted.min(WRITE_MAX));
        loop {
            let capacity = self.stream.capacity();
            if capacity > 0 {
                return Poll::Ready(Ok(capacity.min(wanted)));
            }
            match ready!(self.stream.poll_capacity(cx)) {
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(io_error(error))),
                None => return Poll::Ready(Err(self.end_error(cx))),
            }
        }
    }

    /// The error of a stream that takes no more data.
    fn end_error(&mut self, cx: &mut Context<'_>) -> io::Error {
        match self.stream.poll_reset(cx) {
            Poll::Ready(Ok(reason)) => io::Error::new(io::ErrorKind::BrokenPipe, h2::Error::from(reason)),
            Poll::Ready(Err(error)) => io_error(error),
            Poll::Pending => io::ErrorKind::BrokenPipe.into(),
        }
    }

    fn send(&mut self, data: Bytes) -> Poll<io::Result<usize>> {
        let count = data.len();
        Poll::Ready(self.stream.send_data(data, false).map(|()| count).map_err(io_error))
    }
}

impl AsyncWrite for Http2WriteSide {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let capacity = ready!(self.poll_capacity(cx, buf.len()))?;
        self.send(Bytes::copy_from_slice(&buf[..capacity]))
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
        let mut left = ready!(self.poll_capacity(cx, wanted))?;
        let mut data = BytesMut::with_capacity(left);
        for buf in bufs {
            let count = buf.len().min(left);
            data.put_slice(&buf[..count]);
            left -= count;
        }
        self.send(data.freeze())
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// The task of the connection sends what was written.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_shut_down {
            return Poll::Ready(Ok(()));
        }
        self.is_shut_down = true;
        let Err(error) = self.stream.send_data(Bytes::new(), true) else { return Poll::Ready(Ok(())) };
        match self.stream.poll_reset(cx) {
            // The server needs no more input.
            Poll::Ready(Ok(Reason::NO_ERROR)) => Poll::Ready(Ok(())),
            _ => Poll::Ready(Err(io_error(error))),
        }
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
            .field("stream", &self.stream.stream_id().as_u32())
            .field("is_shut_down", &self.is_shut_down)
            .finish_non_exhaustive()
    }
}
