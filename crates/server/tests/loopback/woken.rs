//! Handlers that are woken by other threads.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::Waker;
use std::time::{Duration, Instant};

use sinews_server::{Closed, Context, Handler, Payload, Router, WebSocketRoute};
use sinews_testkit::{Frame, Reply};

use crate::support::{PATIENCE, Running};

/// Hands its waker out with each message, and says how often it was woken.
struct Sleeper {
    wakers: Sender<Waker>,
    woken: Sender<u32>,
    count: u32,
    /// Wakes itself so many times more.
    again: u32,
}

impl Handler for Sleeper {
    fn message(&mut self, payload: Payload<'_>, cx: &mut Context<'_>) {
        if let Some(again) = payload.text().and_then(|text| text.parse().ok()) {
            self.again = again;
        }
        self.wakers.send(cx.waker()).unwrap();
    }

    fn woken(&mut self, cx: &mut Context<'_>) {
        self.count += 1;
        if self.again > 0 {
            self.again -= 1;
            cx.waker().wake();
        }
        let _ = cx.send_text(&self.count.to_string());
        // A test that has heard enough is not there any more.
        let _ = self.woken.send(self.count);
    }

    fn close(&mut self, _: &Closed, cx: &mut Context<'_>) {
        // One that is over asks in vain.
        cx.waker().wake();
    }
}

fn serve() -> (Running, Receiver<Waker>, Receiver<u32>) {
    let ((wakers, waker), (woken, told)) = (channel(), channel());
    let route = WebSocketRoute::new(move |_| {
        Ok(Sleeper { wakers: wakers.clone(), woken: woken.clone(), count: 0, again: 0 })
    });
    (Running::router(Router::new().websocket("/", route)), waker, told)
}

fn text(reply: Reply) -> String {
    let Reply::Message(_, text) = reply else { panic!("{reply:?}") };
    String::from_utf8(text).unwrap()
}

#[test]
fn a_handler_is_woken_from_another_thread() {
    let (server, wakers, _told) = serve();
    let mut peer = server.websocket("/");
    peer.send(&Frame::text("-"));
    let waker = wakers.recv_timeout(PATIENCE).unwrap();
    for round in 1..=100 {
        let waker = waker.clone();
        std::thread::spawn(move || waker.wake()).join().unwrap();
        assert_eq!(text(peer.next().unwrap()), round.to_string());
    }
}

/// However many wake it, and however often: at least once behind each wake, and no more often than that.
#[test]
fn no_wake_is_lost_and_many_are_one() {
    let (server, wakers, told) = serve();
    let mut peer = server.websocket("/");
    peer.send(&Frame::text("-"));
    let waker = wakers.recv_timeout(PATIENCE).unwrap();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let waker = waker.clone();
            std::thread::spawn(move || (0..1_000).for_each(|_| waker.wake_by_ref()))
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let before = told.try_iter().last().unwrap_or(0);
    waker.wake();
    let after = told.recv_timeout(PATIENCE).unwrap();
    assert!(before < after && after <= 4_001, "{before} and {after}");
}

#[test]
fn one_that_wakes_itself_is_called_in_another_turn() {
    let (server, wakers, told) = serve();
    let mut peer = server.websocket("/");
    peer.send(&Frame::text("9"));
    wakers.recv_timeout(PATIENCE).unwrap().wake();
    for round in 1..=10 {
        assert_eq!(told.recv_timeout(PATIENCE).unwrap(), round);
    }
    // Nobody has woken it again: the next one is told of the next wake.
    peer.send(&Frame::text("-"));
    wakers.recv_timeout(PATIENCE).unwrap().wake();
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), 11);
}

#[test]
fn a_waker_outlives_its_connection_and_its_server() {
    let (server, wakers, told) = serve();
    let mut gone = server.websocket("/");
    gone.send(&Frame::text("-"));
    let of_gone = wakers.recv_timeout(PATIENCE).unwrap();
    drop(gone);
    // Whoever gets its place is not woken by it.
    let mut peer = server.websocket("/");
    peer.send(&Frame::text("-"));
    let waker = wakers.recv_timeout(PATIENCE).unwrap();
    assert!(!waker.will_wake(&of_gone) && waker.will_wake(&waker.clone()));
    told.try_iter().count();
    for _ in 0..100 {
        of_gone.wake_by_ref();
    }
    waker.wake_by_ref();
    assert_eq!(text(peer.next().unwrap()), "1");
    server.stop.stop_now();
    server.join();
    waker.wake();
    of_gone.wake();
}

/// Takes one message, and the next one when it is woken.
struct Slow {
    wakers: Sender<Waker>,
    heard: Sender<String>,
}

impl Handler for Slow {
    fn message(&mut self, payload: Payload<'_>, cx: &mut Context<'_>) {
        cx.hold();
        let _ = self.heard.send(payload.text().unwrap().to_owned());
        let _ = self.wakers.send(cx.waker());
    }

    fn woken(&mut self, cx: &mut Context<'_>) {
        cx.release();
    }
}

#[test]
fn a_handler_that_holds_gets_one_message_after_the_other() {
    let ((wakers, waker), (heard, messages)) = (channel(), channel());
    let route = WebSocketRoute::new(move |_| Ok(Slow { wakers: wakers.clone(), heard: heard.clone() }));
    let server = Running::router(Router::new().websocket("/", route));
    let mut peer = server.websocket("/");
    // More than one chunk, in one burst and in several.
    for number in 0..200 {
        peer.send(&Frame::text(format!("{number:0>2000}")));
    }
    for number in 0..200 {
        assert_eq!(messages.recv_timeout(PATIENCE).unwrap(), format!("{number:0>2000}"));
        assert!(messages.try_recv().is_err(), "no message before it is wanted");
        waker.recv_timeout(PATIENCE).unwrap().wake();
    }
    // Nothing waits any more, so nothing is held up.
    peer.send(&Frame::text("last"));
    assert_eq!(messages.recv_timeout(PATIENCE).unwrap(), "last");
}

/// Answers, and says more when it has woken itself.
struct Twice;

impl Handler for Twice {
    fn message(&mut self, _: Payload<'_>, cx: &mut Context<'_>) {
        let _ = cx.send_text("first");
        cx.waker().wake();
    }

    fn woken(&mut self, cx: &mut Context<'_>) {
        let _ = cx.send_text("second");
    }
}

#[test]
fn what_a_handler_says_behind_its_answer_leaves_without_another_event() {
    let server = Running::router(Router::new().websocket("/", WebSocketRoute::new(|_| Ok(Twice))));
    let mut peer = server.websocket("/");
    let begun = Instant::now();
    for _ in 0..10 {
        peer.send(&Frame::text("-"));
        assert_eq!(text(peer.next().unwrap()), "first");
        assert_eq!(text(peer.next().unwrap()), "second");
    }
    // A loop that sleeps on the answer's chain takes a second for each.
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(3), "ten answers took {took:?}");
}
