//! The head of a request: pseudo-header fields and header fields (RFC 9113 section 8, RFC 9114 section 4).

use alloc::vec::Vec;
use core::fmt;
use core::str;

use super::buffer::{FieldBuffer, Fields};
use crate::error::HeadError;
use crate::owned::OwnedHead;
use crate::text::{is_authority, is_field_value, is_target, is_token};
use crate::version::Version;

/// The rule that a malformed message violates (RFC 9113 section 8.1.1, RFC 9114 section 4.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

/// Positions of a valid request's pseudo-header fields, and its declared content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestShape {
    method: Option<usize>,
    scheme: Option<usize>,
    authority: Option<usize>,
    path: Option<usize>,
    protocol: Option<usize>,
    /// The first field that is no pseudo-header.
    fields: usize,
    host: Option<usize>,
    pub(crate) content_length: Option<u64>,
}

impl RequestShape {
    /// Checks a request's fields. `extended` permits extended CONNECT, which our settings announce.
    pub(crate) fn from_fields(fields: &FieldBuffer, extended: bool) -> Result<Self, Malformed> {
        let mut shape = Self { fields: fields.len(), ..Self::default() };
        for (index, (name, value)) in fields.iter().enumerate() {
            if !name.starts_with(b":") {
                shape.fields = shape.fields.min(index);
                shape.add_field(index, name, value)?;
                continue;
            }
            if shape.fields < index {
                return Err(Malformed("pseudo-header field after a header field"));
            }
            let known = match &name[1..] {
                b"method" => &mut shape.method,
                b"scheme" => &mut shape.scheme,
                b"authority" => &mut shape.authority,
                b"path" => &mut shape.path,
                b"protocol" => &mut shape.protocol,
                _ => return Err(Malformed("unknown pseudo-header field")),
            };
            if known.replace(index).is_some() {
                return Err(Malformed("repeated pseudo-header field"));
            }
        }
        shape.check_pseudo(fields, extended)?;
        Ok(shape)
    }

    /// Whether the request has this method.
    pub(crate) fn has_method(&self, fields: &FieldBuffer, method: &[u8]) -> bool {
        self.method.and_then(|index| fields.field(index)).is_some_and(|(_, value)| value == method)
    }

    /// Whether an extended CONNECT request has this protocol.
    pub(crate) fn has_protocol(&self, fields: &FieldBuffer, protocol: &[u8]) -> bool {
        self.protocol.and_then(|index| fields.field(index)).is_some_and(|(_, value)| value == protocol)
    }

