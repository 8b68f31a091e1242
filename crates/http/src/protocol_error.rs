use core::fmt;

/// The reason why an HTTP/2 or HTTP/3 connection ends: the code that the peer gets, and a text for a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtocolError<C> {
    code: C,
    reason: &'static str,
}

impl<C: Copy> ProtocolError<C> {
    pub(crate) const fn new(code: C, reason: &'static str) -> Self {
        Self { code, reason }
    }

    /// The code that the peer gets.
    #[must_use]
    pub const fn code(&self) -> C {
        self.code
    }

    /// A short text for a log: the violated rule or the exceeded limit.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        self.reason
    }
}

impl<C: fmt::Display> fmt::Display for ProtocolError<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.reason)
    }
}

impl<C: fmt::Debug + fmt::Display> core::error::Error for ProtocolError<C> {}
