//! A connection's receive window.

/// Window for the bytes that a client may send ahead on all streams. Streams that the application does not read keep
/// theirs, so that they take no more than half the configured size: the window grows by the rest. Otherwise a few
/// streams would stop their neighbors.
#[derive(Debug, Default)]
pub(crate) struct ConnectionWindow {
    configured: u64,
    stream: u64,
    current: u64,
    /// Bytes by which the window has shrunk, and that the client may still send: QUIC takes no window back. They are paid
    /// by bytes that are read, and until then the window does not shrink again. So the client gets them once.
    debt: u64,
}

impl ConnectionWindow {
    /// Creates a window. `stream` is the window of each stream.
    pub(crate) const fn new(configured: u64, stream: u64) -> Self {
        Self { configured, stream, current: configured, debt: 0 }
    }

    /// Notes that bytes of any stream were read.
    pub(crate) const fn note_read(&mut self, bytes: usize) {
        self.debt = self.debt.saturating_sub(bytes as u64);
    }

    /// Adapts the window to the number of streams that are not read. Returns its new size, if that has changed.
    pub(crate) fn adapt(&mut self, unread: usize) -> Option<u64> {
        let needed = (self.configured / 2).saturating_add(self.stream.saturating_mul(unread as u64));
        let size = needed.max(self.configured);
        if size < self.current {
            if self.debt > 0 {
                return None;
            }
            self.debt = self.current - size;
        }
        (std::mem::replace(&mut self.current, size) != size).then_some(size)
    }

    /// Most bytes that QUIC holds for a number of open streams.
    pub(crate) fn most(&self, streams: usize) -> u64 {
        (self.current + self.debt).min(self.stream.saturating_mul(streams as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_grows_by_unread_streams_and_shrinks_once_for_bytes_that_are_read() {
        let mut window = ConnectionWindow::new(1000, 100);
        // Half the window is for streams that are read.
        assert_eq!([0, 1, 5].map(|unread| window.adapt(unread)), [None; 3]);
        assert_eq!((window.adapt(6), window.adapt(20)), (Some(1100), Some(2500)));
        assert_eq!((window.most(3), window.most(100)), (300, 2500));
        assert_eq!(window.adapt(0), Some(1000));
        // A client that makes the application pause and resume gains no window.
        assert_eq!(window.adapt(20), Some(2500));
        assert_eq!(window.adapt(0), None);
        window.note_read(1499);
        assert_eq!((window.adapt(0), window.most(100)), (None, 2501));
        window.note_read(1);
        assert_eq!(window.adapt(0), Some(1000));
    }
}
