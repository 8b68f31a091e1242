//! Publications past the link's thread: while nothing waits for the broker, publishers write to its socket themselves.

use std::io::{ErrorKind, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Shortest time between two writes. More frequent publications are collected, and leave with one write by the link's
/// thread.
const INTERVAL: Duration = Duration::from_micros(100);

/// A second handle for the link's socket, which does not block.
#[derive(Debug)]
pub(super) struct DirectWriter {
    socket: TcpStream,
    /// The link's thread has written all bytes that it has taken.
    is_idle: bool,
    last: Option<Instant>,
}

/// What a write has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DirectWrite {
    Complete,
    /// The socket has accepted a part, which may be empty.
    Partial(usize),
    /// The socket cannot be written: the link's thread finds the reason.
    Failed,
}

impl DirectWriter {
    /// Writes once the link's thread has written what it has.
    pub(super) fn new(socket: TcpStream) -> Self {
        Self { socket, is_idle: false, last: None }
    }

    /// Notes whether the link's thread has bytes to write.
    pub(super) fn note_link(&mut self, is_idle: bool) {
        self.is_idle = is_idle;
    }

    /// Whether a publication may be written now, if nothing waits before it.
    pub(super) fn is_free(&mut self, now: Instant) -> bool {
        let is_free = self.is_idle && self.last.is_none_or(|last| now.duration_since(last) >= INTERVAL);
        if is_free {
            self.last = Some(now);
        }
        is_free
    }

    /// Writes as much as the socket accepts at once.
    pub(super) fn write(&mut self, bytes: &[u8]) -> DirectWrite {
        match self.socket.write(bytes) {
            Ok(written) if written == bytes.len() => DirectWrite::Complete,
            Ok(written) => DirectWrite::Partial(written),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                DirectWrite::Partial(0)
            }
            Err(_) => DirectWrite::Failed,
        }
    }

    /// Forgets when the last write was.
    #[cfg(test)]
    pub(super) fn forget_last(&mut self) {
        self.last = None;
    }

    #[cfg(test)]
    pub(super) fn into_socket(self) -> TcpStream {
        self.socket
    }
}
