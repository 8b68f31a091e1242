//! The hub's routes.

use std::sync::Arc;

use sinews_server::{
    Answer, Config, DeflateConfig, Handler, MessageRoute, OriginPolicy, Overflow, Refusal, Request, Router,
    ServerOptions, WebSocketRoute,
};

use crate::access::auth::Denied;
use crate::activity::{Activity, ActivityKind};
use crate::admission::HandshakeRejection;
use crate::api::keys::TopicKeys;
use crate::api::topics::TopicPublishing;
use crate::config::ConfigHandle;
use crate::http::{failure, stream_name_of};
use crate::hub::health::Readiness;
use crate::hub::{health, metrics};
use crate::options::RouteOptions;
use crate::protocol::binary::{self, BinaryClient};
use crate::protocol::echo::EchoHandler;
use crate::protocol::events::TopicsReader;
use crate::protocol::events::keys::KeysFormat;
use crate::protocol::json::streams::JsonStreams;
use crate::protocol::json::{self, JsonClient};
use crate::protocol::raw::{self, TopicClient};
use crate::session::backends::Backends;
use crate::streams::errors::STREAMS_DISABLED;
use crate::streams::service::StreamService;
use crate::topics::HubTopics;
use crate::{api, cors, query};

/// Adds the routes to a router.
pub(crate) fn add_to(
    router: Router,
    options: &RouteOptions,
    live: &ConfigHandle,
    hub: &Arc<HubTopics>,
    services: &Backends,
) -> Router {
    let store = services.store.as_ref();
    let (echo_live, topics_live, ws_live) = (live.clone(), live.clone(), live.clone());
    let (topics_hub, ws_hub) = (Arc::clone(hub), Arc::clone(hub));
    let max_message = options.max_message;
    let (ws_store, topics_store) = (store.cloned(), store.cloned());
    let publishing =
        TopicPublishing { live: live.clone(), hub: Arc::clone(hub), store: store.cloned(), max_message };
    let readers = Readers::new(options, live, hub, store);
    let messages = || {
        let readers = readers.clone();
        move |request: &mut Request<'_>| readers.answer(request, |reader, request| reader.answer(request))
    };
    let router = metrics::add_to(router, services, live, options.dropped_log_lines);
    let readiness = Readiness::new(&router, services);
    let router = health::add_to(router, readiness);
    let router = add_pages(router, options, live, hub);
    let router = router.healthz("/healthz");
    let router = match options.has_pages {
        true => router.websocket(
            "/echo",
            route(options, raw::NAME, move |request| echo_live.config().admit(request, || Ok(EchoHandler))),
        ),
        false => router,
    };
    let router = router
        .websocket(
            "/topics/{name}",
            route(options, raw::NAME, move |request| {
                let (hub, config) = (Arc::clone(&topics_hub), topics_live.config());
                config.admit(request, || {
                    TopicClient::new(request, &topics_live, hub, topics_store.clone(), max_message)
                })
            }),
        )
        .websocket(
            "/ws",
            route(options, json::NAME, move |request| {
                let (streams, config) = (JsonStreams::new(ws_store.clone(), None), ws_live.config());
                let hub = Arc::clone(&ws_hub);
                config.admit(request, || JsonClient::new(request, &ws_live, hub, max_message, streams))
            }),
        )
        .get("/topics", messages())
        .get("/topics/{name}", messages())
        .post("/topics/{name}", move |request| {
            let answer = api::topics::publish(&publishing, request);
            answer.unwrap_or_else(|denied| reject(&publishing.live, request, &denied))
        });
    let router = add_requests(router.decode_bodies(), live);
    let router = add_keys(router, live, hub, store, readers.clone());
    let router = cors::add_to(add_checks(router, live), live);
    let router = add_streams(router, options, live, hub, store);
    add_records(router, live, store, readers)
}

/// Adds the pages, and the dashboard's feed.
#[cfg(feature = "pages")]
fn add_pages(router: Router, options: &RouteOptions, live: &ConfigHandle, hub: &Arc<HubTopics>) -> Router {
    let (live, hub) = (live.clone(), Arc::clone(hub));
    let router = crate::pages::add_client_to(router);
    if !options.has_pages {
        return router;
    }
    let start_live = live.clone();
    let router = crate::pages::add_to(router, move || start_live.config().has_auth());
    router.websocket(
        "/dashboard/feed",
        route(options, raw::NAME, move |request| {
            let (config, hub) = (live.config(), Arc::clone(&hub));
            config.admit(request, || crate::dashboard::DashboardClient::new(request, &live, hub))
        }),
    )
}

#[cfg(not(feature = "pages"))]
fn add_pages(router: Router, _: &RouteOptions, _: &ConfigHandle, _: &Arc<HubTopics>) -> Router {
    router
}

