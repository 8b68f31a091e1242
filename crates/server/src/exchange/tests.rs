//! Exchanges without HTTP/1.1: a made-up framing carries several at once on one connection, as HTTP/2 does.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sinews_engine::{App, ConnId, ConnectionOrigin, Engine, EngineConfig, Flow, Io, ListenOptions, Listener};
use sinews_http::{OwnedHead, Version};
use sinews_proto::Time;

use super::*;
use crate::date::Date;
use crate::limits::Gate;
use crate::pool::BlockingPool;
use crate::request::ResponseBody;
use crate::tasks::Tasks;
use crate::topics::mail::Mail;
use crate::topics::{Directory, TopicRules, Topics};
use crate::{Context, Handler, Payload, TopicConfig};

const PEER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 7);

/// Accepts a connection, whose number the exchanges need for wakeups.
#[derive(Default)]
struct Accept(Option<ConnId>);

impl App for Accept {
    type Chain = std::io::Cursor<Vec<u8>>;
    type Mail = Mail;

    fn accepted(&mut self, _: &mut Io, conn: ConnId, _: ConnectionOrigin) {
        self.0 = Some(conn);
    }
    fn received(&mut self, _: &mut Io, _: ConnId, _: &mut [u8]) -> Flow {
        Flow::Continue
    }
    fn ended(&mut self, _: &mut Io, _: ConnId) {}
}

/// A connection of the made-up framing. Requests have numbers, and are complete in any order.
struct NumberedFraming {
    _engine: Engine<Accept>,
    conn: ConnId,
    _client: TcpStream,
    router: Router,
    services: Services,
    /// Requests whose body has not arrived.
    waiting: BTreeMap<u32, Box<RetainedRequest>>,
    /// Requests whose answer has not arrived.
    pending: BTreeMap<u32, Box<PendingAnswer>>,
    /// Sent answers: the number, the status, the header `x-after`, and the body.
    sent: Vec<(u32, u16, String, Vec<u8>)>,
}

impl NumberedFraming {
    fn new(router: Router) -> Self {
        let listener = Listener::bind(([127, 0, 0, 1], 0).into(), &ListenOptions::default()).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut engine = Engine::new(EngineConfig::default(), vec![listener]).unwrap();
        let mut accept = Accept::default();
        while accept.0.is_none() {
            engine.turn(&mut accept, Some(Duration::from_millis(10))).unwrap();
        }
        let rules = TopicRules::default();
        let posts = Arc::new([engine.post()]);
        let services = Services {
            http: Arc::default(),
            topics: Topics::new(0, TopicConfig::default(), Directory::new(1, rules), posts),
            tasks: Tasks::new(engine.post(), BlockingPool::new(Default::default())),
            counters: Arc::default(),
            gate: Arc::new(Gate::new(crate::Limits::default(), Arc::default(), Vec::new())),
            proxies: Arc::default(),
            date: Date::default(),
            now: Time::ZERO,
            epoch: Instant::now(),
            stopping_since: None,
            encrypted: false,
            tag: 0,
            http3_port: None,
        };
        let (waiting, pending, sent) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        let conn = accept.0.unwrap();
        Self { _engine: engine, conn, _client: client, router, services, waiting, pending, sent }
    }

    /// Receives a head that no HTTP/1.1 parser has seen, with its body if that has arrived.
    fn receive(&mut self, number: u32, method: &str, target: &str, body: Option<&[u8]>) {
        let fields = [("host", &b"a"[..]), ("x-number", b"1")];
        let head = OwnedHead::from_fields(method, target, Version::Http2, fields).unwrap();
        let head = head.head();
        let exchange = HttpExchange::new(&head, body.unwrap_or_default(), PEER, None, &self.router);
        if let Some(mut response) = exchange.before(&mut self.services) {
            exchange.complete(&mut response, &mut self.services);
            return send(&mut self.sent, number, &response, false);
        }
        let outcome = match body {
            Some(_) => exchange.respond(self.conn, &mut self.services),
            None => {
                self.waiting.insert(number, exchange.retain());
                return;
            }
        };
        finish(&exchange, number, outcome, &mut self.services, &mut self.sent, &mut self.pending);
    }

    /// Receives the body of an earlier head.
    fn receive_body(&mut self, number: u32, body: &[u8]) {
        let request = self.waiting.remove(&number).unwrap();
        let Self { conn, router, services, sent, pending, .. } = self;
        request.with_exchange(body, PEER, None, router, |exchange| {
            let outcome = exchange.respond(*conn, services);
            finish(exchange, number, outcome, services, sent, pending);
        });
    }

