//! Hooks before and after the answers.

mod compression;
mod cors;
mod redact;

use std::borrow::Cow;
use std::cell::OnceCell;
use std::fmt;

use percent_encoding::percent_decode_str;
use sinews_http::{RequestHead, Version};

pub use self::compression::Compression;
pub use self::cors::Cors;
pub use self::redact::{describe_pem_error, redact_credentials, redact_urls};
use crate::request::{Request, Response};

/// In registration order.
#[derive(Default)]
pub(crate) struct Hooks {
    before: Vec<Hook<BeforeFn>>,
    after: Vec<Hook<AfterFn>>,
}

/// A hook, and the requests for which it runs.
struct Hook<F> {
    prefix: Prefix,
    /// Whether it runs only for requests with `Origin`.
    needs_origin: bool,
    run: F,
}

type BeforeFn = Box<dyn Fn(&mut Request<'_>) -> Option<Response> + Send + Sync>;

type AfterFn = Box<dyn Fn(&Request<'_>, &mut Response) + Send + Sync>;

impl Hooks {
    pub(crate) fn add_before(
        &mut self,
        prefix: &str,
        needs_origin: bool,
        hook: impl Fn(&mut Request<'_>) -> Option<Response> + Send + Sync + 'static,
    ) {
        self.before.push(Hook { prefix: Prefix::new(prefix), needs_origin, run: Box::new(hook) });
    }

    pub(crate) fn add_after(
        &mut self,
        prefix: &str,
        needs_origin: bool,
        hook: impl Fn(&Request<'_>, &mut Response) + Send + Sync + 'static,
    ) {
        self.after.push(Hook { prefix: Prefix::new(prefix), needs_origin, run: Box::new(hook) });
    }

    pub(crate) fn has_before(&self) -> bool {
        !self.before.is_empty()
    }

    /// Returns whether a hook may see the answer to a request with this head.
    #[inline]
    pub(crate) fn has_after(&self, head: &RequestHead<'_>) -> bool {
        !self.after.is_empty() && (self.after.iter().any(|hook| !hook.needs_origin) || has_origin(head))
    }

    /// Returns the first response of a hook.
    pub(crate) fn before(&self, request: &mut Request<'_>) -> Option<Response> {
        let head = request.head();
        matching(&self.before, head).find_map(|hook| hook(request))
    }

    pub(crate) fn after(&self, request: &Request<'_>, response: &mut Response) {
        for hook in matching(&self.after, request.head()) {
            hook(request, response);
        }
    }
}

/// The hooks that run for a request with this head.
fn matching<'a, F>(hooks: &'a [Hook<F>], head: &'a RequestHead<'a>) -> impl Iterator<Item = &'a F> {
    let path = LazyPath::new(head.path());
    let has_origin = hooks.iter().any(|hook| hook.needs_origin) && has_origin(head);
    let runs = move |hook: &&Hook<F>| (has_origin || !hook.needs_origin) && path.is_below(&hook.prefix);
    hooks.iter().filter(runs).map(|hook| &hook.run)
}

fn has_origin(head: &RequestHead<'_>) -> bool {
    head.header("origin").next().is_some()
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooks").field("before", &self.before.len()).field("after", &self.after.len()).finish()
    }
}

/// The first segments of a path, without a slash at their end.
struct Prefix(String);

/// Path as hooks see it. A path that any interpretation puts below a prefix matches the prefix, since hooks guard
/// access.
struct RequestPath<'a> {
    decoded: Cow<'a, [u8]>,
    /// Without empty segments and dots, if that differs.
    normalized: Option<Vec<u8>>,
}

/// Path that is decoded for the first prefix that compares it: `/` does not.
struct LazyPath<'a> {
    path: &'a str,
    decoded: OnceCell<RequestPath<'a>>,
}

impl<'a> LazyPath<'a> {
    fn new(path: &'a str) -> Self {
        Self { path, decoded: OnceCell::new() }
    }

