//! Query parameters of the hub's routes: a request with an unknown parameter is rejected, since its client expects an
//! effect.

use sinews_server::{Request, query_pairs};

use crate::model::brief::brief;

/// The query parameters for one request kind, beside [`COMMON`].
struct RouteParameters {
    /// The method; `WS` for WebSockets.
    method: &'static str,
    /// The path, with `*` for a segment of any name.
    path: &'static str,
    names: &'static [&'static str],
}

/// The token for all routes, for clients that cannot send headers.
const COMMON: &str = "token";

/// Position of a reconnecting client that cannot send the header `Last-Event-ID`: polyfills of `EventSource` add it.
pub(crate) const LAST_EVENT_ID: &str = "lastEventId";

const fn route(method: &'static str, path: &'static str, names: &'static [&'static str]) -> RouteParameters {
    RouteParameters { method, path, names }
}

const ROUTES: [RouteParameters; 20] = [
    route("WS", "/ws", &["datagrams"]),
    route("WS", "/echo", &[]),
    route("WS", "/dashboard/feed", &[]),
    route("WS", "/topics/*", &["self", "datagrams"]),
    route(
        "GET",
        "/topics",
        &[
            "topic",
            "after",
            "wait",
            "last",
            "assigned",
            "presence",
            "members",
            "join",
            "member",
            LAST_EVENT_ID,
        ],
    ),
    route(
        "GET",
        "/topics/*",
        &["after", "wait", "last", "assigned", "presence", "members", "join", "member", LAST_EVENT_ID],
    ),
    route("POST", "/topics/*", &[]),
    route("GET", "/topics/*/members", &["after"]),
    route("GET", "/topics/*/keys", &["after", "limit", "filter", "from", "wait", "interval", LAST_EVENT_ID]),
    route("GET", "/topics/*/keys/*", &[]),
    route("PUT", "/topics/*/keys/*", &["ttl"]),
    route("DELETE", "/topics/*/keys/*", &[]),
    route("POST", "/rpc/*", &["topic"]),
    route("GET", "/streams", &["after", "limit"]),
    route("GET", "/streams/*", &["from", "max", "partition"]),
    route("POST", "/streams/*", &["ack", "partition", "key"]),
    route("DELETE", "/streams/*", &[]),
    route("WS", "/streams/*", &["datagrams"]),
    route("GET", "/streams/*/info", &[]),
    route("GET", "/streams/*/records", &["offset", "partition", "bytes", "follow", "from", "time", "group"]),
];

/// Returns the error for a request with an unknown query parameter.
pub(crate) fn check(request: &Request<'_>) -> Option<String> {
    let head = request.head();
    let query = head.query().filter(|query| !query.is_empty())?;
    let method = match head.method() {
        "GET" if head.wants_websocket() || request.protocol().is_some() => "WS",
        "HEAD" => "GET",
        method => method,
    };
    let path = head.path();
    let found = ROUTES.iter().find(|route| route.method == method && matches(route.path, path))?;
    unknown_parameter(query, found.names)
}

/// Returns an error that names an unknown query parameter and the nearest known parameter. Names that begin with `_`
/// belong to other programs, such as the counters that libraries add against caches.
pub(crate) fn unknown_parameter(query: &str, known: &[&str]) -> Option<String> {
    let mut names = query_pairs(query).map(|(name, _)| name);
    let is_known =
        |name: &str| name.is_empty() || name.starts_with('_') || name == COMMON || known.contains(&name);
    let name = names.find(|name| !is_known(name))?;
    let mut all: Vec<&str> = known.iter().copied().chain([COMMON]).collect();
    all.sort_unstable();
    let alike = |known: &&&str| strsim::jaro(&name.to_ascii_lowercase(), &known.to_ascii_lowercase());
    // Of equals, the first.
    let nearest = all.iter().rev().max_by(|a, b| alike(a).total_cmp(&alike(b)))?;
    let name: String = brief(&name).chars().filter(|shown| !shown.is_control()).collect();
    Some(format!(
        "unknown query parameter `{name}`; did you mean `{nearest}`? Parameters here: {}",
        all.join(", ")
    ))
}

/// Returns whether a path has the form of a route.
fn matches(route: &str, path: &str) -> bool {
    let mut segments = path.split('/');
    route.split('/').all(|expected| {
        segments.next().is_some_and(|segment| expected == segment || expected == "*" && !segment.is_empty())
    }) && segments.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_parameters_are_named_with_the_nearest() {
        let known = ["last", "after", "wait"];
        for query in ["", "last=1", "wait=1&after=2&token=x", "_=1712&_x=2", "&&=1", "l%61st=1"] {
            assert_eq!(unknown_parameter(query, &known), None, "{query}");
        }
        for (query, name, nearest) in [
            ("history=10", "history", "last"),
            ("last=1&Wait=2", "Wait", "wait"),
            ("tokn=secret", "tokn", "token"),
            ("a%0After=1", "after", "after"),
        ] {
            let error = unknown_parameter(query, &known).unwrap();
            let expected = format!("unknown query parameter `{name}`; did you mean `{nearest}`?");
            assert!(error.starts_with(&expected), "{error}");
            assert!(!error.contains("secret"));
        }
        let error = unknown_parameter(&"x".repeat(10_000), &known).unwrap();
        assert!(error.len() < 300, "{error}");
    }

    #[test]
    fn paths_match_by_segment() {
        assert!(matches("/topics/*", "/topics/a") && matches("/topics/*/keys", "/topics/a/keys"));
        for path in ["/topics", "/topics/", "/topics/a/", "/topics/a/b", "/topicsx/a", ""] {
            assert!(!matches("/topics/*", path), "{path}");
        }
    }
}