    /// Polls the pending answers after a wakeup.
    fn poll(&mut self) {
        assert_eq!(self.services.tasks.take_woken(), [self.conn]);
        let Self { router, services, sent, .. } = self;
        self.pending.retain(|number, pending| {
            let mut response = match pending.poll() {
                Poll::Ready(LaterAnswer::Response(response)) => response,
                Poll::Ready(LaterAnswer::Streaming(_)) => unreachable!("no route of these tests streams"),
                Poll::Pending => return true,
            };
            pending.complete(&mut response, router, services);
            send(sent, *number, &response, false);
            false
        });
    }

    fn answers(&self) -> Vec<(u32, u16, &str, &str)> {
        let text = |body| std::str::from_utf8(body).unwrap();
        self.sent
            .iter()
            .map(|(number, status, after, body)| (*number, *status, &**after, text(body)))
            .collect()
    }
}

fn finish(
    exchange: &HttpExchange<'_>,
    number: u32,
    outcome: Outcome<'_>,
    services: &mut Services,
    sent: &mut Vec<(u32, u16, String, Vec<u8>)>,
    pending: &mut BTreeMap<u32, Box<PendingAnswer>>,
) {
    let is_head = exchange.head.method() == "HEAD";
    match outcome {
        Outcome::Ready(mut response) => {
            exchange.complete(&mut response, services);
            send(sent, number, &response, is_head);
        }
        Outcome::Fixed(fixed) => send(sent, number, fixed.prepared(services.http3_port).response(), is_head),
        Outcome::Streaming(_) => unreachable!("no route of these tests streams"),
        Outcome::Pending(answer) => drop(pending.insert(number, answer)),
    }
}

/// Sends an answer in pieces of three bytes, the window of this framing.
fn send(sent: &mut Vec<(u32, u16, String, Vec<u8>)>, number: u32, response: &Response, is_head: bool) {
    let mut body = Vec::new();
    match &response.body {
        _ if is_head => {}
        ResponseBody::Bytes(bytes) => bytes.chunks(3).for_each(|piece| body.extend_from_slice(piece)),
        ResponseBody::File(part) => {
            let mut part = part.clone();
            while let Some(piece) = part.read(3).unwrap() {
                body.extend_from_slice(&piece);
            }
        }
        ResponseBody::Source(part) => body.extend_from_slice(&part.clone().read(usize::MAX).unwrap()),
    }
    let after = response.header("x-after").next().unwrap_or_default().to_owned();
    sent.push((number, response.status(), after, body));
}

/// Routes of all kinds. The wakers of `/later` are stored.
fn router(wakers: &Arc<Mutex<Vec<Waker>>>) -> Router {
    let wakers = Arc::clone(wakers);
    Router::new()
        .fixed("/fixed", Response::text("fixed"))
        .get("/users/{name}", |request| Response::text(request.param("name").unwrap().into_owned()))
        .post("/users/{name}", |request| {
            let name = request.param("name").unwrap().into_owned();
            Response::text([name.as_bytes(), b"=", request.body()].concat())
        })
        .get("/later/{name}", move |request| {
            let (request, wakers, mut is_listed) = (request.to_owned(), Arc::clone(&wakers), false);
            Answer::later(std::future::poll_fn(move |cx| {
                if std::mem::replace(&mut is_listed, true) {
                    return Poll::Ready(Response::text(request.param("name").unwrap().into_owned()));
                }
                wakers.lock().push(cx.waker().clone());
                Poll::Pending
            }))
        })
        .before("/secret", |_| Some(Response::new(403)))
}

#[test]
fn exchanges_of_one_connection_interleave() {
    let wakers = Arc::default();
    let mut framing = NumberedFraming::new(router(&wakers));
    framing.receive(1, "POST", "/users/ann", None);
    framing.receive(3, "GET", "/later/bob?x=1", Some(b""));
    framing.receive(5, "GET", "/fixed", Some(b""));
    framing.receive(7, "HEAD", "/fixed", Some(b""));
    framing.receive(9, "GET", "/secret/x", Some(b""));
    framing.receive(11, "GET", "/users/eve", Some(b""));
    framing.receive(13, "GET", "/none", Some(b""));
    framing.receive(15, "PUT", "/fixed", Some(b""));
    framing.receive_body(1, b"body");
    assert_eq!(wakers.lock().len(), 1);
    wakers.lock().drain(..).for_each(Waker::wake);
    framing.poll();
    assert_eq!(
        framing.answers(),
        [
            (5, 200, "", "fixed"),
            (7, 200, "", ""),
            (9, 403, "", ""),
            (11, 200, "", "eve"),
            (13, 404, "", "not found\n"),
            (15, 405, "", "method not allowed\n"),
            (1, 200, "", "ann=body"),
            (3, 200, "", "bob"),
        ]
    );
    let mut metrics = crate::Metrics::default();
    framing.services.counters.add_to(&mut metrics);
    assert_eq!(metrics.responses, [0, 5, 0, 3, 0], "each answer is counted once");
}

