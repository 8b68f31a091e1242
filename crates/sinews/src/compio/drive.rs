//! A connection and its transport: at most one receive and one send in flight, both kept here.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker, ready};
use std::time::{Duration, Instant};

use compio::runtime::CancelToken;
use sinews_proto::Time;

use super::transport::{Came, Left, Sink, Source, Transport};
use super::wire::Wire;
use crate::driver::Driver;
use crate::link::{Link, Next, Room};
use crate::resources;

/// A connection and its transport.
pub(super) struct Drive<S: Transport> {
    source: S::Source,
    sink: S::Sink,
    link: Link,
    /// Wakes for the link's deadline, or to free spare memory; made when first needed.
    timer: Option<Pin<Box<dyn Future<Output = ()>>>>,
    /// When the timer rings, if it is set.
    armed: Option<Time>,
    /// A send that is in flight has not completed at once.
    blocked: bool,
    /// The end of the sending side was begun.
    shut: bool,
    /// Calls that sent since the transport was last asked for what came, and when that was.
    sent: u32,
    asked: Time,
}

/// A caller that only sends looks this often for what came: pings, and a Close.
const ASK_EVERY: Duration = Duration::from_millis(10);

impl<S: Transport> Drive<S> {
    pub(super) fn new(wire: Wire<S>, link: Link) -> Self {
        let Wire { source, sink } = wire;
        let asked = link.now;
        Self { source, sink, link, timer: None, armed: None, blocked: false, shut: false, sent: 0, asked }
    }

    pub(super) fn peek(&self) -> &Link {
        &self.link
    }

    fn start_receive(&mut self) {
        let message = if self.source.is_direct() { self.link.take_message() } else { None };
        let room = message.or_else(|| self.source.wants_block().then(|| self.link.take_block()));
        self.source.start(room);
    }

    /// What the source holds moves into a block, or into the memory of a message.
    fn take_held(&mut self) {
        let mut room = self.link.take_room();
        let count = match &mut room {
            Room::Block(block) => {
                let most = block.capacity() - block.len();
                self.source.drain(block, most)
            }
            Room::Message(memory, most) => self.source.drain(memory, *most),
        };
        self.link.came(room, count);
    }

    /// A receive has ended; `false`: the next may be started.
    fn came(&mut self, came: Came) -> bool {
        match came {
            Came::Nothing => return false,
            Came::Held => self.take_held(),
            Came::Filled(room, Ok(count)) => {
                self.link.came(room, count);
                if count == 0 {
                    self.link.ended(None);
                }
            }
            Came::Filled(room, Err(error)) => {
                self.link.came(room, 0);
                if error.kind() == io::ErrorKind::WouldBlock {
                    return false;
                }
                self.link.ended(Some(error));
            }
            Came::Over(error) => self.link.ended(error),
        }
        true
    }

    fn poll_send_all(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.wants_send() {
            if !self.sink.is_busy() {
                let chain = self.link.take_send();
                self.sink.start(chain);
            }
            let left = ready!(apart(cx, |cx| self.sink.poll(cx)));
            self.left(left);
        }
        Poll::Ready(())
    }

    fn left(&mut self, left: Left) {
        match left {
            Left::Sent(chain, result) => {
                let wanted = chain.as_ref().is_some_and(|chain| !chain.is_empty());
                if let Some(chain) = chain {
                    self.link.give_send(chain);
                }
                match result {
                    Ok(0) if wanted => self.link.send_failed(io::ErrorKind::WriteZero.into()),
                    Ok(count) => self.link.sent(count),
                    Err(error) => self.link.send_failed(error),
                }
            }
            Left::Shut(Ok(())) => self.link.shut(),
            Left::Shut(Err(error)) => self.link.send_failed(error),
        }
    }

    fn arm(&mut self, next: Time) {
        let at = epoch() + next.since(Time::ZERO);
        self.armed = Some(next);
        self.timer = Some(Box::pin(compio::time::sleep_until(at)));
    }
}

impl<S: Transport> Driver for Drive<S> {
    #[inline]
    fn link(&mut self) -> &mut Link {
        &mut self.link
    }

    fn clock() -> Time {
        now()
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.wants_send() {
            return Poll::Ready(());
        }
        let sent = self.poll_send_all(cx);
        if sent.is_ready() {
            self.blocked = false;
        } else if !std::mem::replace(&mut self.blocked, true) {
            self.link.now = now();
            self.link.stalled();
        }
        sent
    }

    #[inline]
    fn wants_send(&mut self) -> bool {
        let wanted = self.sink.is_busy()
            || self.link.wants_send()
            || self.sink.wants_send() && self.link.check_sending().is_ok();
        // What the kernel still has at the end is cancelled with the connection.
        wanted && self.link.next() != Next::Over
    }

    fn poll_shut(&mut self, cx: &mut Context<'_>) {
        if !self.shut && !self.sink.is_busy() {
            self.shut = true;
            self.sink.start_shut();
        }
        if let Poll::Ready(left) = apart(cx, |cx| self.sink.poll(cx)) {
            self.left(left);
        }
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        (self.sent, self.asked) = (0, self.link.now);
        loop {
            if !self.source.is_busy() {
                self.start_receive();
            }
            let came = ready!(apart(cx, |cx| self.source.poll(cx)));
            self.link.now = now();
            self.asked = self.link.now;
            if self.came(came) {
                return Poll::Ready(());
            }
        }
    }

    #[inline]
    fn is_aside_due(&mut self) -> bool {
        self.sent += 1;
        if self.sent < 2 {
            return false;
        }
        self.link.now = now();
        self.link.now.since(self.asked) > ASK_EVERY
    }

    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if self.link.take_recheck() || self.armed.is_none() {
                self.link.now = now();
                let release = resources::release(self.link.now);
                let next = [self.link.deadline(), release].into_iter().flatten().min();
                match next {
                    Some(next) if self.armed.is_none_or(|armed| next < armed) => self.arm(next),
                    _ => {}
                }
            }
            let Some(timer) = &mut self.timer else { return Poll::Pending };
            ready!(timer.as_mut().poll(cx));
            (self.timer, self.armed) = (None, None);
            self.link.now = now();
            if self.link.deadline().is_some_and(|deadline| deadline <= self.link.now) {
                self.link.timeout();
                return Poll::Ready(());
            }
        }
    }
}

/// Polls an operation of the connection outside of the scope of any [`CancelToken`]: the operation outlives the
/// future that began it, and another one may be waiting for it when the token is used.
fn apart<T>(cx: &mut Context<'_>, poll: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
    struct Apart(Waker);

    impl Wake for Apart {
        fn wake(self: Arc<Self>) {
            self.0.wake_by_ref();
        }
    }

    match pin!(CancelToken::current()).poll(cx) {
        Poll::Ready(None) | Poll::Pending => poll(cx),
        Poll::Ready(Some(_)) => {
            let waker = Waker::from(Arc::new(Apart(cx.waker().clone())));
            poll(&mut Context::from_waker(&waker))
        }
    }
}

/// The time since this program first asked.
#[inline]
pub(super) fn now() -> Time {
    let since = Instant::now().saturating_duration_since(epoch());
    Time::from_micros(since.as_secs() * 1_000_000 + u64::from(since.subsec_micros()))
}

fn epoch() -> Instant {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    *EPOCH.get_or_init(Instant::now)
}
