//! Close codes (RFC 6455 section 7.4).

use core::fmt;

/// A status code that may appear in a Close frame.
///
/// Valid are 1000–1003, 1007–1014 (1012–1014 by the IANA registry) and 3000–4999. The codes 1004, 1005,
/// 1006 and 1015 never appear on the wire, so this type cannot hold them: "no code" is an `Option`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CloseCode(u16);

impl CloseCode {
    /// 1000: the purpose of the connection is fulfilled.
    pub const NORMAL: Self = Self(1000);
    /// 1001: the server shuts down, or the browser leaves the page.
    pub const GOING_AWAY: Self = Self(1001);
    /// 1002: the peer violated the protocol.
    pub const PROTOCOL: Self = Self(1002);
    /// 1003: a data type that this end does not accept.
    pub const UNSUPPORTED: Self = Self(1003);
    /// 1007: the payload does not match its type (text that is not UTF-8, invalid deflate data).
    pub const INVALID_DATA: Self = Self(1007);
    /// 1008: a policy violation without a more specific code.
    pub const POLICY: Self = Self(1008);
    /// 1009: the message exceeds the limit of this end.
    pub const TOO_BIG: Self = Self(1009);
    /// 1010: the client requires an extension that the server did not accept.
    pub const MANDATORY_EXTENSION: Self = Self(1010);
    /// 1011: an internal error of the sender.
    pub const INTERNAL: Self = Self(1011);
    /// 1012: the service restarts; reconnect.
    pub const SERVICE_RESTART: Self = Self(1012);
    /// 1013: overloaded; retry later.
    pub const TRY_AGAIN_LATER: Self = Self(1013);
    /// 1014: a gateway received an invalid response from its upstream.
    pub const BAD_GATEWAY: Self = Self(1014);

    /// Returns the code if it may appear in a Close frame.
    #[must_use]
    pub const fn new(code: u16) -> Option<Self> {
        match code {
            1000..=1003 | 1007..=1014 | 3000..=4999 => Some(Self(code)),
            _ => None,
        }
    }

    /// The number on the wire.
    #[must_use]
    pub const fn as_u16(self) -> u16 {
        self.0
    }
}

/// The number on the wire.
impl From<CloseCode> for u16 {
    fn from(code: CloseCode) -> Self {
        code.0
    }
}

/// A number that may not appear in a Close frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidCloseCode(u16);

impl InvalidCloseCode {
    /// The number.
    #[must_use]
    pub const fn as_u16(self) -> u16 {
        self.0
    }
}

impl fmt::Display for InvalidCloseCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "close code {} is not one of 1000-1003, 1007-1014 and 3000-4999", self.0)
    }
}

impl core::error::Error for InvalidCloseCode {}

/// As [`CloseCode::new`], for `?`.
impl TryFrom<u16> for CloseCode {
    type Error = InvalidCloseCode;

    fn try_from(code: u16) -> Result<Self, InvalidCloseCode> {
        Self::new(code).ok_or(InvalidCloseCode(code))
    }
}

impl fmt::Debug for CloseCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CloseCode({})", self.0)
    }
}

impl fmt::Display for CloseCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::CloseCode;

    #[test]
    fn only_wire_close_codes_are_accepted() {
        let valid = |code: &u16| CloseCode::new(*code).is_some();
        let ranges: Vec<u16> = (0..=u16::MAX).filter(valid).collect();
        let expected: Vec<u16> = (1000..=1003).chain(1007..=1014).chain(3000..=4999).collect();
        assert_eq!(ranges, expected);
    }
}
