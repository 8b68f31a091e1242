//! A response's headers.

use alloc::borrow::Cow;
use alloc::vec::Vec;

/// Headers in insertion order. A name may occur several times, and is compared regardless of case.
///
/// ```
/// use sinews_http::HeaderMap;
///
/// let mut headers = HeaderMap::new();
/// headers.append("Set-Cookie", "a=1");
/// headers.append("Set-Cookie", "b=2");
/// headers.set("ETag", "\"1\"");
/// assert_eq!(headers.get("set-cookie").count(), 2);
/// ```
#[derive(Clone, Debug, Default)]
pub struct HeaderMap {
    entries: Vec<(Cow<'static, str>, Cow<'static, str>)>,
}

impl HeaderMap {
    /// Creates an empty list, which allocates nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { entries: Vec::new() }
    }

    /// Adds a header line. Validity is checked when the head is written.
    pub fn append(&mut self, name: impl Into<Cow<'static, str>>, value: impl Into<Cow<'static, str>>) {
        self.entries.push((name.into(), value.into()));
    }

    /// Replaces all lines with this name by one.
    pub fn set(&mut self, name: impl Into<Cow<'static, str>>, value: impl Into<Cow<'static, str>>) {
        let name = name.into();
        self.entries.retain(|(known, _)| !known.eq_ignore_ascii_case(&name));
        self.append(name, value);
    }

    /// Returns the values on each line with this name, in order.
    pub fn get(&self, name: &str) -> impl Iterator<Item = &str> {
        self.entries
            .iter()
            .filter(move |(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| &**value)
    }

    /// Returns all lines in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.entries.iter().map(|(name, value)| (&**name, &**value))
    }
}

impl<N: Into<Cow<'static, str>>, V: Into<Cow<'static, str>>> FromIterator<(N, V)> for HeaderMap {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(lines: I) -> Self {
        Self { entries: lines.into_iter().map(|(name, value)| (name.into(), value.into())).collect() }
    }
}