#[test]
fn after_hooks_see_each_answer_with_its_request() {
    let wakers = Arc::default();
    let hooked = router(&wakers).after("/", |request, response| {
        let name = request.param("name").unwrap_or_default();
        response.set_header("x-after", format!("{} {name}", request.head().path()));
    });
    let mut framing = NumberedFraming::new(hooked);
    framing.receive(1, "POST", "/users/ann", None);
    framing.receive(3, "GET", "/later/bob", Some(b""));
    framing.receive(5, "GET", "/fixed", Some(b""));
    framing.receive_body(1, b"");
    wakers.lock().drain(..).for_each(Waker::wake);
    framing.poll();
    assert_eq!(
        framing.answers(),
        [(5, 200, "/fixed ", "fixed"), (1, 200, "/users/ann ann", "ann="), (3, 200, "/later/bob bob", "bob"),]
    );
}

/// A hook would see each request of a fixed response, and take its encoding.
#[test]
fn fixed_responses_that_announce_http3_remain_encoded() {
    let (wakers, port) = (Arc::default(), std::num::NonZeroU16::new(8443).unwrap());
    let mut router = router(&wakers);
    router.announce_http3(port);
    let mut framing = NumberedFraming::new(router);
    let head = OwnedHead::from_fields("GET", "/fixed", Version::Http11, [("host", &b"a"[..])]).unwrap();
    let head = head.head();
    let exchange = HttpExchange::new(&head, &[], PEER, None, &framing.router);
    for (port, announced) in [(None, vec![]), (Some(port), vec!["h3=\":8443\"; ma=86400"])] {
        framing.services.http3_port = port;
        let Outcome::Fixed(fixed) = exchange.respond(framing.conn, &mut framing.services) else {
            panic!("the response is fixed");
        };
        let fixed = fixed.prepared(port);
        assert_eq!(fixed.response().header("Alt-Svc").collect::<Vec<_>>(), announced);
        assert!(fixed.encoded().is_some());
        let mut response = Response::text("other");
        exchange.complete(&mut response, &mut framing.services);
        assert_eq!(response.header("Alt-Svc").collect::<Vec<_>>(), announced);
    }
}

#[test]
fn hooks_of_cross_origin_requests_leave_other_requests_as_they_are() {
    let wakers = Arc::default();
    let refused = |request: &mut Request<'_>| {
        (request.head().method() == "OPTIONS").then(|| Response::new(204).with_header("x-before", "y"))
    };
    let router =
        router(&wakers).cross_origin("/", refused, |_, response| response.set_header("x-after", "y"));
    let mut framing = NumberedFraming::new(router);
    for (method, origin) in
        [("GET", None), ("GET", Some(b"https://a")), ("OPTIONS", None), ("OPTIONS", Some(b"https://a"))]
    {
        let fields = [Some(("host", &b"a"[..])), origin.map(|origin| ("origin", &origin[..]))];
        let head =
            OwnedHead::from_fields(method, "/fixed", Version::Http11, fields.into_iter().flatten()).unwrap();
        let head = head.head();
        let exchange = HttpExchange::new(&head, &[], PEER, None, &framing.router);
        let before = exchange.before(&mut framing.services);
        assert_eq!(before.is_some(), method == "OPTIONS" && origin.is_some());
        let is_fixed = matches!(exchange.respond(framing.conn, &mut framing.services), Outcome::Fixed(_));
        assert_eq!(is_fixed, method == "GET" && origin.is_none(), "its encoding is used again");
        let mut response = Response::text("other");
        exchange.complete(&mut response, &mut framing.services);
        assert_eq!(response.header("x-after").next(), origin.map(|_| "y"));
    }
}

#[test]
fn handshake_of_a_head_without_http1_is_rejected() {
    struct Silent;
    impl Handler for Silent {
        fn message(&mut self, _: Payload<'_>, _: &mut Context<'_>) {}
    }
    let router = Router::new().websocket("/ws", WebSocketRoute::new(|_| Ok(Silent)));
    let mut framing = NumberedFraming::new(router);
    let head = OwnedHead::from_fields("GET", "/ws", Version::Http2, [("host", &b"a"[..])]).unwrap();
    let head = head.head();
    let exchange = HttpExchange::new(&head, &[], PEER, None, &framing.router);
    let route = exchange.websocket_route().expect("the path has a WebSocket route");
    let Err(refusal) = exchange.accept_socket(route, None, &mut framing.services) else {
        panic!("the head has no key");
    };
    assert_eq!(exchange.complete_refusal(refusal, &mut framing.services).status(), 400);
}
