//! Health checks at other servers' paths, for load balancers that ask there.

use crate::uncached::UNCACHED;
use std::sync::Arc;

use sinews_server::{Response, Router};

use crate::apps::live::LiveApps;

/// The answer to the server's health check.
pub(crate) type HealthCheck = Arc<dyn Fn() -> Response + Send + Sync>;

/// `GET /up` of Reverb and Sockudo and `/ready` of Soketi: as `/readyz`. `GET /up/{id}` of Sockudo: also whether an app
/// serves.
pub(super) fn add_to(router: Router, apps: &Arc<LiveApps>, check: &HealthCheck) -> Router {
    let node = || {
        let (apps, check) = (Arc::clone(apps), Arc::clone(check));
        move |_: &mut sinews_server::Request<'_>| match apps.is_empty() {
            true => fault(404, "no apps are configured"),
            false => check(),
        }
    };
    let (apps, check) = (Arc::clone(apps), Arc::clone(check));
    router.health_check("/up", node()).health_check("/ready", node()).health_check(
        "/up/{id}",
        move |request| match request.param("id").and_then(|id| apps.app(&id)) {
            None => fault(404, "no app has this id"),
            Some(app) if !app.options.is_enabled => fault(503, "the app is disabled"),
            Some(_) => check(),
        },
    )
}

fn fault(status: u16, text: &str) -> Response {
    Response::text(format!("{text}\n")).with_status(status).with_header("Cache-Control", UNCACHED)
}
