//! The routes of `sinews serve`.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use serde_json::json;
use serde_json::value::RawValue;
use sinews_server::{
    Answer, CloseCode, Closed, Config, Context, DeflateConfig, DeflateMode, Handler, MessageRoute,
    OriginPolicy, Overflow, Payload, Refusal, Request, Response, Router, ServerOptions, WebSocketRoute,
};

use crate::admission::{Rejection, admit};
use crate::args::Deflate;
use crate::auth::{Denied, Rights, Want};
use crate::feed::Viewer;
use crate::health;
use crate::hub::{self, Content, Form, Hub};
use crate::live::{Live, Policy};
use crate::pages;
use crate::protocol::{self, Client};
use crate::settings::Settings;
use crate::streams::binary::{self, Binary};
use crate::streams::json::Side;
use crate::streams::raw::ToStream;
use crate::streams::{self, Store, report};

/// The routes.
pub(crate) fn router(settings: &Settings, live: &Live, hub: &Arc<Hub>, store: Option<&Arc<Store>>) -> Router {
    let (to_echo, to_subscribe, to_publish, to_talk) =
        (live.clone(), live.clone(), live.clone(), live.clone());
    let to_look = live.clone();
    let (of_subscribers, of_publishers, of_clients, of_viewers) =
        (Arc::clone(hub), Arc::clone(hub), Arc::clone(hub), Arc::clone(hub));
    let max_message = settings.max_message;
    let (of_talkers, of_raw, of_posts) = (store.cloned(), store.cloned(), store.cloned());
    let router = health::add_to(report::add_metrics(Router::new(), store, live), store);
    let router = pages::add_to(router)
        .healthz("/healthz")
        .websocket(
            "/echo",
            route(settings, RAW, move |request| admit(&to_echo.policy(), request, || Ok(Echo))),
        )
        .websocket(
            "/topics/{name}",
            route(settings, RAW, move |request| {
                let (hub, policy) = (Arc::clone(&of_subscribers), to_subscribe.policy());
                admit(&policy, request, || Subscriber::new(request, &policy, hub, of_raw.clone()))
            }),
        )
        .websocket(
            "/ws",
            route(settings, protocol::NAME, move |request| {
                let (side, policy) = (Side::new(of_talkers.clone(), None), to_talk.policy());
                let hub = Arc::clone(&of_clients);
                admit(&policy, request, || Client::new(request, &to_talk, hub, max_message, side))
            }),
        )
        .websocket(
            "/dashboard/feed",
            route(settings, RAW, move |request| {
                let (policy, hub) = (to_look.policy(), Arc::clone(&of_viewers));
                admit(&policy, request, || Viewer::new(request, &policy, hub))
            }),
        )
        .post("/topics/{name}", move |request| {
            publish(&to_publish.policy(), &of_publishers, of_posts.as_ref(), request)
                .unwrap_or_else(|denied| denied.response().into())
        });
    let to_all = live.clone();
    let router = router.before("/", move |request| to_all.policy().check_host(request));
    add_streams(router, settings, live, hub, store)
}

/// Adds the routes of streams: requests, JSON and binary messages.
fn add_streams(
    router: Router,
    settings: &Settings,
    live: &Live,
    hub: &Arc<Hub>,
    store: Option<&Arc<Store>>,
) -> Router {
    let (to_list, to_read, to_publish, to_talk) = (live.clone(), live.clone(), live.clone(), live.clone());
    let (to_delete, of_deleters) = (live.clone(), store.cloned());
    let (of_list, of_readers, of_publishers, of_clients) =
        (store.cloned(), store.cloned(), store.cloned(), store.cloned());
    let (hub, max_message) = (Arc::clone(hub), settings.max_message);
    router
        .get("/streams", move |request| streams::http::list(&to_list.policy(), of_list.as_ref(), request))
        .get("/streams/{name}", move |request| {
            streams::http::read(&to_read.policy(), of_readers.as_ref(), request)
        })
        .post("/streams/{name}", move |request| {
            streams::http::publish(&to_publish.policy(), of_publishers.as_ref(), request)
        })
        .delete("/streams/{name}", move |request| {
            streams::http::delete(&to_delete.policy(), of_deleters.as_ref(), request)
        })
        .websocket(
            "/streams/{name}",
            stream_route(settings, move |request| {
                admit(&to_talk.policy(), request, || {
                    streams::connect(request, &to_talk, of_clients.as_ref(), &hub, max_message)
                })
            }),
        )
}

