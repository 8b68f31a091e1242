//! The pages: files without a build step or external resources.
//!
//! `web` and `client` are links to folders in the repository, because a published crate contains only files below its
//! own folder.

use std::sync::LazyLock;

use sinews_server::{Asset, Response, Router};

const CHAT: &str = include_str!("../web/chat.html");
const CHAT_SCRIPT: &str = include_str!("../web/chat.js");
const CHAT_STYLE: &str = include_str!("../web/chat.css");
const START: &str = include_str!("../web/start.html");
/// The start page's script without and with tokens.
static START_SCRIPTS: LazyLock<[String; 2]> = LazyLock::new(|| [false, true].map(start_script));

/// The start page's script knows the version, whether tokens are required, and the address of the book if the build
/// names one.
fn start_script(has_tokens: bool) -> String {
    let (version, book) = (env!("CARGO_PKG_VERSION"), option_env!("SINEWS_BOOK_URL").unwrap_or_default());
    let script = include_str!("../web/start.js");
    format!("const VERSION = {version:?};\nconst TOKENS = {has_tokens};\nconst BOOK = {book:?};\n{script}")
}

const NOT_FOUND: &str = include_str!("../web/404.html");
const ICON: &str = include_str!("../web/icon.svg");
const CONSOLE: &str = include_str!("../web/console.html");
const CONSOLE_SCRIPT: &str = include_str!("../web/console.js");
const CALLS_SCRIPT: &str = include_str!("../web/calls.js");
const DASHBOARD: &str = include_str!("../web/dashboard.html");
const DASHBOARD_SCRIPT: &str = include_str!("../web/dashboard.js");
const CLIENTS_SCRIPT: &str = include_str!("../web/clients.js");
const ACCESS_SCRIPT: &str = include_str!("../web/access.js");
const BACKEND_SCRIPT: &str = include_str!("../web/backend.js");
const LIVE_SCRIPT: &str = include_str!("../web/live.js");
const DETAILS_SCRIPT: &str = include_str!("../web/details.js");
const STYLE: &str = include_str!("../web/pages.css");

/// The client from the npm package `@sinews/client`, and its types.
const CLIENT: &str = include_str!("../client/sinews.js");
const CLIENT_TYPES: &str = include_str!("../client/sinews.d.ts");

/// The pages' policy: script and style are files, inline script does not run, and connections go to the page's own
/// origin. `'self'` covers WebSockets too: in CSP Level 3 it matches `ws:` and `wss:` on the same host and port.
/// Firefox implements this, Chromium since 2018 and Safari since 16 (2022). Older browsers show the page and do not
/// connect; naming `ws: wss:` for them would let injected script connect to any host.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLESHEET: &str = "text/css; charset=utf-8";

/// Adds the pages, and their scripts and styles. `has_tokens` tells whether clients need tokens now.
pub(crate) fn add_to(router: Router, has_tokens: impl Fn() -> bool + Send + Sync + 'static) -> Router {
    let pages = [
        ("/", page(START, POLICY)),
        ("/favicon.ico", asset("image/svg+xml", ICON)),
        ("/chat", page(CHAT, POLICY)),
        ("/chat.js", asset(SCRIPT, CHAT_SCRIPT)),
        ("/chat.css", asset(STYLESHEET, CHAT_STYLE)),
        ("/console", page(CONSOLE, POLICY)),
        ("/dashboard", page(DASHBOARD, POLICY)),
        ("/console.js", asset(SCRIPT, CONSOLE_SCRIPT)),
        ("/calls.js", asset(SCRIPT, CALLS_SCRIPT)),
        ("/dashboard.js", asset(SCRIPT, DASHBOARD_SCRIPT)),
        ("/clients.js", asset(SCRIPT, CLIENTS_SCRIPT)),
        ("/backend.js", asset(SCRIPT, BACKEND_SCRIPT)),
        ("/access.js", asset(SCRIPT, ACCESS_SCRIPT)),
        ("/live.js", asset(SCRIPT, LIVE_SCRIPT)),
        ("/details.js", asset(SCRIPT, DETAILS_SCRIPT)),
        ("/pages.css", asset(STYLESHEET, STYLE)),
    ];
    let start_scripts = [0, 1].map(|tokens| asset(SCRIPT, START_SCRIPTS[tokens].as_str()));
    let router =
        router.get("/start.js", move |request| start_scripts[usize::from(has_tokens())].answer(request));
    add(router, pages)
}

/// Adds the client library, which pages of applications load.
pub(crate) fn add_client_to(router: Router) -> Router {
    let files = [
        // Pages from any origin may load the client; the policy decides whether they may connect.
        ("/sinews.js", asset(SCRIPT, CLIENT).with_header("Access-Control-Allow-Origin", "*")),
        ("/sinews.d.ts", asset("text/plain; charset=utf-8", CLIENT_TYPES)),
    ];
    add(router, files)
}

/// The answer to a browser at a path without a page.
pub(crate) fn not_found() -> Response {
    Response::html(NOT_FOUND).with_status(404).with_header("Content-Security-Policy", POLICY)
}

fn add<const N: usize>(router: Router, files: [(&'static str, Asset); N]) -> Router {
    files
        .into_iter()
        .fold(router, |router, (path, asset)| router.get(path, move |request| asset.answer(request)))
}

fn page(text: &'static str, policy: &'static str) -> Asset {
    asset("text/html; charset=utf-8", text).with_header("Content-Security-Policy", policy)
}

/// An asset that browsers revalidate each time; the answer is 304 if it has not changed.
fn asset(content_type: &'static str, text: &'static str) -> Asset {
    Asset::new(content_type, text.as_bytes())
        .with_header("X-Content-Type-Options", "nosniff")
        .with_header("Cache-Control", "no-cache")
}
