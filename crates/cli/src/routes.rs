//! What `sinews serve` serves.

use std::time::Instant;

use serde_json::json;
use sinews_server::{
    CloseCode, Config, Context, DeflateConfig, DeflateMode, Handler, OriginPolicy, Payload, Prepared,
    Refusal, Request, Response, Router, ServerOptions, Topics, WebSocketRoute,
};

use crate::args::Deflate;
use crate::auth::{Denied, Rights, Want};
use crate::live::{Live, Policy};
use crate::settings::Settings;

/// The chat page: one file, no build step, nothing from elsewhere.
const CHAT: &str = include_str!("../../../web/index.html");

/// What the page may do: only what it brings, and connect to where it came from. `'self'` says so for WebSockets
/// too: in CSP Level 3 it matches `ws:` and `wss:` of the same host and port, and so it does in Firefox, in
/// Chromium since 2018 and in Safari since 16 (2022). Older ones show the page and do not connect; naming `ws: wss:`
/// for them would let injected script talk to any host.
const CHAT_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
     img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
     frame-ancestors 'none'";

/// The routes.
pub(crate) fn router(settings: &Settings, live: &Live) -> Router {
    let (to_echo, to_subscribe, to_publish) = (live.clone(), live.clone(), live.clone());
    Router::new()
        .get("/", |_| {
            Response::html(CHAT)
                .with_header("Content-Security-Policy", CHAT_POLICY)
                .with_header("Cache-Control", "no-cache")
        })
        .healthz("/healthz")
        .readyz("/readyz")
        .metrics("/metrics")
        .websocket(
            "/echo",
            route(settings, RAW, move |request| {
                to_echo.policy().origin.check(request.head())?;
                Ok(Echo)
            }),
        )
        .websocket(
            "/topics/{name}",
            route(settings, RAW, move |request| Subscriber::new(request, &to_subscribe.policy())),
        )
        .post("/topics/{name}", move |request| {
            publish(&to_publish.policy(), request).unwrap_or_else(|denied| denied.response())
        })
}

/// The subprotocol of sockets whose messages are the payloads themselves: browsers that hand over a token in the
/// list of subprotocols need another one that the server can choose.
const RAW: &str = "sinews.raw";

fn route<H: Handler + 'static>(
    settings: &Settings,
    subprotocol: &str,
    handler: impl Fn(&Request<'_>) -> Result<H, Refusal> + Send + Sync + 'static,
) -> WebSocketRoute {
    let max = settings.max_message as u64;
    let config = Config::default().with_max_message(max).with_max_frame(max);
    // The origin is checked by the handler: which ones are allowed may change.
    let options = ServerOptions::new()
        .with_origin(OriginPolicy::any())
        .with_subprotocol(subprotocol)
        .expect("names of subprotocols are constants, and tokens");
    let options = match settings.deflate {
        Deflate::Off => options,
        Deflate::Shared => options.with_deflate(DeflateConfig::new().with_mode(DeflateMode::Shared)),
        Deflate::Dedicated => options.with_deflate(DeflateConfig::new().with_mode(DeflateMode::Dedicated)),
    };
    WebSocketRoute::new(handler).with_options(options).with_config(config)
}

/// `WS /echo`: what comes goes back.
struct Echo;

impl Handler for Echo {
    fn message(&mut self, payload: Payload<'_>, cx: &mut Context<'_>) {
        // After a Close of either side there is nobody to answer.
        let _ = cx.send_payload(payload);
    }
}

/// `WS /topics/{name}`: what comes goes to every subscriber of the topic.
struct Subscriber {
    topic: String,
    /// The sender gets its own messages too.
    include_self: bool,
    rights: Rights,
}