/// Route options of a connection to one stream: queued messages are never dropped, and batches are sent from the log's
/// memory, uncompressed.
fn stream_route<H: Handler + 'static>(
    settings: &Settings,
    handler: impl Fn(&Request<'_>) -> Result<H, Refusal> + Send + Sync + 'static,
) -> WebSocketRoute {
    let options = ServerOptions::new()
        .with_origin(OriginPolicy::any())
        .with_subprotocol(binary::NAME)
        .and_then(|options| options.with_subprotocol(protocol::NAME))
        .expect("names of subprotocols are constants, and tokens");
    let route = WebSocketRoute::new(handler).with_options(options).with_config(stream_config(settings));
    settings.limits.limit_messages(route)
}

fn stream_config(settings: &Settings) -> Config {
    let max = settings.max_message as u64;
    let config = settings.websocket.config().with_overflow(Overflow::Close);
    config.with_max_message(max).with_max_frame(max)
}

/// The route for binary messages over plain TCP.
pub(crate) fn messages(settings: &Settings, live: &Live, store: &Arc<Store>) -> MessageRoute {
    let (live, store, max) = (live.clone(), Arc::clone(store), settings.max_message);
    let handler = move |_peer| Binary::plain(live.clone(), Arc::clone(&store), max);
    MessageRoute::new(handler).with_config(stream_config(settings))
}

/// The subprotocol of sockets whose messages are the payloads themselves. Browsers that pass a token in the list of
/// subprotocols need a second entry that the server can select.
const RAW: &str = "sinews.raw";

fn route<H: Handler + 'static>(
    settings: &Settings,
    subprotocol: &str,
    handler: impl Fn(&Request<'_>) -> Result<H, Refusal> + Send + Sync + 'static,
) -> WebSocketRoute {
    let max = settings.max_message as u64;
    let config = settings.websocket.config().with_max_message(max).with_max_frame(max);
    // The handler checks the origin: the allowed origins may change.
    let options = ServerOptions::new()
        .with_origin(OriginPolicy::any())
        .with_subprotocol(subprotocol)
        .expect("names of subprotocols are constants, and tokens");
    let options = match settings.deflate {
        Deflate::Off => options,
        Deflate::Shared => options.with_deflate(DeflateConfig::new().with_mode(DeflateMode::Shared)),
        Deflate::Dedicated => options.with_deflate(DeflateConfig::new().with_mode(DeflateMode::Dedicated)),
    };
    settings.limits.limit_messages(WebSocketRoute::new(handler)).with_options(options).with_config(config)
}

/// `WS /echo`: returns each message.
struct Echo;

impl Handler for Echo {
    fn message(&mut self, payload: Payload<'_>, cx: &mut Context<'_>) {
        // After a Close of either side, the message is dropped.
        let _ = cx.send_payload(payload);
    }
}

/// `WS /topics/{name}`: a message goes to all subscribers of the topic. A pattern only receives.
struct Subscriber {
    topic: String,
    /// The sender receives its own messages too.
    include_self: bool,
    rights: Rights,
    hub: Arc<Hub>,
    /// The connection counts as a subscriber.
    joined: bool,
    /// Set for durable topics.
    stream: Option<ToStream>,
}

impl Subscriber {
    fn new(
        request: &Request<'_>,
        policy: &Policy,
        hub: Arc<Hub>,
        store: Option<Arc<Store>>,
    ) -> Result<Self, Rejection> {
        let topic = topic_of(request, hub::check_subscription)
            .map_err(|problem| Rejection::request(400, &problem))?;
        let include_self = match request.query("self") {
            None | Some("true") => true,
            Some("false") => false,
            Some(_) => return Err(Rejection::request(400, "query parameter `self` must be true or false")),
        };
        let store = store.filter(|store| store.topics().backs(&topic));
        if store.is_some() && !include_self {
            return Err(Rejection::request(400, "self=false is not supported for durable topics"));
        }
        let allowed = |rights: Rights| {
            rights.check(Want::Subscribe(&topic))?;
            Ok(rights)
        };
        let rights = policy.rights(request).and_then(allowed)?;
        let stream = store.map(ToStream::new);
        Ok(Self { topic, include_self, rights, hub, joined: false, stream })
    }
}

impl Handler for Subscriber {
    fn open(&mut self, cx: &mut Context<'_>) {
        match cx.subscribe(&Form::Plain.topic(&self.topic)) {
            Ok(()) => {
                self.joined = true;
                self.hub.joined(cx, Form::Plain, &self.topic);
                if let Some(stream) = &mut self.stream {
                    stream.open(&self.topic, cx);
                }
            }
            // The name was checked before the upgrade, so this is another limit; the client receives it as the reason.
            Err(error) => close(cx, CloseCode::POLICY, &hub::subscription_fault(error)),
        }
    }

