//! Limits on a request for messages.

use super::streams::JetStreams;

/// Messages requested at once: far fewer than the client's subscription buffers before it drops messages.
const MESSAGES_MAX: usize = 1000;
/// Subject, reply subject and headers of a message, which count as its bytes.
const OVERHEAD: usize = 64 << 10;

/// Limits of a request. The server ends a request with an error at the first message that would exceed its bytes.
#[derive(Clone, Copy)]
pub(super) struct PullLimit {
    bytes: usize,
    /// The next message exceeds the bytes: it is requested alone.
    is_single: bool,
}

impl PullLimit {
    /// A limit of about this many bytes, which permits the server's largest message.
    pub(super) async fn new(streams: &JetStreams, bytes: usize) -> Result<Self, String> {
        let largest = streams.reader().await?.client().server_info().max_payload;
        Ok(Self { bytes: bytes.max(largest.saturating_add(OVERHEAD)), is_single: false })
    }

    pub(super) fn messages(&self) -> usize {
        if self.is_single { 1 } else { MESSAGES_MAX }
    }

    /// The maximum of bytes; 0 means no limit.
    pub(super) fn bytes(&self) -> usize {
        if self.is_single { 0 } else { self.bytes }
    }

    pub(super) fn is_single(&self) -> bool {
        self.is_single
    }

    /// Chooses the limits of the next request: the messages of the last one ended, with an error or not. Returns an error
    /// that has another cause than the limit.
    pub(super) fn is_reached(&mut self, has_messages: bool, error: Option<String>) -> Option<String> {
        match error {
            Some(error) if !has_messages && self.is_single => Some(error),
            error => {
                self.is_single = error.is_some() && !has_messages;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_above_the_limit_is_requested_alone() {
        let mut limit = PullLimit { bytes: 100, is_single: false };
        let exceeded = || Some("409".to_owned());
        assert_eq!(limit.is_reached(true, exceeded()), None);
        assert_eq!((limit.messages(), limit.bytes()), (MESSAGES_MAX, 100));
        assert_eq!(limit.is_reached(false, exceeded()), None);
        assert_eq!((limit.messages(), limit.bytes()), (1, 0));
        assert_eq!(limit.is_reached(true, None), None);
        assert!(!limit.is_single());
        assert_eq!(limit.is_reached(false, exceeded()), None);
        assert_eq!(limit.is_reached(false, exceeded()), exceeded());
    }
}
