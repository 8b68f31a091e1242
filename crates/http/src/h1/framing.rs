use crate::error::HeadError;
use crate::lines::HeaderLine;
use crate::text::{elements, is_authority, lists_token};
use crate::version::Version;

/// The delimitation of a request body, and whether another request may follow it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyFraming {
    pub(crate) content_length: Option<u64>,
    pub(crate) chunked: bool,
    pub(crate) keep_alive: bool,
    /// `Upgrade` lists `websocket`.
    pub(crate) websocket: bool,
    /// `Expect: 100-continue` is present.
    pub(crate) expects_continue: bool,
}

impl BodyFraming {
    /// One pass over the headers; most are skipped by the length of their name.
    pub(crate) fn from_request(
        version: Version,
        bytes: &[u8],
        lines: &[HeaderLine],
    ) -> Result<Self, HeadError> {
        let mut fields = FramingHeaders::default();
        for line in lines {
            fields.add(line.name(bytes), line.value(bytes))?;
        }
        let hosts_needed = usize::from(version != Version::Http10);
        if fields.hosts > 1 || fields.hosts < hosts_needed {
            return Err(HeadError::Host);
        }
        // A request with both fields may be request smuggling (RFC 9112 section 6.3), and HTTP/1.0 has no
        // transfer codings.
        if fields.coded && (fields.content_length.is_some() || version == Version::Http10) {
            return Err(HeadError::TransferEncoding);
        }
        if fields.coded && !fields.chunked {
            return Err(HeadError::TransferEncoding);
        }
        if fields.coded && fields.codings > 1 {
            return Err(HeadError::UnknownTransferCoding);
        }
        let keep_alive = !fields.close && (version != Version::Http10 || fields.keep_alive);
        Ok(Self {
            content_length: fields.content_length,
            chunked: fields.chunked,
            keep_alive,
            websocket: fields.websocket && version != Version::Http10,
            expects_continue: fields.expects_continue && version != Version::Http10,
        })
    }
}

#[derive(Default)]
struct FramingHeaders {
    hosts: usize,
    close: bool,
    keep_alive: bool,
    websocket: bool,
    expects_continue: bool,
    content_length: Option<u64>,
    coded: bool,
    codings: usize,
    /// Whether the last coding is `chunked`.
    chunked: bool,
}

impl FramingHeaders {
    fn add(&mut self, name: &[u8], value: &[u8]) -> Result<(), HeadError> {
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        match name.len() {
            4 if is("host") => {
                self.hosts += 1;
                if !is_authority(value) {
                    return Err(HeadError::Host);
                }
            }
            6 if is("expect") => self.expects_continue |= value.eq_ignore_ascii_case(b"100-continue"),
            7 if is("upgrade") => self.websocket |= lists_token([value], "websocket"),
            10 if is("connection") => {
                for option in elements(value) {
                    self.close |= option.eq_ignore_ascii_case(b"close");
                    self.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
                }
            }
            14 if is("content-length") => {
                if self.content_length.is_some() {
                    return Err(HeadError::ContentLength);
                }
                self.content_length = Some(decimal(value).ok_or(HeadError::ContentLength)?);
            }
            17 if is("transfer-encoding") => {
                self.coded = true;
                for coding in elements(value) {
                    // No coding may follow `chunked` (RFC 9112 section 6.1).
                    if self.chunked {
                        return Err(HeadError::TransferEncoding);
                    }
                    self.codings += 1;
                    self.chunked = coding.eq_ignore_ascii_case(b"chunked");
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Digits only: no sign, no list, no space, nothing over 64 bits.
fn decimal(value: &[u8]) -> Option<u64> {
    if value.is_empty() {
        return None;
    }
    value.iter().try_fold(0_u64, |number, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}