/// Adds the checks that precede all routes: the host, and the query parameters' names.
fn add_checks(router: Router, live: &ConfigHandle) -> Router {
    let live = live.clone();
    router.before("/", move |request| {
        let rejected = live.config().check_host(request);
        rejected.or_else(|| query::check(request).map(|error| failure(400, &error)))
    })
}

/// What a request's [`TopicsReader`] borrows.
#[derive(Clone)]
struct Readers {
    live: ConfigHandle,
    hub: Arc<HubTopics>,
    store: Option<Arc<StreamService>>,
    config: Arc<Config>,
    max_message: usize,
}

impl Readers {
    fn new(
        options: &RouteOptions,
        live: &ConfigHandle,
        hub: &Arc<HubTopics>,
        store: Option<&Arc<StreamService>>,
    ) -> Self {
        Self {
            live: live.clone(),
            hub: Arc::clone(hub),
            store: store.cloned(),
            config: Arc::new(socket_config(options)),
            max_message: options.max_message,
        }
    }

    /// Answers a request by a reader of its own.
    fn answer(
        &self,
        request: &Request<'_>,
        answer: impl FnOnce(TopicsReader<'_>, &Request<'_>) -> Result<Answer, Denied>,
    ) -> Answer {
        let reader = TopicsReader {
            live: &self.live,
            hub: &self.hub,
            streams: JsonStreams::new(self.store.clone(), None),
            config: &self.config,
            max_message: self.max_message,
        };
        answer(reader, request).unwrap_or_else(|denied| reject(&self.live, request, &denied))
    }
}

/// Answers a plain request that the client's rights do not cover. Invalid tokens are observed where they are read.
fn reject(live: &ConfigHandle, request: &Request<'_>, denied: &Denied) -> Answer {
    if denied.lacks_right() {
        live.config().rejections().activity().observe(|| Activity {
            kind: ActivityKind::Reject,
            path: request.head().path(),
            address: Some(request.client().to_canonical()),
            op: Some(request.head().method()),
            code: Some(denied.status),
            reason: Some(&denied.problem),
            ..Activity::default()
        });
    }
    denied.response().into()
}

/// Adds the member and call routes.
fn add_requests(router: Router, live: &ConfigHandle) -> Router {
    let (members_live, rpc_live) = (live.clone(), live.clone());
    router
        .get("/topics/{name}/members", move |request| {
            let answer = api::members::list(&members_live, request);
            answer.unwrap_or_else(|denied| reject(&members_live, request, &denied))
        })
        .post("/rpc/{method}", move |request| {
            let answer = api::rpc::call(&rpc_live, request);
            answer.unwrap_or_else(|denied| reject(&rpc_live, request, &denied))
        })
}

/// Adds the key routes.
fn add_keys(
    router: Router,
    live: &ConfigHandle,
    hub: &Arc<HubTopics>,
    store: Option<&Arc<StreamService>>,
    readers: Readers,
) -> Router {
    type Execute = fn(&TopicKeys, &mut Request<'_>) -> Result<Answer, Denied>;
    let keys = TopicKeys {
        live: live.clone(),
        hub: Arc::clone(hub),
        store: store.cloned(),
        max_message: readers.max_message,
    };
    let answer = |execute: Execute| {
        let keys = keys.clone();
        move |request: &mut Request<'_>| {
            let answer = execute(&keys, request);
            answer.unwrap_or_else(|denied| reject(&keys.live, request, &denied))
        }
    };
    let page = answer(api::keys::list);
    router
        .get("/topics/{name}/keys", move |request| match KeysFormat::from_request(request) {
            Some(format) => readers.answer(request, |reader, request| reader.answer_keys(request, format)),
            None => page(request),
        })
        .get("/topics/{name}/keys/{key}", answer(api::keys::get))
        .put("/topics/{name}/keys/{key}", answer(api::keys::put))
        .delete("/topics/{name}/keys/{key}", answer(api::keys::delete))
}

/// Adds the stream routes: requests, JSON and binary messages.
fn add_streams(
    router: Router,
    options: &RouteOptions,
    live: &ConfigHandle,
    hub: &Arc<HubTopics>,
    store: Option<&Arc<StreamService>>,
) -> Router {
    let (list_live, read_live, publish_live, ws_live) =
        (live.clone(), live.clone(), live.clone(), live.clone());
    let (delete_live, delete_store) = (live.clone(), store.cloned());
    let (list_store, read_store, publish_store, ws_store) =
        (store.cloned(), store.cloned(), store.cloned(), store.cloned());
    let (hub, max_message) = (Arc::clone(hub), options.max_message);
    router
        .get("/streams", move |request| api::streams::list(&list_live.config(), list_store.as_ref(), request))
        .get("/streams/{name}", move |request| {
            api::streams::read(&read_live.config(), read_store.as_ref(), request)
        })
        .post("/streams/{name}", move |request| {
            api::streams::append(&publish_live.config(), publish_store.as_ref(), request)
        })
        .delete("/streams/{name}", move |request| {
            api::streams::delete(&delete_live.config(), delete_store.as_ref(), request)
        })
        .websocket(
            "/streams/{name}",
            stream_route(options, move |request| {
                ws_live
                    .config()
                    .admit(request, || connect(request, &ws_live, ws_store.as_ref(), &hub, max_message))
            }),
        )
}

