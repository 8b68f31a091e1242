//! Target of a redirect, and the credentials sent there.

use http::header::LOCATION;

use super::error::{ConnectError, RedirectError};
use super::response::Response;
use super::target::{ConnectTarget, UrlError};

/// Whether the status is a redirect. Whether the method may change (RFC 9110 section 15.4) does not matter: it is
/// GET.
pub(crate) const fn is_redirect(status: u16) -> bool {
    matches!(status, 301 | 302 | 303 | 307 | 308)
}

/// The target of the redirect that the server at `from` returned.
pub(crate) fn next(
    from: &ConnectTarget,
    response: &Response,
    downgrade: bool,
) -> Result<ConnectTarget, ConnectError> {
    let location =
        response.headers().get(LOCATION).map(|value| value.as_bytes().to_owned()).unwrap_or_default();
    let location = String::from_utf8_lossy(&location).into_owned();
    let rejected = |error| ConnectError::Redirect { location: location.clone(), error };
    if location.is_empty() {
        return Err(rejected(RedirectError::Location(UrlError::Malformed)));
    }
    let mut to = resolve(from, &location).map_err(|error| rejected(RedirectError::Location(error)))?;
    if from.secure && !to.secure && !downgrade {
        return Err(rejected(RedirectError::Downgrade));
    }
    // A server cannot choose the credentials: the credentials of `from` are kept within its origin.
    to.credentials = from.credentials.clone().filter(|_| to.is_same_origin(from));
    Ok(to)
}

/// Resolves a reference (RFC 3986 section 5.2). Removes a fragment, which is allowed in redirects but not in
/// WebSocket URLs.
fn resolve(base: &ConnectTarget, location: &str) -> Result<ConnectTarget, UrlError> {
    let location = location.split_once('#').map_or(location, |(location, _)| location);
    if has_scheme(location) {
        return ConnectTarget::parse(location);
    }
    let scheme = base.scheme();
    if location.starts_with("//") {
        return ConnectTarget::parse(&format!("{scheme}:{location}"));
    }
    let (path, query) = match location.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (location, None),
    };
    let (base_path, base_query) = match base.path.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (base.path.as_str(), None),
    };
    let (path, query) = match path {
        "" => (base_path.to_owned(), query.or(base_query)),
        path if path.starts_with('/') => (without_dots(path), query),
        path => {
            let folder = base_path.rsplit_once('/').map_or("", |(folder, _)| folder);
            (without_dots(&format!("{folder}/{path}")), query)
        }
    };
    let query = query.map_or_else(String::new, |query| format!("?{query}"));
    ConnectTarget::parse(&format!("{scheme}://{}{path}{query}", base.authority()))
}

/// Whether a scheme precedes every character that ends one (RFC 3986 section 3.1).
fn has_scheme(reference: &str) -> bool {
    let scheme = reference.split_once([':', '/', '?']).map_or("", |(scheme, _)| scheme);
    reference[scheme.len()..].starts_with(':')
        && scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
}

/// Removes dot segments (RFC 3986 section 5.2.4) of a path that begins with `/`.
fn without_dots(path: &str) -> String {
    let mut segments: Vec<&str> = Vec::new();
    let mut open = false;
    for segment in path.split('/').skip(1) {
        open = matches!(segment, "." | "..");
        match segment {
            "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    let end = if open && !segments.is_empty() { "/" } else { "" };
    format!("/{}{end}", segments.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(target: &ConnectTarget) -> String {
        format!("{}://{}{}", target.scheme(), target.host_header(), target.path)
    }

    fn follow(from: &str, location: &str) -> Result<ConnectTarget, ConnectError> {
        let headers = [("Location", location.as_bytes())];
        next(&ConnectTarget::parse(from).expect(from), &Response::new(302, headers.into_iter()), false)
    }

    #[test]
    fn relative_references_are_resolved() {
        // RFC 3986 section 5.4, with the path of its base.
        for (location, expected) in [
            ("ws://other/x", "ws://other/x"),
            ("https://other:444", "wss://other:444/"),
            ("//g", "ws://g/"),
            ("g", "ws://a/b/c/g"),
            ("./g", "ws://a/b/c/g"),
            ("g/", "ws://a/b/c/g/"),
            ("/g", "ws://a/g"),
            ("?y", "ws://a/b/c/d;p?y"),
            ("g?y", "ws://a/b/c/g?y"),
            ("#s", "ws://a/b/c/d;p?q"),
            ("g#s", "ws://a/b/c/g"),
            ("g?y#s", "ws://a/b/c/g?y"),
            (".", "ws://a/b/c/"),
            ("./", "ws://a/b/c/"),
            ("..", "ws://a/b/"),
            ("../g", "ws://a/b/g"),
            ("../../../g", "ws://a/g"),
            ("/./g", "ws://a/g"),
            ("/../g", "ws://a/g"),
            ("g.", "ws://a/b/c/g."),
            ("./g/.", "ws://a/b/c/g/"),
            ("g?y/../x", "ws://a/b/c/g?y/../x"),
            ("g?to=ws://x", "ws://a/b/c/g?to=ws://x"),
        ] {
            let target = follow("ws://a/b/c/d;p?q", location).expect(location);
            assert_eq!(url(&target), expected, "{location}");
        }
        assert_eq!(url(&follow("wss://[::1]:81/a", "b").expect("sound")), "wss://[::1]:81/b");
    }

    #[test]
    fn invalid_location_is_an_error() {
        for location in ["", "ftp://a/", "mailto:a", "ws://", "ws://a:99999/", "/a b"] {
            let error = follow("ws://a/", location).expect_err(location);
            assert!(
                matches!(error, ConnectError::Redirect { error: RedirectError::Location(_), .. }),
                "{error:?}"
            );
        }
    }

    #[test]
    fn downgrade_from_wss_is_rejected() {
        for location in ["ws://a/", "http://a/"] {
            let error = follow("wss://a/", location).expect_err(location);
            assert!(error.to_string().contains("allow_downgrade"), "{error}");
        }
        assert!(follow("wss://a/", "//b/").expect("sound").secure);
        assert!(follow("ws://a/", "wss://a/").expect("sound").secure);
    }

    #[test]
    fn credentials_are_not_sent_to_another_origin() {
        let basic = |location| follow("ws://u:p@a/", location).expect(location).credentials.is_some();
        assert!(basic("/x"));
        assert!(basic("ws://a:80/x"));
        for location in ["ws://b/", "ws://a:81/", "wss://a/", "ws://evil:x@b/"] {
            assert!(!basic(location), "{location}");
        }
    }
}
