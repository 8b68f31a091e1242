//! Incremental UTF-8 validation; a piece may end within a character.

use super::violation::{DATA, Violation};

/// UTF-8 in pieces. The first error is reported once.
#[derive(Default)]
pub(super) struct Utf8Checker {
    /// An incomplete character's first bytes.
    open: Vec<u8>,
    pub(super) failed: bool,
    at: usize,
}

impl Utf8Checker {
    pub(super) fn check(&mut self, piece: &[u8]) -> Option<Violation> {
        if self.failed {
            return None;
        }
        self.open.extend_from_slice(piece);
        let (valid, broken) = match std::str::from_utf8(&self.open) {
            Ok(_) => (self.open.len(), false),
            Err(error) => (error.valid_up_to(), error.error_len().is_some()),
        };
        self.at += valid;
        self.open.drain(..valid);
        self.failed = broken;
        broken.then(|| self.violation())
    }

    pub(super) fn end(&self) -> Option<Violation> {
        (!self.failed && !self.open.is_empty()).then(|| self.violation())
    }

    fn violation(&self) -> Violation {
        Violation::fatal(
            "RFC 6455 section 8.1",
            format!("text is not UTF-8, from byte {} of the message on", self.at),
            DATA,
        )
    }
}
