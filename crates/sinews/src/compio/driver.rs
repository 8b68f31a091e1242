//! A connection and its transport: at most one receive and one send in flight, both stored here.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker, ready};
use std::time::Instant;

use compio::runtime::CancelToken;
use sinews_proto::Time;

use super::app_buffer::{AppBuffer, DIRECT_MIN};
use super::app_memory::AppMemory;
use super::transport::{ReceiveResult, SendResult, Sink, Source, Transport};
use super::transport_io::TransportIo;
use crate::driver::{Driver, DriverTiming};
use crate::link::{Link, NextStep, ReceiveBuffer};
use crate::reading::ReadStep;

/// A connection and its transport.
pub(super) struct CompioDriver<S: Transport> {
    source: S::Source,
    sink: S::Sink,
    pub(super) link: Link,
    timing: DriverTiming,
    /// Wakes for the link's deadline, or to free spare memory; created when first needed.
    timer: Option<ConnectionTimer>,
    /// The application's memory that a message is received into.
    pub(super) app_buffer: Option<Box<AppBuffer>>,
    /// The end of the sending side has begun.
    shut: bool,
}

impl<S: Transport> CompioDriver<S> {
    pub(super) fn new(wire: TransportIo<S>, link: Link) -> Self {
        let TransportIo { source, sink } = wire;
        let timing = DriverTiming::new(link.now);
        Self { source, sink, link, timing, timer: None, app_buffer: None, shut: false }
    }

    pub(super) fn sink(&self) -> &S::Sink {
        &self.sink
    }

    pub(super) fn sink_mut(&mut self) -> &mut S::Sink {
        &mut self.sink
    }

    fn start_receive(&mut self) {
        if self.start_app_receive() {
            return;
        }
        let message = if self.source.is_direct() { self.link.take_message() } else { None };
        let buffer = message.or_else(|| self.source.wants_block().then(|| self.link.take_block()));
        self.source.start(buffer);
    }

    /// Begins a receive into the application's memory, if much payload remains.
    fn start_app_receive(&mut self) -> bool {
        let Some(app_buffer) = self.app_buffer.as_mut().filter(|app_buffer| app_buffer.started) else {
            return false;
        };
        let most = self.link.awaits_piece().min(app_buffer.capacity - app_buffer.at);
        if most < DIRECT_MIN {
            return false;
        }
        let Some(memory) = app_buffer.memory.take() else { return false };
        app_buffer.memory = self.source.start_app_receive(memory, app_buffer.at, most);
        app_buffer.memory.is_none()
    }

    /// Processes a completed receive into the application's memory. Its call may have been dropped.
    fn app_receive_completed(
        &mut self,
        mut memory: Box<dyn AppMemory>,
        at: usize,
        result: io::Result<usize>,
    ) {
        let app_buffer = self.app_buffer.as_deref_mut().filter(|app_buffer| app_buffer.memory.is_none());
        match result {
            Ok(0) => self.link.ended(None),
            Ok(count) => {
                match (self.link.piece_received(&mut memory.bytes_mut()[at..at + count]), app_buffer) {
                    (Some(last), Some(app_buffer)) => {
                        app_buffer.at = at + count;
                        app_buffer.piece =
                            Some((app_buffer.piece.map_or(0, |(before, _)| before) + count, last));
                        app_buffer.memory = Some(memory);
                        return;
                    }
                    (Some(true), None) => self.link.skipped(),
                    _ => {}
                }
            }
            Err(error) => self.link.ended(Some(error)),
        }
        if let Some(app_buffer) =
            self.app_buffer.as_deref_mut().filter(|app_buffer| app_buffer.memory.is_none())
        {
            app_buffer.memory = Some(memory);
        }
    }

    /// The next event, or a piece received into the application's memory; `None`: the connection has ended.
    pub(super) fn poll_step(&mut self, cx: &mut Context<'_>) -> Poll<Option<ReadStep>> {
        loop {
            if self.app_buffer.as_ref().is_some_and(|app_buffer| app_buffer.piece.is_some()) {
                return Poll::Ready(Some(ReadStep::Piece));
            }
            if let Some(event) = self.link.pull() {
                if self.link.is_urgent(&event, now) {
                    let _ = self.poll_send(cx);
                }
                return Poll::Ready(Some(ReadStep::Event(event)));
            }
            if !ready!(self.poll_more(cx)) {
                return Poll::Ready(None);
            }
        }
    }

