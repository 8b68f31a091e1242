//! Owned request head.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::error::HeadError;
use crate::h1::framing::BodyFraming;
use crate::h1::parse::RequestParts;
use crate::head::RequestHead;
use crate::lines::HeaderLine;
use crate::text::{is_field_value, is_target, is_token, trim};
use crate::version::Version;

/// Owned copy of a [`RequestHead`], which lends the head again without a second parse.
///
/// ```
/// use sinews_http::{HeadLimits, HeaderSlots, RequestHead};
///
/// let owned = {
///     let (wire, mut slots) = (b"GET /chat HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(), HeaderSlots::new());
///     RequestHead::parse(&wire, &HeadLimits::new(), &mut slots)?.to_owned_head()
/// };
/// let head = owned.head();
/// assert_eq!((head.path(), head.authority()), ("/chat", Some("a")));
/// # Ok::<(), sinews_http::HeadError>(())
/// ```
#[derive(Clone)]
pub struct OwnedHead {
    bytes: Box<[u8]>,
    parts: RequestParts,
    lines: Box<[HeaderLine]>,
    framing: BodyFraming,
}

impl OwnedHead {
    pub(crate) fn new(bytes: &[u8], parts: RequestParts, lines: &[HeaderLine], framing: BodyFraming) -> Self {
        Self { bytes: bytes.into(), parts, lines: lines.into(), framing }
    }

    /// Assembles a head that arrived as fields, as in HTTP/2 and HTTP/3. The framing adds `Host` from `:authority`.
    ///
    /// ```
    /// use sinews_http::{OwnedHead, Version};
    ///
    /// let fields = [("host", &b"example.com"[..]), ("accept", b"*/*")];
    /// let owned = OwnedHead::from_fields("GET", "/chat?room=7", Version::Http2, fields)?;
    /// let head = owned.head();
    /// assert_eq!((head.path(), head.query()), ("/chat", Some("room=7")));
    /// assert_eq!(head.header("accept").next(), Some(&b"*/*"[..]));
    /// # Ok::<(), sinews_http::HeadError>(())
    /// ```
    ///
    /// # Errors
    /// [`HeadError`], as for the same head in HTTP/1.1; [`HeadError::TooLarge`] beyond 4 GiB.
    pub fn from_fields<'f>(
        method: &str,
        target: &str,
        version: Version,
        fields: impl IntoIterator<Item = (&'f str, &'f [u8])>,
    ) -> Result<Self, HeadError> {
        let mut bytes = Vec::from(method);
        bytes.extend_from_slice(target.as_bytes());
        let method_end = method.len();
        let target_end = bytes.len();
        let mut lines = Vec::new();
        let mut is_valid = is_token(method.as_bytes()) && is_target(target.as_bytes());
        for (name, value) in fields {
            is_valid &= is_token(name.as_bytes()) && is_field_value(value);
            let name_start = bytes.len();
            bytes.extend_from_slice(name.as_bytes());
            let value_start = bytes.len();
            bytes.extend_from_slice(trim(value));
            let line = HeaderLine::new(name_start..value_start, value_start..bytes.len());
            lines.push(line.ok_or(HeadError::TooLarge)?);
        }
        if !is_valid {
            return Err(HeadError::Syntax);
        }
        let (method, target) = ([0, method_end], [method_end, target_end]);
        let parts = RequestParts { method, target, version, wire_len: bytes.len() };
        let framing = RequestHead::new(&bytes, parts, &lines)?.framing();
        Ok(Self { bytes: bytes.into(), parts, lines: lines.into(), framing })
    }

    /// Lends the head.
    #[must_use]
    pub fn head(&self) -> RequestHead<'_> {
        RequestHead::from_parts(&self.bytes, self.parts, &self.lines, self.framing)
    }

    /// The head's length in bytes, including its empty line.
    #[must_use]
    pub const fn wire_len(&self) -> usize {
        self.parts.wire_len
    }
}

/// Omits the headers, which may contain secrets.
impl core::fmt::Debug for OwnedHead {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("OwnedHead").field("version", &self.parts.version).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::HeadLimits;
    use crate::lines::HeaderSlots;

    #[test]
    fn head_of_fields_is_checked_like_a_parsed_one() {
        let head = |method, target, fields: &[(&'static str, &'static str)]| {
            let fields = fields.iter().map(|(name, value)| (*name, value.as_bytes()));
            OwnedHead::from_fields(method, target, Version::Http2, fields)
                .map(|owned| owned.head().headers().count())
        };
        assert_eq!(head("GET", "/", &[("host", "a"), ("x", " b\t")]), Ok(2));
        let owned = OwnedHead::from_fields("GET", "/", Version::Http2, [("host", &b" a "[..])]).unwrap();
        assert_eq!((owned.head().authority(), owned.head().version()), (Some("a"), Version::Http2));
        for (method, target, fields, error) in [
            ("", "/", &[("host", "a")][..], HeadError::Syntax),
            ("GET", "/ x", &[("host", "a")], HeadError::Syntax),
            ("GET", "x", &[("host", "a")], HeadError::Target),
            ("GET", "/", &[], HeadError::Host),
            ("GET", "/", &[("host", "a"), ("a b", "c")], HeadError::Syntax),
            ("GET", "/", &[("host", "a"), ("b", "c\r\nd: e")], HeadError::Syntax),
            ("GET", "/", &[("host", "a"), ("content-length", "1x")], HeadError::ContentLength),
        ] {
            assert_eq!(head(method, target, fields), Err(error), "{method} {target} {fields:?}");
        }
    }

    #[test]
    fn owned_head_lends_the_same_head() {
        for wire in [
            "GET /a%20b?c=d HTTP/1.1\r\nHost: example.com\r\nAccept: a\r\nX-Empty:\r\naccept: b\r\n\r\n",
            "POST / HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 7\r\n\r\n",
            "PUT http://a/ HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n",
            "OPTIONS * HTTP/1.0\r\n\r\n",
        ] {
            let mut slots = HeaderSlots::new();
            let parsed = RequestHead::parse(wire.as_bytes(), &HeadLimits::new(), &mut slots).unwrap();
            let owned = parsed.to_owned_head();
            let lent = owned.head();
            assert_eq!((lent.method(), lent.target()), (parsed.method(), parsed.target()), "{wire}");
            assert_eq!((lent.version(), lent.wire_len()), (parsed.version(), wire.len()), "{wire}");
            assert!(lent.headers().eq(parsed.headers()), "{wire}");
            assert!(lent.header("ACCEPT").eq(parsed.header("accept")), "{wire}");
            assert_eq!(lent.content_length(), parsed.content_length(), "{wire}");
            let flags = |head: &RequestHead<'_>| (head.is_chunked(), head.keep_alive());
            assert_eq!(flags(&lent), flags(&parsed), "{wire}");
        }
    }
}