    fn is_below(&self, prefix: &Prefix) -> bool {
        prefix.is_root() || prefix.covers(self.decoded.get_or_init(|| RequestPath::new(self.path)))
    }
}

impl Prefix {
    /// Returns whether every path is below this prefix.
    fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    fn new(prefix: &str) -> Self {
        let is_valid = prefix.starts_with('/') && !prefix.contains(['{', '}', '%', '?']);
        assert!(
            is_valid,
            "a hook's prefix is a path that begins with a slash and has no parameters, not {prefix:?}"
        );
        Self(prefix.trim_end_matches('/').to_owned())
    }

    fn covers(&self, path: &RequestPath<'_>) -> bool {
        let begins = |path: &[u8]| {
            let behind = path.strip_prefix(self.0.as_bytes());
            behind.is_some_and(|behind| behind.is_empty() || behind.starts_with(b"/"))
        };
        self.is_root() || begins(&path.decoded) || path.normalized.as_deref().is_some_and(begins)
    }
}

impl<'a> RequestPath<'a> {
    fn new(path: &'a str) -> Self {
        let decoded: Cow<'a, [u8]> = percent_decode_str(path).into();
        let is_plain =
            !decoded.windows(2).any(|two| two == b"//" || two == b"/.") && !decoded.contains(&b'\\');
        let normalized = (!is_plain).then(|| normalize(&decoded));
        Self { decoded, normalized }
    }
}

fn normalize(path: &[u8]) -> Vec<u8> {
    let mut segments: Vec<&[u8]> = Vec::new();
    for segment in path.split(|byte| b"/\\".contains(byte)) {
        match segment {
            b"" | b"." => {}
            b".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    segments.iter().flat_map(|segment| [&b"/"[..], segment]).flatten().copied().collect()
}

/// Logs one line for each answer. Credentials in the query are redacted.
pub(crate) fn log_access(request: &Request<'_>, response: &Response) {
    let head = request.head();
    tracing::info!(
        target: "sinews_server::access",
        peer = %request.peer(),
        client = %request.client(),
        method = if request.protocol().is_some() { "CONNECT" } else { head.method() },
        target = &*redact_credentials(head.target()),
        version = version_name(head.version()),
        protocol = request.protocol(),
        status = response.status(),
        bytes = response.body_len(),
        micros = u64::try_from(request.elapsed().as_micros()).unwrap_or(u64::MAX),
        "answered"
    );
}

const fn version_name(version: Version) -> &'static str {
    match version {
        Version::Http10 => "HTTP/1.0",
        Version::Http11 => "HTTP/1.1",
        Version::Http2 => "HTTP/2",
        Version::Http3 => "HTTP/3",
        _ => "HTTP",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_covers_whole_segments_in_every_encoding() {
        let covers = |prefix: &str, path: &str| Prefix::new(prefix).covers(&RequestPath::new(path));
        for path in [
            "/api",
            "/api/",
            "/api/x",
            "/%61pi/x",
            "/ap%69",
            "//api/x",
            "/./api",
            "/x/../api/y",
            "/api%2fx",
            "/api%2Fx",
            "/api//x",
            "/\\api",
            "/x%2f..%2fapi",
            "/api/../x",
            "/..//api",
            "/api%5cx",
        ] {
            assert!(covers("/api", path), "{path}");
            assert!(covers("/api/", path) && covers("/", path), "{path}");
        }
        for path in ["/", "/ap", "/apix", "/x/api", "/API", "*", "", "/api.", "/%2561pi", "/x/.api"] {
            assert!(!covers("/api", path), "{path}");
            assert!(covers("/", path), "{path}");
        }
        assert!(covers("/a/b", "/a/b/c") && !covers("/a/b", "/a/bc") && covers("/a/b", "/a//b"));
    }

    #[test]
    #[should_panic(expected = "begins with a slash")]
    fn prefix_with_parameters_panics() {
        let _ = Prefix::new("/api/{name}");
    }
}