    fn message(&mut self, payload: Payload<'_>, cx: &mut Context<'_>) {
        if let Err(problem) = hub::check_name(&self.topic) {
            // A pattern only receives.
            return close(cx, CloseCode::POLICY, &problem);
        }
        if let Err(denied) = self.rights.check(Want::Publish(&self.topic)) {
            return close(cx, FORBIDDEN, &denied.problem);
        }
        let content = Content::payload(payload.kind(), payload.detach());
        match &mut self.stream {
            Some(stream) => stream.publish(&self.topic, &content, &self.rights, cx),
            None => {
                self.hub.publish(cx, &self.topic, &content, self.include_self);
            }
        }
    }

    fn woken(&mut self, cx: &mut Context<'_>) {
        if let Some(stream) = &mut self.stream {
            stream.woken(cx);
        }
    }

    fn close(&mut self, _: &Closed, cx: &mut Context<'_>) {
        if std::mem::take(&mut self.joined) {
            self.hub.left(cx, Form::Plain, &self.topic);
        }
    }

    fn deadline(&self) -> Option<Instant> {
        self.rights.deadline()
    }

    fn expired(&mut self, cx: &mut Context<'_>) {
        close(cx, TOKEN_EXPIRED, "the token has expired");
    }
}

/// The connection's token has expired; the client may reconnect with a new token.
pub(crate) const TOKEN_EXPIRED: CloseCode = own(4401);

/// The connection's token does not allow the message.
pub(crate) const FORBIDDEN: CloseCode = own(4403);

const fn own(code: u16) -> CloseCode {
    match CloseCode::new(code) {
        Some(code) => code,
        None => panic!("not within 4000 to 4999"),
    }
}

/// Closes with a reason that is cut to the limit of a Close (RFC 6455 section 5.5).
pub(crate) fn close(cx: &mut Context<'_>, code: CloseCode, reason: &str) {
    const REASON_MAX: usize = 123;
    let ends = reason.char_indices().map(|(at, char)| at + char.len_utf8());
    let end = ends.take_while(|end| *end <= REASON_MAX).last().unwrap_or(0);
    // Fails only if a Close is in progress, which has the same effect.
    let _ = cx.close(code, &reason[..end]);
}

/// `POST /topics/{name}`: the body goes to all subscribers.
fn publish(
    policy: &Policy,
    hub: &Hub,
    store: Option<&Arc<Store>>,
    request: &mut Request<'_>,
) -> Result<Answer, Denied> {
    // A page of another origin can make a browser post here, too.
    if let Err(rejection) = policy.check_origin(request) {
        return Ok(failure(403, rejection.text()).into());
    }
    let topic = match topic_of(request, hub::check_name) {
        Ok(topic) => topic,
        Err(problem) => return Ok(failure(400, &problem).into()),
    };
    let rights = policy.rights(request)?;
    rights.check(Want::Publish(&topic))?;
    let content = match content_of(request) {
        Ok(content) => content,
        Err((status, problem)) => return Ok(failure(status, &problem).into()),
    };
    if let Some(store) = store.filter(|store| store.topics().backs(&topic)) {
        return Ok(streams::http::publish_to_topic(Arc::clone(store), topic, content, rights));
    }
    let subscribers = hub.publish(request.topics(), &topic, &content, true);
    Ok(Response::json(format!("{}\n", json!({ "topic": topic, "subscribers": subscribers }))).into())
}

/// The content of a body by its type, as for streams: JSON, bytes, or else text if it is UTF-8.
fn content_of(request: &Request<'_>) -> Result<Content, (u16, String)> {
    let body = request.body();
    let bytes = || Bytes::copy_from_slice(body);
    match &*media_type(request) {
        "application/json" => match serde_json::from_slice::<&RawValue>(body) {
            Ok(_) => Ok(Content::Json(bytes())),
            Err(error) => Err((400, format!("the body is not valid JSON: {error}"))),
        },
        "application/octet-stream" => Ok(Content::Binary(bytes())),
        "application/x-ndjson" | "application/jsonl" => {
            Err((415, "a topic accepts one message in a request; lines of JSON are for /streams".to_owned()))
        }
        _ if std::str::from_utf8(body).is_ok() => Ok(Content::Text(bytes())),
        _ => Ok(Content::Binary(bytes())),
    }
}

/// The type of a request's body in lower case, without parameters.
pub(crate) fn media_type(request: &Request<'_>) -> String {
    let kind = request.head().header("content-type").next().unwrap_or_default();
    let kind = std::str::from_utf8(kind).unwrap_or_default();
    kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

fn topic_of(request: &Request<'_>, check: fn(&str) -> Result<(), String>) -> Result<String, String> {
    let topic = request.param("name").ok_or("the topic's name is not UTF-8")?;
    check(&topic)?;
    Ok(topic.into_owned())
}

pub(crate) fn failure(status: u16, problem: &str) -> Response {
    Response::json(format!("{}\n", json!({ "error": problem }))).with_status(status)
}
