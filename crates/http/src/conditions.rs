//! Conditional requests and ranges (RFC 9110 sections 13 and 14).

use std::time::{SystemTime, UNIX_EPOCH};

use crate::head::RequestHead;

/// A representation's validators.
#[derive(Clone, Debug)]
pub struct Validators<'a> {
    etag: &'a str,
    modified: Option<SystemTime>,
}

/// Result of a request's conditions, evaluated in the order of RFC 9110 section 13.2.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "each verdict has an answer of its own")]
pub enum Verdict {
    /// Answer with the representation.
    Proceed,
    /// Answer with 304.
    NotModified,
    /// Answer with 412.
    Failed,
}

/// Range of a representation: the first byte and the byte count.
pub type ByteRange = (u64, u64);

/// Part of a representation that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "each variant has an answer of its own")]
pub enum RequestedRange {
    /// Answer with 200 and the whole representation.
    Whole,
    /// Answer with 206.
    Part(ByteRange),
    /// Answer with 416.
    Unsatisfiable,
}

impl<'a> Validators<'a> {
    /// Creates the validators of a representation. `etag` includes its quotes, and is strong: other bytes have
    /// another tag. Without `modified`, conditions on dates are ignored (RFC 9110 section 13.1.3).
    #[must_use]
    pub const fn new(etag: &'a str, modified: Option<SystemTime>) -> Self {
        Self { etag, modified }
    }

    /// Evaluates the conditions of a GET or HEAD.
    #[must_use]
    pub fn check(&self, head: &RequestHead<'_>) -> Verdict {
        if let Some(matches) = self.is_listed(head, "if-match", false) {
            if !matches {
                return Verdict::Failed;
            }
        } else if date(head, "if-unmodified-since").zip(self.seconds()).is_some_and(|(since, at)| at > since)
        {
            return Verdict::Failed;
        }
        let unchanged = self
            .is_listed(head, "if-none-match", true)
            .unwrap_or_else(|| self.is_unmodified_since(date(head, "if-modified-since")));
        if unchanged { Verdict::NotModified } else { Verdict::Proceed }
    }

    /// Returns the part of `len` bytes that a GET asks for. One range is served. Several ranges are answered with the
    /// whole representation, as section 14.2 permits: reassembly costs more than it saves.
    #[must_use]
    pub fn requested_range(&self, head: &RequestHead<'_>, len: u64) -> RequestedRange {
        let mut ranges = head.header("range");
        let (Some(range), None) = (ranges.next(), ranges.next()) else { return RequestedRange::Whole };
        if head.method() != "GET" || !self.is_same(head) {
            return RequestedRange::Whole;
        }
        part(range, len)
    }

    /// Evaluates `If-Range`: whether the client's partial copy is of this version.
    fn is_same(&self, head: &RequestHead<'_>) -> bool {
        let Some(value) = head.header("if-range").next() else { return true };
        value == self.etag.as_bytes()
            || date(head, "if-range").is_some_and(|since| Some(since) == self.seconds())
    }

    /// Returns whether a list of entity tags contains this tag; `None` without a list.
    fn is_listed(&self, head: &RequestHead<'_>, name: &str, weakly: bool) -> Option<bool> {
        let mut lines = head.header(name).peekable();
        lines.peek()?;
        Some(lines.any(|line| {
            line == b"*" || tags(line).any(|(weak, tag)| (weakly || !weak) && tag == self.etag.as_bytes())
        }))
    }

    fn is_unmodified_since(&self, date: Option<u64>) -> bool {
        date.zip(self.seconds()).is_some_and(|(since, at)| at <= since)
    }

