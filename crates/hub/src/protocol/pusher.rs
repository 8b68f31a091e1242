//! `WS /app/{key}`: the Pusher Channels protocol 7, and its HTTP API at `/apps/{id}`. docs/book/src/server/pusher.md
//! describes both.

mod activity;
mod api;
mod client;
mod client_events;
mod code;
mod durable;
mod handshake;
mod health;
mod incoming;
mod liveness;
mod recovery;
mod services;
mod subscriptions;
mod users;

use std::sync::Arc;

use sinews_server::{
    CloseCode, DeflateConfig, OriginPolicy, Overflow, Refusal, Response, Router, ServerOptions,
    WebSocketRoute,
};

use self::client::PusherClient;
use self::handshake::AppHandshake;
use self::health::HealthCheck;
use self::services::PusherServices;
use crate::apps::live::LiveApps;
use crate::config::ConfigHandle;
use crate::options::RouteOptions;
use crate::session::backends::Backends;
use crate::topics::HubTopics;

/// Adds the routes for clients and for the HTTP API.
pub(crate) fn add_to(
    router: Router,
    options: &RouteOptions,
    live: &ConfigHandle,
    hub: &Arc<HubTopics>,
    backends: &Backends,
    check: &HealthCheck,
) -> Router {
    let apps = live.config().live_apps().clone();
    if let Some(bytes) = options.pusher_recovery_bytes {
        apps.recoveries.set_max(bytes);
    }
    let (hub, store) = (Arc::clone(hub), backends.store.clone());
    let services = Arc::new(PusherServices { apps: Arc::clone(&apps), hub, store });
    let prefix = options.pusher_prefix.as_deref();
    let route = |read: fn(&LiveApps, &sinews_server::Request<'_>) -> AppHandshake| {
        let (apps, services) = (Arc::clone(&apps), Arc::clone(&services));
        socket_route(options, move |request| {
            if apps.is_empty() {
                return Err(
                    crate::admission::HandshakeRejection::request(404, "no apps are configured").into()
                );
            }
            let handshake = read(&apps, request);
            Ok(Box::new(PusherClient::new(handshake, Arc::clone(&services))))
        })
    };
    let mut router = router;
    for prefix in [Some(""), Some(DEFAULT_HTTP_PATH), prefix].into_iter().flatten() {
        let apps = Arc::clone(&apps);
        router = router.post(&format!("{prefix}/app/{{key}}/{{*rest}}"), move |_| reject_fallback(&apps));
    }
    for prefix in [Some(""), prefix].into_iter().flatten() {
        router = router
            .websocket(&format!("{prefix}/app/{{key}}"), route(handshake::read))
            .websocket(&format!("{prefix}/app/{{key}}/{{*rest}}"), route(|_, _| handshake::unknown_path()))
            .websocket(&format!("{prefix}/app"), route(|_, _| handshake::unknown_path()));
    }
    let unknown = Arc::clone(&apps);
    // A client with a wrong path prefix would connect for ever.
    let is_meant = move |path: &str| path.split('/').any(|segment| segment == "app") && !unknown.is_empty();
    let router = router.websocket_fallback(is_meant, route(|_, _| handshake::unknown_path()));
    let router = health::add_to(router, &apps, check);
    api::add_to(router, live, &services, backends.cluster.as_ref(), prefix)
}

/// Path prefix of pusher-js's HTTP fallbacks, unless its option `httpPath` says otherwise.
const DEFAULT_HTTP_PATH: &str = "/pusher";

/// The answer to a client that cannot connect by WebSocket, and streams or polls instead.
fn reject_fallback(apps: &LiveApps) -> Response {
    let text = match apps.is_empty() {
        true => "not found\n",
        false => {
            "the server has no HTTP fallbacks (xhr_streaming, xhr_polling, SockJS): connect by WebSocket\n"
        }
    };
    Response::text(text).with_status(404)
}

/// Maximum length of a path prefix.
const PREFIX_MAX: usize = 100;

/// Checks a path prefix.
///
/// # Errors
/// The rule that the prefix breaks.
pub(crate) fn check_prefix(prefix: &str) -> Result<(), String> {
    let is_part = |part: &str| {
        let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
        !matches!(part, "" | "." | "..") && part.bytes().all(is_valid)
    };
    match prefix.strip_prefix('/') {
        Some(rest) if prefix.len() <= PREFIX_MAX && rest.split('/').all(is_part) => Ok(()),
        _ => Err(format!(
            "{prefix:?} must be a path such as \"/broadcast\" of at most {PREFIX_MAX} letters, digits and - _ . ~, without a slash at its end"
        )),
    }
}

/// Close reason for a connection beyond the server's limits.
const AT_CAPACITY: &str = "the server has its maximum of connections, of handshakes a second, or of memory";

fn socket_route(
    options: &RouteOptions,
    handler: impl Fn(&sinews_server::Request<'_>) -> Result<Box<dyn sinews_server::Handler>, Refusal>
    + Send
    + Sync
    + 'static,
) -> WebSocketRoute {
    let max = options.max_message as u64;
    // The protocol has its own pings. A client that misses an event has no means to notice it.
    let config = options.websocket.clone().with_max_message(max).with_max_frame(max);
    let config = config.with_ping_interval(None).with_overflow(Overflow::Close);
    // An app lists its origins.
    let handshake = ServerOptions::new().with_origin(OriginPolicy::any());
    let handshake = match options.deflate {
        Some(mode) => handshake.with_deflate(DeflateConfig::new().with_mode(mode)),
        None => handshake,
    };
    let route = WebSocketRoute::boxed(handler).with_options(handshake).with_config(config);
    let route = match CloseCode::new(code::OVER_CAPACITY) {
        Some(code) => {
            let message = crate::apps::encode::error(Some(code.as_u16()), AT_CAPACITY, None);
            route.with_overload_close(message, code, AT_CAPACITY)
        }
        None => route,
    };
    match options.message_rate {
        Some(messages) => route.with_message_rate(messages, messages),
        None => route,
    }
}