    fn add_field(&mut self, index: usize, name: &[u8], value: &[u8]) -> Result<(), Malformed> {
        check_field(name, value)?;
        match name {
            b"host" if self.host.replace(index).is_some() => Err(Malformed("repeated Host")),
            b"host" if !is_authority(value) => Err(Malformed("Host is no authority")),
            b"content-length" => {
                let length = decimal(value).ok_or(Malformed("Content-Length is no number"))?;
                if self.content_length.replace(length).is_some() {
                    return Err(Malformed("repeated Content-Length"));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Checks the pseudo-header fields (RFC 9113 section 8.3.1, RFC 8441 section 4).
    fn check_pseudo(&self, fields: &FieldBuffer, extended: bool) -> Result<(), Malformed> {
        let value = |index: Option<usize>| Some(fields.field(index?)?.1);
        let method = value(self.method).filter(|method| is_token(method));
        let method = method.ok_or(Malformed(":method is missing or no token"))?;
        if value(self.authority).is_some_and(|authority| !is_authority(authority)) {
            return Err(Malformed(":authority is malformed"));
        }
        // The same requests in HTTP/1.1 carry one of both: different values would hide a request from a filter.
        if let (Some(authority), Some(host)) = (value(self.authority), value(self.host))
            && !authority.eq_ignore_ascii_case(host)
        {
            return Err(Malformed("Host differs from :authority"));
        }
        if let Some(protocol) = value(self.protocol) {
            if !extended {
                return Err(Malformed(":protocol without SETTINGS_ENABLE_CONNECT_PROTOCOL"));
            }
            if method != b"CONNECT" || !is_token(protocol) || self.authority.is_none() {
                return Err(Malformed(":protocol needs CONNECT and :authority"));
            }
        } else if method == b"CONNECT" {
            let has_others = self.scheme.is_some() || self.path.is_some();
            let names_port = value(self.authority).is_some_and(|authority| {
                let colon = authority.iter().rposition(|byte| *byte == b':').unwrap_or(0);
                colon > 0 && colon + 1 < authority.len() && !authority.ends_with(b"]")
            });
            return if names_port && !has_others { Ok(()) } else { Err(Malformed("malformed CONNECT")) };
        }
        let scheme = value(self.scheme).filter(|scheme| is_scheme(scheme));
        let scheme = scheme.ok_or(Malformed(":scheme is missing or malformed"))?;
        let path = value(self.path).ok_or(Malformed(":path is missing"))?;
        let is_asterisk = path == b"*" && method == b"OPTIONS";
        if !is_asterisk && (!path.starts_with(b"/") || !is_target(path)) {
            return Err(Malformed(":path is malformed"));
        }
        let is_http = scheme.eq_ignore_ascii_case(b"http") || scheme.eq_ignore_ascii_case(b"https");
        let host = value(self.authority).or_else(|| value(self.host));
        // An http or https URL has a host (RFC 9110 section 4.2.1).
        if is_http && host.is_none_or(|host| host.is_empty() || host.starts_with(b":")) {
            return Err(Malformed("request has no host"));
        }
        Ok(())
    }
}

/// Checks trailer fields (RFC 9113 section 8.1): no pseudo-header field, and no framing.
pub(crate) fn check_trailers(fields: &FieldBuffer) -> Result<(), Malformed> {
    fields.iter().try_for_each(|(name, value)| {
        check_field(name, value)?;
        if name == b"content-length" || name == b"host" {
            return Err(Malformed("trailer field changes the framing or the route"));
        }
        Ok(())
    })
}

/// Checks a header or trailer field (RFC 9113 sections 8.2.1 and 8.2.2).
pub(super) fn check_field(name: &[u8], value: &[u8]) -> Result<(), Malformed> {
    // A token contains no colon: a pseudo-header field in trailers fails here.
    if !is_token(name) || name.iter().any(u8::is_ascii_uppercase) {
        return Err(Malformed("field name is no token in lower case"));
    }
    let has_blanks = matches!(value, [b' ' | b'\t', ..] | [.., b' ' | b'\t']);
    if !is_field_value(value) || has_blanks {
        return Err(Malformed("field value with control characters or surrounding spaces"));
    }
    if is_connection_specific(name) || name == b"te" && !value.eq_ignore_ascii_case(b"trailers") {
        return Err(Malformed("connection-specific field"));
    }
    Ok(())
}

/// Whether an HTTP/1.1 field has no meaning in HTTP/2 and HTTP/3 (RFC 9113 section 8.2.2).
pub(super) fn is_connection_specific(name: &[u8]) -> bool {
    matches!(name, b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding" | b"upgrade")
}

fn is_scheme(scheme: &[u8]) -> bool {
    scheme.first().is_some_and(u8::is_ascii_alphabetic)
        && scheme.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'))
}

/// Digits only, at most 64 bits.
pub(super) fn decimal(value: &[u8]) -> Option<u64> {
    let is_number = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    str::from_utf8(value).ok().filter(|_| is_number)?.parse().ok()
}

/// A valid request head, borrowed from its [`FieldBuffer`].
#[derive(Clone, Copy)]
pub struct RequestFields<'a> {
    fields: &'a FieldBuffer,
    shape: RequestShape,
    version: Version,
}

impl<'a> RequestFields<'a> {
    pub(crate) const fn new(fields: &'a FieldBuffer, shape: RequestShape, version: Version) -> Self {
        Self { fields, shape, version }
    }

    fn text(&self, index: Option<usize>) -> Option<&'a str> {
        // A valid pseudo-header field is ASCII.
        str::from_utf8(self.fields.field(index?)?.1).ok()
    }

    /// The method, case-sensitive.
    #[must_use]
    pub fn method(&self) -> &'a str {
        self.text(self.shape.method).unwrap_or_default()
    }

    /// The scheme; `None` in a CONNECT request without [`protocol`](Self::protocol).
    #[must_use]
    pub fn scheme(&self) -> Option<&'a str> {
        self.text(self.shape.scheme)
    }

    /// The requested host and port: `:authority`, else `Host`.
    #[must_use]
    pub fn authority(&self) -> Option<&'a str> {
        self.text(self.shape.authority.or(self.shape.host))
    }

    /// Path and query; `None` in a CONNECT request without [`protocol`](Self::protocol).
    #[must_use]
    pub fn target(&self) -> Option<&'a str> {
        self.text(self.shape.path)
    }

    /// An extended CONNECT request's protocol (RFC 8441 section 4): `websocket`.
    #[must_use]
    pub fn protocol(&self) -> Option<&'a str> {
        self.text(self.shape.protocol)
    }

    /// The declared content length. DATA is checked against it.
    #[must_use]
    pub const fn content_length(&self) -> Option<u64> {
        self.shape.content_length
    }

    /// The header fields, without pseudo-header fields.
    #[must_use]
    pub fn fields(&self) -> Fields<'a> {
        self.fields.fields_from(self.shape.fields)
    }

    /// Copies the head in the form of HTTP/1.1: `Host` from `:authority`, and one `Cookie` line (RFC 9113 section
    /// 8.2.3). An extended CONNECT request becomes GET, as its handshake over HTTP/1.1: route it by its path, and keep
    /// [`protocol`](Self::protocol) beside it.
    ///
    /// # Errors
    /// [`HeadError`], as for the same head in HTTP/1.1.
    pub fn to_owned_head(&self) -> Result<OwnedHead, HeadError> {
        let target = self.target().or_else(|| self.authority()).unwrap_or_default();
        let method = if self.protocol().is_some() { "GET" } else { self.method() };
        let cookies: Vec<&[u8]> = self.fields().get("cookie").collect();
        let cookies = cookies.join(&b"; "[..]);
        let mut is_first_cookie = true;
        let host = self.authority().map(|authority| ("host", authority.as_bytes()));
        let rest = self.fields().iter().filter_map(|(name, value)| match name {
            "host" => None,
            "cookie" => core::mem::take(&mut is_first_cookie).then_some((name, &cookies[..])),
            _ => Some((name, value)),
        });
        OwnedHead::from_fields(method, target, self.version, host.into_iter().chain(rest))
    }
}

/// Omits the header fields, which may contain secrets.
impl fmt::Debug for RequestFields<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("RequestFields");
        out.field("method", &self.method()).field("target", &self.target()).finish_non_exhaustive()
    }
}
