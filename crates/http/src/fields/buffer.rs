//! Decoded header fields.

use alloc::vec::Vec;
use core::str;

use super::block::{BlockError, ENTRY_OVERHEAD};
use crate::limits::HeadLimits;
use crate::lines::HeaderLine;

/// Buffer for the fields of one header block. A driver lends the same buffer to all its connections, so that an idle
/// connection owns none.
#[derive(Debug, Default)]
pub struct FieldBuffer {
    bytes: Vec<u8>,
    lines: Vec<HeaderLine>,
    limits: HeadLimits,
    /// Start and end of the name of the field that is being decoded.
    open: [usize; 2],
    /// Size of the list, as RFC 9113 section 6.5.2 and RFC 9114 section 4.2.2 define it.
    size: usize,
    too_large: bool,
}

impl FieldBuffer {
    /// Factor by which a header list may exceed [`HeadLimits::max_bytes`] before the connection fails. Up to it the
    /// request alone is rejected.
    pub const EXCESS_MAX: usize = 4;

    /// Creates an empty buffer, which allocates nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            bytes: Vec::new(),
            lines: Vec::new(),
            limits: HeadLimits::new(),
            open: [0; 2],
            size: 0,
            too_large: false,
        }
    }

    pub(crate) fn set_limits(&mut self, limits: HeadLimits) {
        self.limits = limits;
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.lines.clear();
        self.size = 0;
        self.too_large = false;
    }

    /// Whether fields were dropped, since the list exceeds the limits.
    pub(crate) const fn is_too_large(&self) -> bool {
        self.too_large
    }

    pub(crate) fn begin(&mut self) {
        self.open = [self.bytes.len(); 2];
    }

    pub(crate) fn end_name(&mut self) {
        self.open[1] = self.bytes.len();
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Returns name and value of the field that is being decoded.
    pub(crate) fn open_field(&self) -> (&[u8], &[u8]) {
        let [start, name_end] = self.open;
        (&self.bytes[start..name_end], &self.bytes[name_end..])
    }

    /// Stores the field that was decoded, or drops it beyond the limits.
    pub(crate) fn commit(&mut self) -> Result<(), BlockError> {
        let [start, name_end] = self.open;
        let end = self.bytes.len();
        self.size += end - start + ENTRY_OVERHEAD;
        if self.size > self.limits.max_bytes().saturating_mul(Self::EXCESS_MAX) {
            return Err(BlockError::Flood);
        }
        self.too_large |=
            self.size > self.limits.max_bytes() || self.lines.len() >= self.limits.max_headers() + PSEUDO_MAX;
        if self.too_large {
            self.bytes.truncate(start);
            return Ok(());
        }
        let line = HeaderLine::new(start..name_end, name_end..end);
        self.lines.push(line.ok_or(BlockError::Flood)?);
        Ok(())
    }

    /// Replaces the content by one text, which is UTF-8.
    pub(crate) fn set_text(&mut self, text: &[u8]) {
        self.clear();
        self.bytes.extend_from_slice(text);
    }

    /// Returns the text from [`set_text`](Self::set_text).
    pub(crate) fn text(&self) -> &str {
        str::from_utf8(&self.bytes).unwrap_or_default()
    }

    /// Returns the field count.
    pub(crate) fn len(&self) -> usize {
        self.lines.len()
    }

    /// Returns a field by its number.
    pub(crate) fn field(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let line = self.lines.get(index)?;
        Some((line.name(&self.bytes), line.value(&self.bytes)))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.lines.iter().map(|line| (line.name(&self.bytes), line.value(&self.bytes)))
    }

    pub(crate) fn fields_from(&self, first: usize) -> Fields<'_> {
        Fields { bytes: &self.bytes, lines: self.lines.get(first..).unwrap_or_default() }
    }
}

/// A request's pseudo-header fields, which do not count as header lines.
const PSEUDO_MAX: usize = 5;

/// Header or trailer fields, in order. Names are in lower case.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a> {
    bytes: &'a [u8],
    lines: &'a [HeaderLine],
}

impl<'a> Fields<'a> {
    /// Returns all fields.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, &'a [u8])> + use<'a> {
        let bytes = self.bytes;
        // A validated name is a token, which is ASCII.
        self.lines
            .iter()
            .map(|line| (str::from_utf8(line.name(bytes)).unwrap_or_default(), line.value(bytes)))
    }

    /// Returns the values of all fields with this name, which is in lower case.
    pub fn get<'n>(&self, name: &'n str) -> impl Iterator<Item = &'a [u8]> + use<'a, 'n> {
        self.iter().filter(move |(known, _)| *known == name).map(|(_, value)| value)
    }
}
