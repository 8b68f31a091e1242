//! The head of a response (RFC 9113 section 8.3.2, RFC 9114 section 4.3.2).

use core::fmt;

use super::buffer::{FieldBuffer, Fields};
use super::request::{Malformed, check_field, decimal};

/// A valid response's status and declared content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResponseShape {
    pub(crate) status: u16,
    pub(crate) content_length: Option<u64>,
}

impl ResponseShape {
    /// Checks a response's fields.
    pub(crate) fn from_fields(fields: &FieldBuffer) -> Result<Self, Malformed> {
        let mut fields = fields.iter();
        let status = match fields.next() {
            Some((b":status", digits)) if digits.len() == 3 => decimal(digits),
            _ => None,
        };
        let status = status.filter(|status| *status >= 100 && *status != 101);
        let status = status.ok_or(Malformed(":status is missing or malformed"))? as u16;
        let mut content_length = None;
        for (name, value) in fields {
            // A second pseudo-header field is no token.
            check_field(name, value)?;
            if name == b"content-length" {
                let length = decimal(value).ok_or(Malformed("Content-Length is no number"))?;
                if content_length.replace(length).is_some() {
                    return Err(Malformed("repeated Content-Length"));
                }
            }
        }
        Ok(Self { status, content_length })
    }

    pub(crate) const fn is_interim(self) -> bool {
        self.status < 200
    }
}

/// A valid response head, borrowed from its [`FieldBuffer`].
#[derive(Clone, Copy)]
pub struct ResponseFields<'a> {
    fields: &'a FieldBuffer,
    shape: ResponseShape,
}

impl<'a> ResponseFields<'a> {
    pub(crate) const fn new(fields: &'a FieldBuffer, shape: ResponseShape) -> Self {
        Self { fields, shape }
    }

    /// The status code. One below 200 is interim: another head follows.
    #[must_use]
    pub const fn status(&self) -> u16 {
        self.shape.status
    }

    /// The declared content length.
    #[must_use]
    pub const fn content_length(&self) -> Option<u64> {
        self.shape.content_length
    }

    /// The header fields, without `:status`.
    #[must_use]
    pub fn fields(&self) -> Fields<'a> {
        self.fields.fields_from(1)
    }
}

/// Omits the header fields, which may contain secrets.
impl fmt::Debug for ResponseFields<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFields").field("status", &self.status()).finish_non_exhaustive()
    }
}
