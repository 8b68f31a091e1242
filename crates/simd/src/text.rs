//! Text that is validated once and shared by reference count.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::borrow::Borrow;
use core::fmt;
use core::hash::{Hash, Hasher};
use core::ops::Deref;

use bytes::Bytes;

use crate::{Utf8Error, validate_utf8};

/// UTF-8 text in shared memory: [`Bytes`] that are known to be text. A clone increments a reference count.
/// Reading it as a `str` is free, since it was validated on creation.
///
/// ```
/// use sinews_simd::Utf8Bytes;
///
/// let text = Utf8Bytes::from("Grüße");
/// let shared = text.clone();
/// assert_eq!(shared.len(), 7); // a `str` in all its methods
/// assert!(Utf8Bytes::try_from(vec![0xff]).is_err());
/// ```
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Utf8Bytes(Bytes);

impl Utf8Bytes {
    /// Static text: no allocation, no reference count.
    #[must_use]
    pub const fn from_static(text: &'static str) -> Self {
        Self(Bytes::from_static(text.as_bytes()))
    }

    /// The text.
    #[must_use]
    #[inline]
    pub fn as_str(&self) -> &str {
        // SAFETY: every constructor takes a `str` or checks the bytes, `Bytes` never change, and the field is
        // private to this module.
        unsafe { core::str::from_utf8_unchecked(&self.0) }
    }

    /// The same memory as bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    /// The same memory as bytes.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        self.0
    }
}

impl Deref for Utf8Bytes {
    type Target = str;

    #[inline]
    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl AsRef<str> for Utf8Bytes {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl AsRef<[u8]> for Utf8Bytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Borrow<str> for Utf8Bytes {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

/// Hashes like `str`, as [`Borrow`] requires.
impl Hash for Utf8Bytes {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl fmt::Debug for Utf8Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

impl fmt::Display for Utf8Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl TryFrom<Bytes> for Utf8Bytes {
    type Error = Utf8Error;

    #[inline]
    fn try_from(bytes: Bytes) -> Result<Self, Utf8Error> {
        validate_utf8(&bytes)?;
        Ok(Self(bytes))
    }
}

impl TryFrom<Vec<u8>> for Utf8Bytes {
    type Error = Utf8Error;

    fn try_from(bytes: Vec<u8>) -> Result<Self, Utf8Error> {
        Bytes::from(bytes).try_into()
    }
}

impl From<String> for Utf8Bytes {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

/// Copies.
impl From<&str> for Utf8Bytes {
    fn from(text: &str) -> Self {
        Self(Bytes::copy_from_slice(text.as_bytes()))
    }
}

/// Copies.
impl From<&String> for Utf8Bytes {
    fn from(text: &String) -> Self {
        text.as_str().into()
    }
}

impl From<Utf8Bytes> for Bytes {
    fn from(text: Utf8Bytes) -> Self {
        text.0
    }
}

/// Copies.
impl From<Utf8Bytes> for String {
    fn from(text: Utf8Bytes) -> Self {
        text.as_str().into()
    }
}

/// Copies.
impl From<Utf8Bytes> for Box<str> {
    fn from(text: Utf8Bytes) -> Self {
        text.as_str().into()
    }
}

impl From<Box<str>> for Utf8Bytes {
    fn from(text: Box<str>) -> Self {
        String::from(text).into()
    }
}

impl PartialEq<str> for Utf8Bytes {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for Utf8Bytes {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl PartialEq<String> for Utf8Bytes {
    fn eq(&self, other: &String) -> bool {
        self.as_str() == other
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString as _;
    use alloc::vec;
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn only_valid_utf8_is_accepted_unchanged() {
        let text = "a, ä, 世, 🦀";
        for made in [Utf8Bytes::from(text), Utf8Bytes::from(text.to_string()), Utf8Bytes::from_static(text)] {
            assert_eq!(made, text);
            assert_eq!(Utf8Bytes::try_from(made.clone().into_bytes()).unwrap(), made);
            assert_eq!(String::from(made), text);
        }
        for bad in [vec![0xff], vec![0xc0, 0x80], vec![0xed, 0xa0, 0x80], text.as_bytes()[..4].to_vec()] {
            assert!(Utf8Bytes::try_from(bad).is_err());
        }
    }

    #[test]
    fn lookup_by_str_finds_utf8_bytes() {
        let set = HashSet::from([Utf8Bytes::from("key")]);
        assert!(set.contains("key"));
    }

    #[test]
    fn clones_share_memory() {
        let text = Utf8Bytes::from("shared".to_string());
        assert_eq!(text.as_ptr(), text.clone().as_ptr());
    }
}
