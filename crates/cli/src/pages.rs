//! The pages: files without a build step, nothing from elsewhere.

use sinews_server::{Asset, Router};

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

/// Adds the pages, and their scripts and styles.
pub(crate) fn add_to(router: Router) -> Router {
    let pages = [
        ("/", page(START, POLICY)),
        ("/chat", page(CHAT, CHAT_POLICY)),
        ("/console", page(CONSOLE, POLICY)),
        ("/dashboard", page(DASHBOARD, POLICY)),
        ("/console.js", asset(SCRIPT, CONSOLE_SCRIPT)),
        ("/dashboard.js", asset(SCRIPT, DASHBOARD_SCRIPT)),
        ("/pages.css", asset("text/css; charset=utf-8", STYLE)),
        // Pages of any origin may load the client: whether they may connect is decided elsewhere.
        ("/sinews.js", asset(SCRIPT, CLIENT).with_header("Access-Control-Allow-Origin", "*")),
        ("/sinews.d.ts", asset("text/plain; charset=utf-8", CLIENT_TYPES)),
    ];
    pages
        .into_iter()
        .fold(router, |router, (path, asset)| router.get(path, move |request| asset.answer(request)))
}

fn page(text: &'static str, policy: &'static str) -> Asset {
    asset("text/html; charset=utf-8", text).with_header("Content-Security-Policy", policy)
}

/// Asked for again each time, and answered with 304 while it is the same.
fn asset(content_type: &'static str, text: &'static str) -> Asset {
    Asset::new(content_type, text.as_bytes())
        .with_header("X-Content-Type-Options", "nosniff")
        .with_header("Cache-Control", "no-cache")
}
