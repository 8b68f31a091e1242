//! The share of datagrams in a connection.

/// Datagram bytes that the application may send while stream content is unacknowledged.
///
/// QUIC sends datagrams before streams. On a slow path each acknowledgement permits less than the datagram buffer
/// holds, and an application that refills the buffer would stop all streams. So the budget is refilled only once the
/// streams could use the window that an acknowledgement has opened.
#[derive(Debug, Default)]
pub(crate) struct DatagramBudget {
    size: usize,
    left: usize,
    /// An acknowledgement has arrived since the last datagram, and no datagram waits.
    is_acknowledged: bool,
}

impl DatagramBudget {
    /// Creates a full budget.
    pub(crate) const fn new(size: usize) -> Self {
        Self { size, left: size, is_acknowledged: false }
    }

    /// Returns whether a datagram may be sent. `has_content`: stream content is unacknowledged.
    pub(crate) const fn permits(&mut self, len: usize, has_content: bool) -> bool {
        if !has_content {
            self.left = self.size;
        }
        // A single datagram may exceed a small budget.
        len <= self.left || self.left == self.size
    }

    /// Notes that a datagram waits for the congestion window.
    pub(crate) const fn spend(&mut self, len: usize) {
        self.left = self.left.saturating_sub(len);
        self.is_acknowledged = false;
    }

    /// Notes an acknowledgement. `queued`: datagram bytes that wait.
    pub(crate) const fn note_acknowledgement(&mut self, queued: usize) {
        self.is_acknowledged |= queued == 0;
    }

    /// Notes that the connection has sent all that it may send now.
    pub(crate) const fn note_sent(&mut self) {
        if std::mem::replace(&mut self.is_acknowledged, false) {
            self.left = self.size;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_is_refilled_once_streams_could_send_after_an_acknowledgement() {
        let mut budget = DatagramBudget::new(1000);
        assert!(budget.permits(600, true));
        budget.spend(600);
        assert!(!budget.permits(600, true) && budget.permits(400, true));
        // Datagrams have used what was sent.
        budget.note_sent();
        budget.note_acknowledgement(600);
        budget.note_sent();
        assert!(!budget.permits(600, true));
        budget.note_acknowledgement(0);
        assert!(!budget.permits(600, true), "streams send first");
        budget.note_sent();
        assert!(budget.permits(600, true));
    }

    #[test]
    fn budget_without_content_of_streams_is_unlimited() {
        let mut budget = DatagramBudget::new(1000);
        for _ in 0..10 {
            assert!(budget.permits(900, false));
            budget.spend(900);
        }
        assert!(!budget.permits(900, true));
    }
}
