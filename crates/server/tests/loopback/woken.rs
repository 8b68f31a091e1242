//! Handlers that are woken by other threads.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::Waker;
use std::time::{Duration, Instant};

use sinews_server::{Closed, Context, Handler, Payload, Router, WebSocketRoute};
use sinews_testkit::{Frame, Reply};

use crate::support::{PATIENCE, Running};

/// Hands out its waker with each message, and reports how often it was woken.
struct Sleeper {
    wakers: Sender<Waker>,
    woken: Sender<u32>,
    count: u32,
    /// How often to wake itself.
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
        // The test may have dropped its receiver already.
        let _ = self.woken.send(self.count);
    }

    fn close(&mut self, _: &Closed, cx: &mut Context<'_>) {
        // A wakeup after the close has no effect.
        cx.waker().wake();
    }
}

fn serve() -> (Running, Receiver<Waker>, Receiver<u32>) {
    let ((wakers, waker), (woken, reported)) = (channel(), channel());
    let route = WebSocketRoute::new(move |_| {
        Ok(Sleeper { wakers: wakers.clone(), woken: woken.clone(), count: 0, again: 0 })
    });
    (Running::router(Router::new().websocket("/", route)), waker, reported)
}

fn text(reply: Reply) -> String {
    let Reply::Message(_, text) = reply else { panic!("{reply:?}") };
    String::from_utf8(text).unwrap()
}

#[test]
fn handler_is_woken_from_another_thread() {
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

/// Wakeups by many threads, any number of times: at least one call after each wakeup, and no more calls than wakeups.
#[test]
fn no_wakeup_is_lost_and_wakeups_are_coalesced() {
    let (server, wakers, reported) = serve();
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
    let before = reported.try_iter().last().unwrap_or(0);
    waker.wake();
    let after = reported.recv_timeout(PATIENCE).unwrap();
    assert!(before < after && after <= 4_001, "{before} and {after}");
}

#[test]
fn self_wakeup_is_handled_in_another_turn() {
    let (server, wakers, reported) = serve();
    let mut peer = server.websocket("/");
    peer.send(&Frame::text("9"));
    wakers.recv_timeout(PATIENCE).unwrap().wake();
    for round in 1..=10 {
        assert_eq!(reported.recv_timeout(PATIENCE).unwrap(), round);
    }
    // It was not woken again: the count rises only with the next wakeup.
    peer.send(&Frame::text("-"));
    wakers.recv_timeout(PATIENCE).unwrap().wake();
    assert_eq!(reported.recv_timeout(PATIENCE).unwrap(), 11);
}

#[test]
fn waker_outlives_its_connection_and_its_server() {
    let (server, wakers, reported) = serve();
    let mut gone = server.websocket("/");
    gone.send(&Frame::text("-"));
    let of_gone = wakers.recv_timeout(PATIENCE).unwrap();
    drop(gone);
    // A connection that reuses the index is not woken.
    let mut peer = server.websocket("/");
    peer.send(&Frame::text("-"));
    let waker = wakers.recv_timeout(PATIENCE).unwrap();
    assert!(!waker.will_wake(&of_gone) && waker.will_wake(&waker.clone()));
    reported.try_iter().count();
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

/// Takes one message, and the next one after a wakeup.
struct Slow {
    wakers: Sender<Waker>,
    event: Sender<String>,
}

impl Handler for Slow {
    fn message(&mut self, payload: Payload<'_>, cx: &mut Context<'_>) {
        cx.pause_reads();
        let _ = self.event.send(payload.text().unwrap().to_owned());
        let _ = self.wakers.send(cx.waker());
    }

    fn woken(&mut self, cx: &mut Context<'_>) {
        cx.resume_reads();
    }
}

#[test]
fn handler_with_paused_reads_gets_one_message_at_a_time() {
    let ((wakers, waker), (event, messages)) = (channel(), channel());
    let route = WebSocketRoute::new(move |_| Ok(Slow { wakers: wakers.clone(), event: event.clone() }));
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
    // No message is queued any more, so reads are not paused.
    peer.send(&Frame::text("last"));
    assert_eq!(messages.recv_timeout(PATIENCE).unwrap(), "last");
}

/// Answers, and sends more after it has woken itself.
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
fn sends_after_a_self_wakeup_leave_without_another_event() {
    let server = Running::router(Router::new().websocket("/", WebSocketRoute::new(|_| Ok(Twice))));
    let mut peer = server.websocket("/");
    let times = [(); 10].map(|()| {
        let begun = Instant::now();
        peer.send(&Frame::text("-"));
        assert_eq!(text(peer.next().unwrap()), "first");
        assert_eq!(text(peer.next().unwrap()), "second");
        begun.elapsed()
    });
    // A loop that sleeps until the completion of the answer takes a second for each. A busy machine is late for some.
    let late = times.iter().filter(|time| **time >= Duration::from_millis(900)).count();
    assert!(late < times.len() / 2, "ten answers took {times:?}");
}