impl Subscriber {
    fn new(request: &Request<'_>, policy: &Policy) -> Result<Self, Refusal> {
        policy.origin.check(request.head())?;
        let topic = topic_of(request).map_err(|problem| bad_request(&problem))?;
        let include_self = match request.query("self") {
            None | Some("true") => true,
            Some("false") => false,
            Some(_) => return Err(bad_request("the query's `self` is true or false")),
        };
        let allowed = |rights: Rights| {
            rights.check(Want::Subscribe(&topic))?;
            Ok(rights)
        };
        let rights = policy.rights(request).and_then(allowed).map_err(|denied| denied.refusal())?;
        Ok(Self { topic, include_self, rights })
    }
}

impl Handler for Subscriber {
    fn open(&mut self, cx: &mut Context<'_>) {
        if let Err(error) = cx.subscribe(&self.topic) {
            // The name was checked before the upgrade, so this is another limit; the client is told.
            let _ = cx.close(CloseCode::POLICY, &error.to_string());
        }
    }

    fn message(&mut self, payload: Payload<'_>, cx: &mut Context<'_>) {
        if let Err(denied) = self.rights.check(Want::Publish(&self.topic)) {
            return close(cx, FORBIDDEN, &denied.problem);
        }
        let message = Prepared::new(payload.kind(), payload.detach());
        if self.include_self {
            cx.publish(&self.topic, &message);
        } else {
            cx.publish_to_others(&self.topic, &message);
        }
    }

    fn deadline(&self) -> Option<Instant> {
        self.rights.deadline()
    }

    fn expired(&mut self, cx: &mut Context<'_>) {
        close(cx, TOKEN_EXPIRED, "the token has expired");
    }
}

/// The connection's token has expired; one with a new token may follow.
pub(crate) const TOKEN_EXPIRED: u16 = 4401;

/// The connection's token does not allow what was sent.
pub(crate) const FORBIDDEN: u16 = 4403;

/// Closes with a code of this program's own.
pub(crate) fn close(cx: &mut Context<'_>, code: u16, reason: &str) {
    /// RFC 6455 section 5.5: 125 bytes in all.
    const REASON_MAX: usize = 123;
    let ends = reason.char_indices().map(|(at, char)| at + char.len_utf8());
    let end = ends.take_while(|end| *end <= REASON_MAX).last().unwrap_or(0);
    if let Some(code) = CloseCode::new(code) {
        // Fails only if a Close is under way, which does as well.
        let _ = cx.close(code, &reason[..end]);
    }
}

/// `POST /topics/{name}`: the body goes to every subscriber.
fn publish(policy: &Policy, request: &mut Request<'_>) -> Result<Response, Denied> {
    // A page elsewhere can make a browser post here, too.
    if policy.origin.check(request.head()).is_err() {
        return Ok(failure(403, "this origin may not publish here; see --origin"));
    }
    let topic = match topic_of(request) {
        Ok(topic) => topic,
        Err(problem) => return Ok(failure(400, &problem)),
    };
    policy.rights(request)?.check(Want::Publish(&topic))?;
    let message = from_body(request.body());
    let subscribers = request.topics().publish(&topic, &message, None);
    Ok(Response::json(format!("{}\n", json!({ "topic": topic, "subscribers": subscribers }))))
}

fn topic_of(request: &Request<'_>) -> Result<String, String> {
    let topic = request.param("name").ok_or("the topic's name is not UTF-8")?;
    if Topics::is_valid(&topic) {
        return Ok(topic.into_owned());
    }
    Err(format!("a topic's name has 1 to {} bytes and no control characters", Topics::NAME_MAX))
}

fn bad_request(problem: &str) -> Refusal {
    let refusal = Refusal::new(400).expect("400 is among the statuses of a refusal");
    refusal.with_body(format!("{problem}\n"))
}

fn failure(status: u16, problem: &str) -> Response {
    Response::json(format!("{}\n", json!({ "error": problem }))).with_status(status)
}

/// Text if it is UTF-8, else binary.
fn from_body(body: &[u8]) -> Prepared {
    match std::str::from_utf8(body) {
        Ok(text) => Prepared::text(text),
        Err(_) => Prepared::binary(body.to_vec()),
    }
}