    /// Returns the date in whole seconds: HTTP dates have no fractions.
    fn seconds(&self) -> Option<u64> {
        self.modified.map(seconds)
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Parses a date header; an invalid date is ignored.
fn date(head: &RequestHead<'_>, name: &str) -> Option<u64> {
    let value = std::str::from_utf8(head.header(name).next()?).ok()?;
    httpdate::parse_http_date(value).ok().map(seconds)
}

/// Splits a list of entity tags, with their quotes, and whether they are weak. An invalid tag ends the list.
fn tags(mut list: &[u8]) -> impl Iterator<Item = (bool, &[u8])> {
    std::iter::from_fn(move || {
        let start = list.iter().position(|byte| !b", \t".contains(byte))?;
        list = &list[start..];
        let weak = list.starts_with(b"W/");
        list = &list[if weak { 2 } else { 0 }..];
        if list.first() != Some(&b'"') {
            return None;
        }
        let end = 2 + list[1..].iter().position(|&byte| byte == b'"')?;
        let (tag, rest) = list.split_at(end);
        list = rest;
        Some((weak, tag))
    })
}

/// Parses one byte range (RFC 9110 section 14.1.2). A malformed range is ignored.
fn part(range: &[u8], len: u64) -> RequestedRange {
    let range = std::str::from_utf8(range).ok().and_then(|range| range.split_once('='));
    let Some((_, spec)) = range.filter(|(unit, _)| unit.eq_ignore_ascii_case("bytes")) else {
        return RequestedRange::Whole;
    };
    let Some((first, last)) = spec.trim().split_once('-') else { return RequestedRange::Whole };
    let (first, last) = match (position(first), position(last)) {
        (Some(first), Some(last)) if first <= last => (first, last),
        (Some(first), None) if last.is_empty() => (first, u64::MAX),
        // A suffix range: the last bytes.
        (None, Some(0)) if first.is_empty() => return RequestedRange::Unsatisfiable,
        (None, Some(count)) if first.is_empty() => (len.saturating_sub(count), u64::MAX),
        _ => return RequestedRange::Whole,
    };
    if first >= len {
        return RequestedRange::Unsatisfiable;
    }
    RequestedRange::Part((first, last.min(len - 1) - first + 1))
}

/// Parses digits. Values of more than 64 bits saturate.
fn position(digits: &str) -> Option<u64> {
    let all = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    all.then(|| digits.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::HeaderSlots;
    use crate::limits::HeadLimits;

    use super::*;

    const ETAG: &str = "\"a,b\"";
    /// The date of the RFC's example, and a fraction.
    const MODIFIED: Duration = Duration::from_millis(784_111_777_500);
    const SAME: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const BEFORE: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
    const BEHIND: &str = "Sun, 06 Nov 1994 08:49:38 GMT";

    fn with<T>(method: &str, lines: &str, ask: impl FnOnce(&Validators<'_>, &RequestHead<'_>) -> T) -> T {
        let wire = format!("{method} / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
        let mut slots = HeaderSlots::new();
        let head = RequestHead::parse(wire.as_bytes(), &HeadLimits::new(), &mut slots).unwrap();
        ask(&Validators::new(ETAG, Some(UNIX_EPOCH + MODIFIED)), &head)
    }

    fn check(lines: &str) -> Verdict {
        with("GET", lines, |validators, head| validators.check(head))
    }

    #[test]
    fn conditions_are_evaluated_in_rfc_order() {
        use Verdict::{Failed, NotModified, Proceed};
        let dated = |name: &str, date: &str| format!("{name}: {date}\r\n");
        for (lines, expected) in [
            (String::new(), Proceed),
            ("If-None-Match: \"a,b\"\r\n".into(), NotModified),
            ("If-None-Match: \"x\", W/\"a,b\"\r\n".into(), NotModified),
            ("If-None-Match: \"x\"\r\nIf-None-Match:\"a,b\"\r\n".into(), NotModified),
            ("If-None-Match: *\r\n".into(), NotModified),
            ("If-None-Match: \"a\", \"b\"\r\n".into(), Proceed),
            ("If-None-Match: a,b\r\n".into(), Proceed),
            ("If-None-Match: \"a,b\r\n".into(), Proceed),
            (dated("If-Modified-Since", SAME), NotModified),
            (dated("If-Modified-Since", BEHIND), NotModified),
            (dated("If-Modified-Since", BEFORE), Proceed),
            (dated("If-Modified-Since", "yesterday"), Proceed),
            (format!("If-None-Match: \"x\"\r\n{}", dated("If-Modified-Since", SAME)), Proceed),
            ("If-Match: \"a,b\"\r\n".into(), Proceed),
            ("If-Match: *\r\n".into(), Proceed),
            ("If-Match: W/\"a,b\"\r\n".into(), Failed),
            ("If-Match: \"x\"\r\n".into(), Failed),
            (dated("If-Unmodified-Since", SAME), Proceed),
            (dated("If-Unmodified-Since", BEFORE), Failed),
            (dated("If-Unmodified-Since", "yesterday"), Proceed),
            (format!("If-Match: \"a,b\"\r\n{}", dated("If-Unmodified-Since", BEFORE)), Proceed),
            ("If-Match: \"a,b\"\r\nIf-None-Match: \"a,b\"\r\n".into(), NotModified),
            ("If-Match: \"x\"\r\nIf-None-Match: \"a,b\"\r\n".into(), Failed),
        ] {
            assert_eq!(check(&lines), expected, "{lines}");
        }
    }

    #[test]
    fn one_range_is_served() {
        let wanted = |range: &str, len| {
            with("GET", &format!("Range: {range}\r\n"), |validators, head| {
                validators.requested_range(head, len)
            })
        };
        for (range, expected) in [
            ("bytes=0-0", RequestedRange::Part((0, 1))),
            ("bytes=2-4", RequestedRange::Part((2, 3))),
            ("bytes=9-", RequestedRange::Part((9, 1))),
            ("bytes=0-9", RequestedRange::Part((0, 10))),
            ("bytes=5-99999999999999999999999", RequestedRange::Part((5, 5))),
            ("bytes=-3", RequestedRange::Part((7, 3))),
            ("bytes=-300", RequestedRange::Part((0, 10))),
            ("bytes=10-", RequestedRange::Unsatisfiable),
            ("bytes=99999999999999999999999-", RequestedRange::Unsatisfiable),
            ("bytes=-0", RequestedRange::Unsatisfiable),
            ("bytes=4-2", RequestedRange::Whole),
            ("bytes=", RequestedRange::Whole),
            ("bytes=-", RequestedRange::Whole),
            ("bytes=a-b", RequestedRange::Whole),
            ("bytes=+1-2", RequestedRange::Whole),
            ("bytes=0-1,3-4", RequestedRange::Whole),
            ("lines=0-1", RequestedRange::Whole),
        ] {
            assert_eq!(wanted(range, 10), expected, "{range}");
        }
        for range in ["bytes=0-", "bytes=0-0", "bytes=-5"] {
            assert_eq!(wanted(range, 0), RequestedRange::Unsatisfiable, "{range} of nothing");
        }
    }

    #[test]
    fn range_applies_only_to_the_version_the_client_has() {
        let wanted = |method, lines: &str| {
            let lines = format!("Range: bytes=0-0\r\n{lines}");
            with(method, &lines, |validators, head| validators.requested_range(head, 10))
                != RequestedRange::Whole
        };
        assert!(wanted("GET", "") && !wanted("HEAD", ""));
        assert!(wanted("GET", "If-Range: \"a,b\"\r\n") && !wanted("GET", "If-Range: W/\"a,b\"\r\n"));
        assert!(!wanted("GET", "If-Range: \"x\"\r\n"));
        for (date, expected) in [(SAME, true), (BEFORE, false), (BEHIND, false), ("yesterday", false)] {
            assert_eq!(wanted("GET", &format!("If-Range: {date}\r\n")), expected, "{date}");
        }
        assert!(!wanted("GET", "Range: bytes=0-1\r\n"), "two lines are several ranges");
    }
}