    /// Waits until the kernel returns the application's memory.
    pub(super) fn poll_buffer_returned(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.app_buffer.as_ref().is_some_and(|app_buffer| app_buffer.memory.is_none()) {
            self.source.cancel_app_receive();
            match ready!(poll_uncancelled(cx, |cx| self.source.poll(cx))) {
                // A cancelled operation ends with an error.
                ReceiveResult::AppMemory(memory, _, Err(_)) => {
                    if let Some(app_buffer) = &mut self.app_buffer {
                        app_buffer.memory = Some(memory);
                    }
                }
                received => drop(self.handle_received(received)),
            }
        }
        Poll::Ready(())
    }

    /// Moves bytes that the source holds into a block, or into the memory of a message.
    fn take_buffered(&mut self) {
        let mut buffer = self.link.take_buffer();
        let count = match &mut buffer {
            ReceiveBuffer::Block(block) => {
                let most = block.capacity() - block.len();
                self.source.drain(block, most)
            }
            ReceiveBuffer::Message(memory, most) => self.source.drain(memory, *most),
        };
        self.link.received(buffer, count);
    }

    /// Processes a completed receive; `false`: the next may be started.
    fn handle_received(&mut self, received: ReceiveResult) -> bool {
        match received {
            ReceiveResult::Nothing => return false,
            ReceiveResult::Buffered => self.take_buffered(),
            ReceiveResult::Filled(buffer, Ok(count)) => {
                self.link.received(buffer, count);
                if count == 0 {
                    self.link.ended(None);
                }
            }
            ReceiveResult::Filled(buffer, Err(error)) => {
                self.link.received(buffer, 0);
                if error.kind() == io::ErrorKind::WouldBlock {
                    return false;
                }
                self.link.ended(Some(error));
            }
            ReceiveResult::AppMemory(memory, at, result) => self.app_receive_completed(memory, at, result),
            ReceiveResult::Ended(error) => self.link.ended(error),
        }
        true
    }

    /// Whether the transport has bytes of its own to send, and may send them.
    fn wants_send_itself(&self) -> bool {
        self.sink.wants_send() && self.link.check_sending().is_ok()
    }

    fn handle_sent(&mut self, left: SendResult) {
        match left {
            SendResult::Sent(chain, result) => {
                let wanted = chain.as_ref().is_some_and(|chain| !chain.is_empty());
                if let Some(chain) = chain {
                    self.link.return_send(chain);
                }
                match result {
                    Ok(0) if wanted => self.link.send_failed(io::ErrorKind::WriteZero.into()),
                    Ok(count) => self.link.sent(count),
                    Err(error) => self.link.send_failed(error),
                }
            }
            SendResult::Shut(Ok(())) => self.link.shut(),
            SendResult::Shut(Err(error)) => self.link.send_failed(error),
        }
    }
}

impl<S: Transport> Driver for CompioDriver<S> {
    const TURN: u32 = 4096;

    fn poll_turn(cx: &mut Context<'_>) -> Poll<()> {
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    #[inline]
    fn link(&mut self) -> &mut Link {
        &mut self.link
    }

    #[inline]
    fn timing(&mut self) -> &mut DriverTiming {
        &mut self.timing
    }

    #[inline]
    fn clock() -> Time {
        now()
    }

    fn poll_queued(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // Operations still in flight at the end are cancelled with the connection.
        while self.link.next() != NextStep::Ended {
            if !self.sink.is_busy() {
                let chain = self.link.take_send();
                if chain.is_none() && !self.wants_send_itself() {
                    break;
                }
                self.sink.start(chain);
            }
            let left = ready!(poll_uncancelled(cx, |cx| self.sink.poll(cx)));
            self.handle_sent(left);
        }
        Poll::Ready(())
    }

    #[inline]
    fn wants_send(&mut self) -> bool {
        let wanted = self.sink.is_busy() || self.link.wants_send() || self.wants_send_itself();
        wanted && self.link.next() != NextStep::Ended
    }

    fn poll_shut(&mut self, cx: &mut Context<'_>) {
        if !self.shut && !self.sink.is_busy() {
            self.shut = true;
            self.sink.start_shut();
        }
        if let Poll::Ready(left) = poll_uncancelled(cx, |cx| self.sink.poll(cx)) {
            self.handle_sent(left);
        }
    }

    #[inline]
    fn poll_transport(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if !self.source.is_busy() {
                self.start_receive();
            }
            let received = ready!(poll_uncancelled(cx, |cx| self.source.poll(cx)));
            self.link.now = now();
            if self.handle_received(received) {
                return Poll::Ready(());
            }
        }
    }

    /// The operation has to own the memory: see [`AppBuffer`].
    fn poll_piece(&mut self, _: &mut Context<'_>, _: &mut [u8]) -> Option<(usize, bool)> {
        None
    }

