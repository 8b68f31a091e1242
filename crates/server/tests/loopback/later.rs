//! Answers that complete later, and blocking work.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use sinews_server::{Answer, BlockingConfig, OwnedRequest, PublishOptions, Response, Router, Server};
use sinews_testkit::{Frame, Reply, until_some};

use crate::support::{Client, PATIENCE, Running, get, handshake, patient, post, routes, scripted};

/// Answers that wait until the test provides them.
#[derive(Clone, Default)]
struct ManualAnswers(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    waiting: Vec<(OwnedRequest, Sender<Response>)>,
    wakers: Vec<Waker>,
    dropped: usize,
}

/// Ready when the answer was provided. Its receiver is dropped before the drop counts.
struct ManualAnswer(Receiver<Response>, CountedDrop);

impl Future for ManualAnswer {
    type Output = Response;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Response> {
        let mut state = self.1.0.0.lock().unwrap();
        match self.0.try_recv() {
            Ok(response) => Poll::Ready(response),
            Err(_) => {
                state.wakers.push(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// Counts its drop.
struct CountedDrop(ManualAnswers);

impl Drop for CountedDrop {
    fn drop(&mut self) {
        self.0.0.lock().unwrap().dropped += 1;
    }
}

impl ManualAnswers {
    fn answer_later(&self, request: OwnedRequest) -> ManualAnswer {
        let (sender, receiver) = channel();
        self.0.lock().unwrap().waiting.push((request, sender));
        ManualAnswer(receiver, CountedDrop(self.clone()))
    }

    /// Returns the next waiting request, in order, and the sender of its answer.
    fn next(&self) -> (OwnedRequest, Sender<Response>) {
        self.until(|state| (!state.waiting.is_empty()).then(|| state.waiting.remove(0)))
    }

    fn respond(&self, to: &Sender<Response>, text: &str) {
        to.send(Response::text(text.to_owned())).unwrap();
        let wakers = std::mem::take(&mut self.0.lock().unwrap().wakers);
        wakers.into_iter().for_each(Waker::wake);
    }

    fn until<T>(&self, mut found: impl FnMut(&mut State) -> Option<T>) -> T {
        until_some("a request", || found(&mut self.0.lock().unwrap()))
    }

    fn dropped(&self, count: usize) {
        self.until(|state| (state.dropped >= count).then_some(()));
        assert_eq!(self.0.lock().unwrap().dropped, count);
    }
}

fn manual_router() -> (ManualAnswers, Router) {
    let manual = ManualAnswers::default();
    let (get, post) = (manual.clone(), manual.clone());
    let router = routes()
        .get("/held/{name}", move |request| Answer::later(get.answer_later(request.to_owned())))
        .post("/held/{name}", move |request| Answer::later(post.answer_later(request.to_owned())));
    (manual, router)
}

/// A server with these routes, and a client of it.
fn manual() -> (ManualAnswers, Running, Client) {
    let (manual, router) = manual_router();
    let server = Running::router(router);
    let client = server.connect();
    (manual, server, client)
}

#[test]
fn answer_may_complete_later_and_from_another_thread() {
    let (manual, server, mut client) = manual();
    client.send(post("/held/a%20b?x=1&y", "the body"));
    let (request, answer) = manual.next();
    assert_eq!((request.method(), request.target()), ("POST", "/held/a%20b?x=1&y"));
    assert_eq!((request.path(), request.param("name").as_deref()), ("/held/a%20b", Some("a b")));
    assert_eq!((request.query("x"), request.query("y"), request.query("z")), (Some("1"), Some(""), None));
    assert_eq!(
        (&**request.body(), request.header("HOST").next()),
        (&b"the body"[..], Some(&b"localhost"[..]))
    );
    assert_eq!(request.peer(), client.stream.local_addr().unwrap());
    assert_eq!(server.connect().send(get("/")).answer().status, 200, "other clients are served meanwhile");
    manual.respond(&answer, "later");
    assert_eq!(client.answer().text(), "later");
    manual.dropped(1);
    assert_eq!(client.send(get("/")).answer().text(), "hello\n", "the connection goes on");
}

#[test]
fn requests_after_a_pending_answer_are_answered_in_order() {
    let (manual, _server, mut client) = manual();
    let wire =
        [get("/name/1"), get("/held/2"), get("/name/3"), post("/held/4", "x"), get("/name/5")].concat();
    for cut in [0, 30, get("/name/1").len() + 20, wire.len() - 5, wire.len()] {
        client.send(&wire[..cut]).send(&wire[cut..]);
        assert_eq!(client.answer().text(), "1");
        let (_, second) = manual.next();
        assert!(manual.0.lock().unwrap().waiting.is_empty(), "the fourth waits for the second");
        manual.respond(&second, "2");
        assert_eq!((client.answer().text(), client.answer().text()), ("2", "3"));
        let (_, fourth) = manual.next();
        manual.respond(&fourth, "4");
        assert_eq!((client.answer().text(), client.answer().text()), ("4", "5"));
    }
}

#[test]
fn many_pending_answers_are_all_sent() {
    const COUNT: usize = 300;
    let (manual, router) = manual_router();
    let server = Running::router(router);
    let mut clients: Vec<_> = (0..COUNT).map(|_| server.connect()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        client.send(get(&format!("/held/{number}")));
    }
    let mut waiting: Vec<_> = (0..COUNT).map(|_| manual.next()).collect();
    waiting.reverse();
    for (request, answer) in waiting {
        manual.respond(&answer, &request.param("name").unwrap());
    }
    for (number, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.answer().text(), number.to_string());
    }
}

#[test]
fn self_waking_future_makes_progress_and_others_are_served() {
    let router = routes().get("/count", |_| {
        let mut left = 1_000;
        Answer::later(async move {
            poll_fn(|cx| {
                left -= 1;
                cx.waker().wake_by_ref();
                if left == 0 { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            Response::text("counted")
        })
    });
    let server = Running::router(router.get("/ready", |_| Answer::later(async { Response::text("ready") })));
    let mut client = server.connect();
    assert_eq!(client.send(get("/count") + &get("/ready")).answer().text(), "counted");
    assert_eq!(client.answer().text(), "ready");
    let (mut forever, mut other) = (server.connect(), server.connect());
    forever.send(get("/count").repeat(20));
    for _ in 0..20 {
        assert_eq!(other.send(get("/")).answer().status, 200);
        assert_eq!(forever.answer().text(), "counted");
    }
}

#[test]
fn future_is_dropped_with_its_connection() {
    let (manual, server, mut client) = manual();
    client.send(get("/held/x"));
    let (_, answer) = manual.next();
    client.reset();
    manual.dropped(1);
    assert!(answer.send(Response::new(200)).is_err());
    // While the next request waits, reads are paused: the end may be noticed with the answer only.
    let mut client = server.connect();
    client.send(get("/held/x") + &get("/"));
    let (_, answer) = manual.next();
    client.reset();
    let _ = answer.send(Response::new(200));
    manual.0.lock().unwrap().wakers.drain(..).for_each(Waker::wake);
    manual.dropped(2);
    assert_eq!(server.connect().send(get("/")).answer().status, 200);
}

#[test]
fn client_that_has_closed_its_side_gets_the_later_answer_too() {
    let (manual, server, mut client) = manual();
    client.send(get("/held/x")).half_close();
    let (_, answer) = manual.next();
    assert_eq!(server.connect().send(get("/")).answer().status, 200);
    manual.respond(&answer, "last");
    let last = client.answer();
    assert_eq!((last.text(), last.closes()), ("last", true));
    client.assert_end();
}

#[test]
fn pending_answer_times_out() {
    let (manual, router) = manual_router();
    let http = patient().with_response_timeout(Duration::from_millis(20));
    let server = Running::server(Server::new(router).threads(1).http(http));
    let mut client = server.connect();
    client.send(get("/held/x") + &get("/name/next"));
    let answer = client.answer();
    assert_eq!((answer.status, answer.closes()), (503, false));
    assert_eq!(client.answer().text(), "next", "its framing was sound");
    manual.dropped(1);
    let (_, late) = manual.next();
    assert!(late.send(Response::new(200)).is_err());
    // A wakeup of a dropped future has no effect.
    manual.0.lock().unwrap().wakers.drain(..).for_each(Waker::wake);
    assert_eq!(client.send(get("/")).answer().status, 200);
}

#[test]
fn stop_waits_for_pending_answers() {
    let (manual, router) = manual_router();
    let server = Running::router(router);
    let (mut client, mut idle) = (server.connect(), server.connect());
    assert_eq!(idle.send(get("/")).answer().status, 200);
    client.send(get("/held/x"));
    let (_, answer) = manual.next();
    server.stop.stop();
    idle.assert_end();
    manual.respond(&answer, "last");
    let last = client.answer();
    assert_eq!((last.text(), last.closes()), ("last", true));
    client.assert_end();
    drop(client);
    server.join();
}

#[test]
fn later_answer_has_no_body_for_head_and_closes_on_request() {
    let router = Router::new().get("/", |_| Answer::later(async { Response::text("later") }));
    let (_server, mut client) = Running::connected(router);
    client.send(get("/").replace("GET", "HEAD"));
    assert_eq!(client.answer_to("HEAD").unwrap().header("content-length"), Some("5"));
    assert_eq!(client.send(get("/").replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n")).last_status(), 200);
}

#[test]
fn upgrade_after_a_pending_answer_waits() {
    let (manual, _server, mut client) = manual();
    client.send(get("/held/x") + &handshake("/echo", ""));
    let (_, answer) = manual.next();
    manual.respond(&answer, "first");
    assert_eq!(client.answer().text(), "first");
    let mut peer = client.upgraded();
    peer.send(&Frame::text("x")).expect(&Reply::text("x"));
}

#[test]
fn later_answer_may_publish() {
    let (route, _events) = scripted(|event, cx| {
        if matches!(event, crate::support::HandlerEvent::Open) {
            cx.subscribe("news").unwrap();
        }
    });
    let router = Router::new().websocket("/news", route).post("/news", |request| {
        let (request, publisher) = (request.to_owned(), request.publisher());
        Answer::later(async move {
            let message = sinews_server::Prepared::binary(request.body().clone());
            Response::text(format!("{:?}", publisher.publish("news", &message, PublishOptions::new())))
        })
    });
    let server = Running::router(router);
    let mut hearer = server.websocket("/news");
    hearer.sync();
    assert_eq!(server.connect().send(post("/news", "late")).answer().text(), "Ok(1)");
    hearer.expect(&Reply::binary("late"));
}

/// Creates a gate that blocks each thread until it is opened.
fn gate() -> (Sender<()>, Arc<Mutex<Receiver<()>>>) {
    let (open, gate) = channel();
    (open, Arc::new(Mutex::new(gate)))
}

#[test]
fn blocking_work_does_not_delay_other_requests() {
    let (open, gate) = gate();
    let router = routes().post("/work", move |request| {
        let (request, gate) = (request.to_owned(), gate.clone());
        Answer::blocking(move || {
            gate.lock().unwrap().recv().unwrap();
            Response::text(request.body().clone())
        })
    });
    let (server, mut client) = Running::connected(router);
    client.send(post("/work", "done") + &get("/name/next"));
    for _ in 0..10 {
        assert_eq!(server.connect().send(get("/")).answer().status, 200);
    }
    open.send(()).unwrap();
    assert_eq!((client.answer().text(), client.answer().text()), ("done", "next"));
}

#[test]
fn work_beyond_the_queue_is_rejected() {
    let (open, gate) = gate();
    let (started, begins) = channel();
    let router = routes().get("/work", move |_| {
        let (gate, started) = (gate.clone(), started.clone());
        Answer::blocking(move || {
            started.send(()).unwrap();
            gate.lock().unwrap().recv().unwrap();
            Response::text("done")
        })
    });
    let blocking = BlockingConfig::default().with_threads(1).with_queue(1);
    let server = Running::server(Server::new(router).threads(1).blocking(blocking));
    let mut first = server.connect();
    first.send(get("/work"));
    begins.recv_timeout(PATIENCE).unwrap();
    let mut second = server.connect();
    second.send(get("/work"));
    // Earlier input has been handled when this is answered.
    assert_eq!(server.connect().send(get("/")).answer().status, 200);
    let mut third = server.connect();
    let answer = third.send(get("/work")).answer();
    assert_eq!((answer.status, answer.header("retry-after"), answer.closes()), (503, Some("1"), false));
    open.send(()).unwrap();
    open.send(()).unwrap();
    assert_eq!((first.answer().text(), second.answer().text()), ("done", "done"));
    third.send(get("/work"));
    open.send(()).unwrap();
    assert_eq!(third.answer().text(), "done");
}

#[test]
fn future_may_wait_for_blocking_work() {
    let router = Router::new().get("/twice", |request| {
        let pool = request.pool().clone();
        Answer::later(async move {
            let here = std::thread::current().id();
            let mut sum = 0;
            for number in 1..=2 {
                match pool.run(move || (std::thread::current().id() != here, number)).await {
                    Ok((elsewhere, number)) => sum += if elsewhere { number } else { 100 },
                    Err(rejected) => return rejected.response(),
                }
            }
            Response::text(sum.to_string())
        })
    });
    let server = Running::router(router);
    assert_eq!(server.connect().send(get("/twice")).answer().text(), "3");
}

#[test]
fn pool_without_threads_is_rejected() {
    let server = Server::new(Router::new()).blocking(BlockingConfig::default().with_threads(0));
    let error = server.listen(([127, 0, 0, 1], 0).into()).bind().unwrap_err();
    assert!(error.to_string().contains("threads must be at least 1"), "{error}");
}
