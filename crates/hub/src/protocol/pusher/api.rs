//! The HTTP API for apps' servers: `/apps/{id}/…`. Each request is signed with an app's key.

mod channels;
mod events;
mod users;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;
use sinews_server::{Answer, Request, Response, Router};

use super::services::PusherServices;
use crate::apps::live::{LiveApp, LiveApps};
use crate::apps::metrics::PusherRejection;
use crate::apps::signature::SignedRequest;
use crate::cluster::Cluster;
use crate::config::ConfigHandle;

/// Services that the operations share.
pub(super) struct AppApi {
    apps: Arc<LiveApps>,
    services: Arc<PusherServices>,
    cluster: Option<Arc<Cluster>>,
    /// The path prefix, empty for none.
    prefix: Box<str>,
}

/// A rejected request: the status, and the body's text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ApiError {
    status: u16,
    text: String,
}

type ApiAnswer = Result<Answer, ApiError>;

impl ApiError {
    fn new(status: u16, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }

    fn bad(text: impl Into<String>) -> Self {
        Self::new(400, text)
    }
}

/// An answer with a value.
fn success(value: &Value) -> Response {
    Response::json(crate::model::json::encode(value))
}

/// An answer without a value.
fn accepted() -> Response {
    Response::json("{}")
}

/// Adds the routes.
pub(super) fn add_to(
    router: Router,
    live: &ConfigHandle,
    services: &Arc<PusherServices>,
    cluster: Option<&Arc<Cluster>>,
    prefix: Option<&str>,
) -> Router {
    let apps = Arc::clone(live.config().live_apps());
    let (cluster, prefix) = (cluster.cloned(), prefix.unwrap_or_default());
    let context = Arc::new(AppApi { apps, services: Arc::clone(services), cluster, prefix: prefix.into() });
    let router = add_below("", router, &context);
    if prefix.is_empty() { router } else { add_below(prefix, router, &context) }
}

/// Adds the routes below a path prefix.
fn add_below(prefix: &str, router: Router, context: &Arc<AppApi>) -> Router {
    type AppOperation = fn(&Arc<AppApi>, &Arc<LiveApp>, &mut Request<'_>) -> ApiAnswer;
    let answer = |execute: AppOperation| {
        let context = Arc::clone(context);
        move |request: &mut Request<'_>| {
            let executed = context.app_of(request).and_then(|app| {
                let verified = context.verify(&app, request);
                verified
                    .and_then(|()| execute(&context, &app, request))
                    .inspect_err(|_| app.count_rejection())
            });
            executed.unwrap_or_else(|error| {
                context.apps.counters.reject(PusherRejection::Request);
                Response::text(format!("{}\n", error.text)).with_status(error.status).into()
            })
        }
    };
    let path = |path: &str| format!("{prefix}{path}");
    router
        .post(&path("/apps/{id}/events"), answer(events::trigger))
        .post(&path("/apps/{id}/batch_events"), answer(events::batch))
        .get(&path("/apps/{id}/channels"), answer(channels::list))
        .get(&path("/apps/{id}/channels/{name}"), answer(channels::get))
        .get(&path("/apps/{id}/channels/{name}/users"), answer(channels::users))
        .get(&path("/apps/{id}/connections"), answer(users::connections))
        .post(&path("/apps/{id}/users/{user}/terminate_connections"), answer(users::terminate))
        .post(&path("/apps/{id}/users/{user}/force_reconnect"), answer(users::reconnect))
        // The library for Python leaves the app out.
        .post(&path("/users/{user}/terminate_connections"), answer(users::terminate))
}

impl AppApi {
    /// The app that a request names.
    fn app_of(&self, request: &Request<'_>) -> Result<Arc<LiveApp>, ApiError> {
        self.apps.counters.requests.fetch_add(1, Ordering::Relaxed);
        let app = match request.param("id") {
            Some(id) => self.apps.app(&id),
            None => request.decoded_query("auth_key").and_then(|key| self.apps.app_of_key(&key)),
        };
        app.ok_or_else(|| ApiError::new(404, "no app has this id"))
    }

    /// Checks that the app serves, that one of its keys has signed the request, and the app's rate.
    fn verify(&self, app: &LiveApp, request: &Request<'_>) -> Result<(), ApiError> {
        if !app.options.is_enabled {
            return Err(ApiError::new(403, "the app is disabled"));
        }
        let (target, head) = (request.head().target(), request.head());
        let signed = SignedRequest {
            method: head.method(),
            path: target.split('?').next().unwrap_or(target),
            query: head.query().unwrap_or_default(),
            body: request.body(),
            prefix: &self.prefix,
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let find = |name: &str| app.options.keys.iter().find(|key| key.name == name);
        signed.verify(find, now).map_err(|text| ApiError::new(401, text))?;
        // Only signed requests count: others cannot use up the app's rate.
        if !app.take_request(|| self.apps.now()) {
            return Err(ApiError::new(429, "the app has exceeded its rate of requests"));
        }
        Ok(())
    }
}

/// A channel attribute that a request asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ChannelInfo {
    user_count: bool,
    subscription_count: bool,
    cache: bool,
}

impl ChannelInfo {
    /// Parses `info`, a list with commas.
    fn parse(info: &str) -> Result<Self, ApiError> {
        let mut parsed = Self::default();
        for name in info.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            match name {
                "user_count" => parsed.user_count = true,
                "subscription_count" => parsed.subscription_count = true,
                "cache" => parsed.cache = true,
                _ => return Err(ApiError::bad("info: user_count, subscription_count and cache are known")),
            }
        }
        Ok(parsed)
    }
}