    fn set_timer(&mut self, at: Time) {
        let at = epoch() + at.since(Time::ZERO);
        self.timer = Some(ConnectionTimer { sleep: Box::pin(compio::time::sleep_until(at)), signal: None });
    }

    fn poll_timer_fired(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(timer) = &mut self.timer else { return Poll::Pending };
        ready!(timer.poll(cx));
        self.timer = None;
        Poll::Ready(())
    }
}

/// A timer of the runtime. A connection asks for it with each wait, but the runtime is asked only when the timer has
/// fired, or when another task waits: a poll looks the timer up among those of all connections.
struct ConnectionTimer {
    sleep: Pin<Box<dyn Future<Output = ()>>>,
    /// `None` until the first poll.
    signal: Option<Arc<TimerSignal>>,
}

/// Wakes the task that waits for a timer.
struct TimerSignal {
    fired: AtomicBool,
    task: Waker,
}

impl ConnectionTimer {
    #[inline]
    fn poll(&mut self, cx: &Context<'_>) -> Poll<()> {
        let waits =
            |signal: &TimerSignal| !signal.fired.load(Ordering::Acquire) && signal.task.will_wake(cx.waker());
        if self.signal.as_deref().is_some_and(waits) {
            return Poll::Pending;
        }
        let signal = Arc::new(TimerSignal { fired: AtomicBool::new(false), task: cx.waker().clone() });
        self.signal = Some(signal.clone());
        self.sleep.as_mut().poll(&mut Context::from_waker(&Waker::from(signal)))
    }
}

impl Wake for TimerSignal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.fired.store(true, Ordering::Release);
        self.task.wake_by_ref();
    }
}

/// Polls an operation of the connection outside of the scope of any [`CancelToken`]: the operation outlives the
/// future that began it, and another future may wait for it when the token is used.
fn poll_uncancelled<T>(cx: &mut Context<'_>, poll: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
    struct OuterWaker(Waker);

    impl Wake for OuterWaker {
        fn wake(self: Arc<Self>) {
            self.0.wake_by_ref();
        }
    }

    match pin!(CancelToken::current()).poll(cx) {
        Poll::Ready(None) | Poll::Pending => poll(cx),
        Poll::Ready(Some(_)) => {
            let waker = Waker::from(Arc::new(OuterWaker(cx.waker().clone())));
            poll(&mut Context::from_waker(&waker))
        }
    }
}

/// The time since the first call in this program.
#[inline]
pub(super) fn now() -> Time {
    let since = Instant::now().saturating_duration_since(epoch());
    Time::from_micros(since.as_secs() * 1_000_000 + u64::from(since.subsec_micros()))
}

fn epoch() -> Instant {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    *EPOCH.get_or_init(Instant::now)
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::rc::Rc;
    use std::sync::atomic::AtomicUsize;
    use std::{cell::Cell, cell::RefCell};

    use super::*;

    #[derive(Default)]
    struct WakeCount(AtomicUsize);

    impl Wake for WakeCount {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn runtime_is_asked_when_timer_fired_or_another_task_waits() {
        let (polls, registered, ready) =
            (Rc::new(Cell::new(0)), Rc::new(RefCell::new(None)), Rc::new(Cell::new(false)));
        let (counted, stored, done) = (polls.clone(), registered.clone(), ready.clone());
        let sleep = poll_fn(move |cx| {
            counted.set(counted.get() + 1);
            *stored.borrow_mut() = Some(cx.waker().clone());
            if done.get() { Poll::Ready(()) } else { Poll::Pending }
        });
        let mut timer = ConnectionTimer { sleep: Box::pin(sleep), signal: None };
        let tasks = [Arc::new(WakeCount::default()), Arc::new(WakeCount::default())];
        let [first, second] = tasks.clone().map(Waker::from);
        let woken = || tasks.each_ref().map(|task| task.0.load(Ordering::Relaxed));
        let mut poll = |waker: &Waker| timer.poll(&Context::from_waker(waker));
        assert!((0..3).all(|_| poll(&first).is_pending()));
        assert_eq!(polls.get(), 1);
        assert!((0..3).all(|_| poll(&second).is_pending()));
        assert_eq!(polls.get(), 2, "the timer wakes the task that waits now");
        let fire = || registered.borrow().as_ref().map(Waker::wake_by_ref).expect("the timer was polled");
        fire();
        assert_eq!(woken(), [0, 1]);
        assert!(poll(&second).is_pending(), "an early wake-up");
        ready.set(true);
        fire();
        assert_eq!((woken(), polls.get()), ([0, 2], 3));
        assert!(poll(&second).is_ready());
    }
}
