//! The application's fields on their way to an encoder.

use alloc::borrow::Cow;

use super::request::is_connection_specific;
use crate::text::{is_field_value, is_token, trim};

/// Passes fields on with names in lower case. Omits fields that are invalid or that HTTP/2 and HTTP/3 do not have, such as
/// `Connection`.
pub(crate) fn for_each_field<'f>(
    fields: impl IntoIterator<Item = (&'f str, &'f str)>,
    mut encode: impl FnMut(&[u8], &[u8]),
) {
    for (name, value) in fields {
        let value = trim(value.as_bytes());
        if !is_token(name.as_bytes()) || !is_field_value(value) {
            continue;
        }
        let mut short = [0; NAME_COPY_MAX];
        let lower = lower_case(name.as_bytes(), &mut short);
        if !is_connection_specific(&lower) {
            encode(&lower, value);
        }
    }
}

/// Whether a field carries a secret, which no intermediary may index (RFC 7541 section 7.1.3, RFC 9204 section 7.1.3).
pub(crate) fn is_secret(name: &[u8]) -> bool {
    matches!(name, b"authorization" | b"cookie" | b"proxy-authorization" | b"set-cookie")
}

/// Digits of a status between 100 and 999.
pub(crate) fn status_digits(status: u16) -> [u8; 3] {
    [status / 100, status / 10 % 10, status % 10].map(|digit| b'0' + digit as u8)
}

/// Names up to this length are converted to lower case without an allocation.
const NAME_COPY_MAX: usize = 64;

fn lower_case<'n>(name: &'n [u8], short: &'n mut [u8; NAME_COPY_MAX]) -> Cow<'n, [u8]> {
    if !name.iter().any(u8::is_ascii_uppercase) {
        return Cow::Borrowed(name);
    }
    let Some(copy) = short.get_mut(..name.len()) else { return Cow::Owned(name.to_ascii_lowercase()) };
    copy.copy_from_slice(name);
    copy.make_ascii_lowercase();
    Cow::Borrowed(copy)
}
