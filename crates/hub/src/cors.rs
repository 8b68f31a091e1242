//! Plain requests from pages of other origins: the paths that they may request, and what their pages may read.
//!
//! The allowed origins are those of WebSockets ([`HubConfig::with_origin`](crate::HubConfig::with_origin)). The HTTP
//! API for backends is not among the paths: an API key does not belong in a page.

use sinews_server::{Request, Response, Router};

use crate::config::{ConfigHandle, HubConfig};
use crate::http::failure;

/// The paths of `sinews.js` without WebSocket, with all paths below them.
const PATHS: [&str; 4] = ["/topics", "/rpc", "/streams", "/healthz"];

/// Adds the rules to a router. All answers at these paths have the headers, also the server's own errors.
pub(crate) fn add_to(router: Router, live: &ConfigHandle) -> Router {
    PATHS.into_iter().fold(router, |router, path| {
        let (before, after) = (live.clone(), live.clone());
        router.cross_origin(
            path,
            move |request| answer_preflight(&before.config(), request),
            move |request, response| after.config().cors().after(request, response),
        )
    })
}

/// Answers a preflight; one from another origin is counted and logged as its request would be, which the browser does
/// not send.
fn answer_preflight(config: &HubConfig, request: &Request<'_>) -> Option<Response> {
    let response = config.cors().before(request)?;
    match config.check_origin(request) {
        Ok(()) => Some(response),
        Err(rejection) => Some(failure(response.status(), rejection.text())),
    }
}