/// Adds the routes for a stream's records and offsets.
fn add_records(
    router: Router,
    live: &ConfigHandle,
    store: Option<&Arc<StreamService>>,
    readers: Readers,
) -> Router {
    let (info_live, records_live) = (live.clone(), live.clone());
    let (info_store, records_store) = (store.cloned(), store.cloned());
    router
        .get("/streams/{name}/info", move |request| {
            api::streams::info(&info_live.config(), info_store.as_ref(), request)
        })
        .get("/streams/{name}/records", move |request| match request.query("follow") {
            Some("true") => readers.answer(request, |reader, request| reader.answer_records(request)),
            None | Some("false") => {
                api::streams::fetch_records(&records_live.config(), records_store.as_ref(), request)
            }
            Some(_) => failure(400, "query parameter `follow` must be true or false").into(),
        })
}

/// `WS /streams/{name}`: binary messages if the client offers that subprotocol, JSON otherwise.
fn connect(
    request: &Request<'_>,
    live: &ConfigHandle,
    store: Option<&Arc<StreamService>>,
    hub: &Arc<HubTopics>,
    max_message: usize,
) -> Result<Box<dyn Handler>, HandshakeRejection> {
    let name = stream_name_of(request).map_err(|problem| HandshakeRejection::request(400, &problem.text))?;
    let Some(store) = store else { return Err(HandshakeRejection::request(404, STREAMS_DISABLED)) };
    if request.subprotocol() == Some(binary::NAME) {
        let (store, hub) = (Arc::clone(store), Arc::clone(hub));
        let client = BinaryClient::websocket(request, live, name, store, hub, max_message)?;
        return Ok(Box::new(client));
    }
    let streams = JsonStreams::new(Some(Arc::clone(store)), Some(name));
    Ok(Box::new(JsonClient::new(request, live, Arc::clone(hub), max_message, streams)?))
}

/// Route options of a connection to one stream: queued messages are never dropped, and batches are sent from the log's
/// memory, uncompressed.
fn stream_route(
    options: &RouteOptions,
    handler: impl Fn(&Request<'_>) -> Result<Box<dyn Handler>, Refusal> + Send + Sync + 'static,
) -> WebSocketRoute {
    let handshake = ServerOptions::new()
        .with_origin(OriginPolicy::any())
        .with_subprotocol(binary::NAME)
        .and_then(|handshake| handshake.with_subprotocol(json::NAME))
        .expect("names of subprotocols are constants, and tokens");
    let route = WebSocketRoute::boxed(handler).with_options(handshake).with_config(stream_config(options));
    limit_messages(options, route)
}

/// Limits the message rate of each connection of the route. After an idle second, the burst equals the rate.
fn limit_messages(options: &RouteOptions, route: WebSocketRoute) -> WebSocketRoute {
    match options.message_rate {
        Some(messages) => route.with_message_rate(messages, messages),
        None => route,
    }
}

fn stream_config(options: &RouteOptions) -> Config {
    let max = options.max_message as u64;
    let config = options.websocket.clone().with_overflow(Overflow::Close);
    config.with_max_message(max).with_max_frame(max)
}

/// The route for binary messages over plain TCP.
pub(crate) fn messages(
    options: &RouteOptions,
    live: &ConfigHandle,
    hub: &Arc<HubTopics>,
    store: &Arc<StreamService>,
) -> MessageRoute {
    let (live, max) = (live.clone(), options.max_message);
    let (store, hub) = (Arc::clone(store), Arc::clone(hub));
    let handler = move |_peer| BinaryClient::plain(&live, Arc::clone(&store), Arc::clone(&hub), max);
    MessageRoute::new(handler).with_config(stream_config(options))
}

/// The limits and timeouts for a WebSocket or a streaming response.
fn socket_config(options: &RouteOptions) -> Config {
    let max = options.max_message as u64;
    options.websocket.clone().with_max_message(max).with_max_frame(max)
}

fn route(
    options: &RouteOptions,
    subprotocol: &str,
    handler: impl Fn(&Request<'_>) -> Result<Box<dyn Handler>, Refusal> + Send + Sync + 'static,
) -> WebSocketRoute {
    let config = socket_config(options);
    // The handler checks the origin: the allowed origins may change.
    let handshake = ServerOptions::new()
        .with_origin(OriginPolicy::any())
        .with_subprotocol(subprotocol)
        .expect("names of subprotocols are constants, and tokens");
    let handshake = match options.deflate {
        Some(mode) => handshake.with_deflate(DeflateConfig::new().with_mode(mode)),
        None => handshake,
    };
    limit_messages(options, WebSocketRoute::boxed(handler)).with_options(handshake).with_config(config)
}
