//! The address for administrators, and the answer at paths without a route.

use sinews_server::{Request, Response, Router};

use crate::options::RouteOptions;

/// Prefixes of the paths that only the address for administrators serves, if there is one: the HTTP API, the metrics,
/// the pages with their files and feed, and the echo.
const PREFIXES: &[&str] = &[
    "/api",
    "/metrics",
    "/echo",
    "/start.js",
    "/chat",
    "/chat.js",
    "/chat.css",
    "/console",
    "/console.js",
    "/calls.js",
    "/dashboard",
    "/dashboard.js",
    "/clients.js",
    "/access.js",
    "/backend.js",
    "/live.js",
    "/details.js",
    "/pages.css",
    "/favicon.ico",
];

/// Answers requests for these paths with 404 unless they arrive at a listener with the tag of administrators.
pub(super) fn add_to(router: Router, options: &RouteOptions) -> Router {
    let tag = options.admin_tag;
    let is_shown = move |request: &Request<'_>| tag.is_none_or(|tag| request.listener_tag() == tag);
    let router = if options.has_pages {
        router.not_found(move |request| not_found(request, is_shown(request)))
    } else {
        router
    };
    if tag.is_none() {
        return router;
    }
    let hide = move |request: &mut Request<'_>| (!is_shown(request)).then(|| not_found(request, false));
    let router =
        router.before("/", move |request| if request.head().path() == "/" { hide(request) } else { None });
    PREFIXES.iter().fold(router, |router, prefix| router.before(prefix, hide))
}

/// The answer at a path without a route: a page for browsers where there are pages, else text.
fn not_found(request: &Request<'_>, has_pages: bool) -> Response {
    #[cfg(feature = "pages")]
    if has_pages && accepts_html(request) {
        return crate::pages::not_found();
    }
    let _ = (request, has_pages);
    Response::text("not found\n").with_status(404)
}

/// Whether a client asks for HTML by name: programs accept `*/*`.
#[cfg(feature = "pages")]
fn accepts_html(request: &Request<'_>) -> bool {
    let accepts =
        |value: &[u8]| value.windows(b"text/html".len()).any(|part| part.eq_ignore_ascii_case(b"text/html"));
    matches!(request.head().method(), "GET" | "HEAD") && request.head().header("accept").any(accepts)
}
