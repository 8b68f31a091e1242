//! The pages: files without a build step, nothing from elsewhere.

use sinews_server::{Response, Router};

/// The chat is one file, whose script and style stand in it.
const CHAT: &str = include_str!("../../../web/chat.html");
const START: &str = include_str!("../../../web/start.html");
const CONSOLE: &str = include_str!("../../../web/console.html");
const CONSOLE_SCRIPT: &str = include_str!("../../../web/console.js");
const DASHBOARD: &str = include_str!("../../../web/dashboard.html");
const DASHBOARD_SCRIPT: &str = include_str!("../../../web/dashboard.js");
const STYLE: &str = include_str!("../../../web/pages.css");

/// The browser's side of the protocol, and its types.
const CLIENT: &str = include_str!("../../../web/sinews.js");
const CLIENT_TYPES: &str = include_str!("../../../web/sinews.d.ts");

/// What the chat page may do: only what it brings, and connect to where it came from. `'self'` says so for WebSockets
/// too: in CSP Level 3 it matches `ws:` and `wss:` of the same host and port, and so it does in Firefox, in
/// Chromium since 2018 and in Safari since 16 (2022). Older ones show the page and do not connect; naming `ws: wss:`
/// for them would let injected script talk to any host.
const CHAT_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
     img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
     frame-ancestors 'none'";

/// The same for pages whose script and style are files: nothing that stands in the page itself runs.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Adds the pages, and what they are made of.
pub(crate) fn add_to(router: Router) -> Router {
    router
        .get("/", |_| page(START, POLICY))
        .get("/chat", |_| page(CHAT, CHAT_POLICY))
        .get("/console", |_| page(CONSOLE, POLICY))
        .get("/dashboard", |_| page(DASHBOARD, POLICY))
        .get("/console.js", |_| file(SCRIPT, CONSOLE_SCRIPT))
        .get("/dashboard.js", |_| file(SCRIPT, DASHBOARD_SCRIPT))
        .get("/pages.css", |_| file("text/css; charset=utf-8", STYLE))
        // Pages of any origin may load the client: whether they may connect is decided elsewhere.
        .get("/sinews.js", |_| file(SCRIPT, CLIENT).with_header("Access-Control-Allow-Origin", "*"))
        .get("/sinews.d.ts", |_| file("text/plain; charset=utf-8", CLIENT_TYPES))
}

fn page(text: &'static str, policy: &'static str) -> Response {
    Response::html(text)
        .with_header("Content-Security-Policy", policy)
        .with_header("X-Content-Type-Options", "nosniff")
        .with_header("Cache-Control", "no-cache")
}

fn file(kind: &'static str, text: &'static str) -> Response {
    Response::new(200)
        .with_body(text)
        .with_header("Content-Type", kind)
        .with_header("X-Content-Type-Options", "nosniff")
        .with_header("Cache-Control", "no-cache")
}
