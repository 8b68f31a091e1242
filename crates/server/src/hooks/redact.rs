//! Removes credentials from texts before they are logged or printed.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;
use rustls::pki_types::pem;

/// Query parameters with credentials, in lower case.
const SECRET: &[&str] = &[
    "token",
    "access_token",
    "refresh_token",
    "id_token",
    "jwt",
    "authorization",
    "api_key",
    "apikey",
    "password",
    "secret",
    "signature",
];

const REDACTED: &str = "***";

/// Replaces the values of credentials in the query of a request target or a URL by `***`, as
/// [`Router::access_log`](crate::Router::access_log) does: for other logs and outputs.
///
/// Credentials are `token`, `access_token`, `refresh_token`, `id_token`, `jwt`, `authorization`, `api_key`, `apikey`,
/// `password`, `secret` and `signature`. Names are compared percent-decoded and in any case.
///
/// ```
/// assert_eq!(sinews_server::redact_credentials("/ws?x=1&token=a.b.c"), "/ws?x=1&token=***");
/// ```
#[must_use]
pub fn redact_credentials(target: &str) -> Cow<'_, str> {
    let Some((path, query)) = target.split_once('?') else { return target.into() };
    let is_separator = |char| matches!(char, '&' | ';');
    if !query.split(is_separator).any(is_secret) {
        return target.into();
    }
    let mut shown = String::with_capacity(target.len());
    shown.push_str(path);
    shown.push('?');
    for pair in query.split_inclusive(is_separator) {
        let (pair, separator) = match pair.strip_suffix(is_separator) {
            Some(before) => (before, &pair[before.len()..]),
            None => (pair, ""),
        };
        match pair.split_once('=').filter(|_| is_secret(pair)) {
            Some((name, _)) => shown.extend([name, "=", REDACTED]),
            None => shown.push_str(pair),
        }
        shown.push_str(separator);
    }
    shown.into()
}

/// Replaces the user and the password of each URL in a text by `***`, and the values of credentials in its query as
/// [`redact_credentials`] does: for errors that repeat a setting. A URL ends at a blank or a quotation mark.
///
/// ```
/// assert_eq!(sinews_server::redact_urls("no host: redis://ann:b@c@one"), "no host: redis://***@one");
/// ```
#[must_use]
pub fn redact_urls(text: &str) -> Cow<'_, str> {
    if !text.contains("://") {
        return text.into();
    }
    let is_end = |char: char| char.is_whitespace() || matches!(char, '"' | '\'' | '`');
    let mut shown = String::with_capacity(text.len());
    for word in text.split_inclusive(is_end) {
        let Some((scheme, rest)) = word.split_once("://") else {
            shown.push_str(word);
            continue;
        };
        shown.extend([scheme, "://"]);
        // A password may have every character that ends an authority.
        let behind = rest.rsplit_once('@').map(|(_, behind)| behind);
        if behind.is_some() {
            shown.extend([REDACTED, "@"]);
        }
        shown.push_str(&redact_credentials(behind.unwrap_or(rest)));
    }
    shown.into()
}

/// Describes an error of PEM without the content, which may be a private key. The error's own text repeats it.
#[must_use]
pub fn describe_pem_error(error: &pem::Error) -> String {
    match error {
        pem::Error::MissingSectionEnd { .. } => "a section of PEM has no END line".to_owned(),
        pem::Error::IllegalSectionStart { .. } => {
            "the BEGIN line of a section of PEM does not end in dashes and a line break".to_owned()
        }
        pem::Error::Base64Decode(_) => "a section of PEM is not base64".to_owned(),
        pem::Error::NoItemsFound => "there is no such section in the PEM".to_owned(),
        pem::Error::Io(error) => error.to_string(),
        _ => "invalid PEM".to_owned(),
    }
}

fn is_secret(pair: &str) -> bool {
    let name = pair.split_once('=').map_or(pair, |(name, _)| name);
    let name = percent_decode_str(name).decode_utf8_lossy();
    SECRET.iter().any(|secret| name.trim_matches('+').trim().eq_ignore_ascii_case(secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_in_a_query_are_redacted() {
        for (target, shown) in [
            ("/ws?token=a.b.c", "/ws?token=***"),
            ("/ws?x=1&token=a.b.c&y=2", "/ws?x=1&token=***&y=2"),
            ("/ws?token=a&token=b", "/ws?token=***&token=***"),
            ("/ws?TOKEN=a;Access_Token=b", "/ws?TOKEN=***;Access_Token=***"),
            ("/ws?tok%65n=a", "/ws?tok%65n=***"),
            ("/ws?token=a=b?token=c", "/ws?token=***"),
            ("/ws?token", "/ws?token"),
            ("/ws?tokens=a&key=b", "/ws?tokens=a&key=b"),
            ("/token=a", "/token=a"),
            ("/a?", "/a?"),
            ("*", "*"),
        ] {
            assert_eq!(redact_credentials(target), shown, "{target}");
        }
    }
}
