//! URLs as people type and read them.

use std::borrow::Cow;

/// A URL as a person types it: without a scheme it is `ws://`, and without a host, the host is this machine.
pub fn with_scheme(url: &str) -> Cow<'_, str> {
    let end = url.find(['/', '?', '#']).unwrap_or(url.len());
    let has_scheme = url.contains("://") || url[..end].is_empty();
    match (has_scheme, url.strip_prefix(':')) {
        (true, _) => url.into(),
        (false, Some(rest)) => format!("ws://localhost:{rest}").into(),
        (false, None) => format!("ws://{url}").into(),
    }
}

/// A URL without the password and its query's credentials, to be printed.
pub fn shown_url(url: &str) -> String {
    let url = sinews_server::redact_credentials(url);
    let Some((scheme, rest)) = url.split_once("://") else { return url.into_owned() };
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    match authority.rsplit_once('@').and_then(|(user, place)| Some((user.split_once(':')?.0, place))) {
        Some((user, place)) => format!("{scheme}://{user}:***@{place}{path}"),
        None => url.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_without_a_scheme_are_websocket_urls() {
        for (typed, url) in [
            ("localhost:8080/echo", "ws://localhost:8080/echo"),
            ("example.com", "ws://example.com"),
            (":8080/echo", "ws://localhost:8080/echo"),
            ("[::1]:8080", "ws://[::1]:8080"),
            ("wss://example.com/a", "wss://example.com/a"),
            ("/echo", "/echo"),
            ("", ""),
        ] {
            assert_eq!(with_scheme(typed), url);
        }
    }

    #[test]
    fn printed_urls_have_no_credentials() {
        for (url, printed) in [
            ("ws://a/ws?token=b.c.d&x=1", "ws://a/ws?token=***&x=1"),
            ("ws://u:p@a:1/x@y", "ws://u:***@a:1/x@y"),
            ("ws://u@a", "ws://u@a"),
            ("a?token=b", "a?token=***"),
        ] {
            assert_eq!(shown_url(url), printed);
        }
    }
}
