//! A connection and its transport: at most one receive and one send in flight, both stored here.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker, ready};
use std::time::Instant;

use compio::runtime::CancelToken;
use sinews_proto::Time;

use super::lent::{DIRECT_MIN, Lent, Memory};
use super::transport::{Came, Left, Sink, Source, Transport};
use super::wire::Wire;
use crate::driver::{Driver, Pace};
use crate::link::{Link, Next, Room};
use crate::reading::Step;

/// A connection and its transport.
pub(super) struct Drive<S: Transport> {
    source: S::Source,
    sink: S::Sink,
    link: Link,
    pace: Pace,
    /// Wakes for the link's deadline, or to free spare memory; created when first needed.
    timer: Option<Pin<Box<dyn Future<Output = ()>>>>,
    /// The application's memory that a message is received into.
    pub(super) lent: Option<Box<Lent>>,
    /// The end of the sending side has begun.
    shut: bool,
}

impl<S: Transport> Drive<S> {
    pub(super) fn new(wire: Wire<S>, link: Link) -> Self {
        let Wire { source, sink } = wire;
        let pace = Pace::new(link.now);
        Self { source, sink, link, pace, timer: None, lent: None, shut: false }
    }

    pub(super) fn peek(&self) -> &Link {
        &self.link
    }

    pub(super) fn sink(&self) -> &S::Sink {
        &self.sink
    }

    pub(super) fn sink_mut(&mut self) -> &mut S::Sink {
        &mut self.sink
    }

    fn start_receive(&mut self) {
        if self.start_lent() {
            return;
        }
        let message = if self.source.is_direct() { self.link.take_message() } else { None };
        let room = message.or_else(|| self.source.wants_block().then(|| self.link.take_block()));
        self.source.start(room);
    }

    /// Begins a receive into the application's memory, if much payload remains.
    fn start_lent(&mut self) -> bool {
        let Some(lent) = self.lent.as_mut().filter(|lent| lent.begun) else { return false };
        let most = self.link.awaits_piece().min(lent.capacity - lent.at);
        if most < DIRECT_MIN {
            return false;
        }
        let Some(memory) = lent.memory.take() else { return false };
        lent.memory = self.source.start_lent(memory, lent.at, most);
        lent.memory.is_none()
    }

    /// Processes a completed receive into the application's memory. Its call may have been dropped.
    fn came_lent(&mut self, mut memory: Box<dyn Memory>, at: usize, result: io::Result<usize>) {
        let lent = self.lent.as_deref_mut().filter(|lent| lent.memory.is_none());
        match result {
            Ok(0) => self.link.ended(None),
            Ok(count) => match (self.link.piece_came(&mut memory.bytes_mut()[at..at + count]), lent) {
                (Some(last), Some(lent)) => {
                    lent.at = at + count;
                    lent.piece = Some((lent.piece.map_or(0, |(before, _)| before) + count, last));
                    lent.memory = Some(memory);
                    return;
                }
                (Some(true), None) => self.link.skipped(),
                _ => {}
            },
            Err(error) => self.link.ended(Some(error)),
        }
        if let Some(lent) = self.lent.as_deref_mut().filter(|lent| lent.memory.is_none()) {
            lent.memory = Some(memory);
        }
    }

    /// The next event, or a piece received into the application's memory; `None`: the connection has ended.
    pub(super) fn poll_step(&mut self, cx: &mut Context<'_>) -> Poll<Option<Step>> {
        loop {
            if self.lent.as_ref().is_some_and(|lent| lent.piece.is_some()) {
                return Poll::Ready(Some(Step::Piece));
            }
            if let Some(event) = self.link.pull() {
                if self.link.is_urgent(&event, now) {
                    let _ = self.poll_send(cx);
                }
                return Poll::Ready(Some(Step::Event(event)));
            }
            if !ready!(self.poll_more(cx)) {
                return Poll::Ready(None);
            }
        }
    }

    /// Waits until the kernel returns the application's memory.
    pub(super) fn poll_home(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.lent.as_ref().is_some_and(|lent| lent.memory.is_none()) {
            self.source.cancel_lent();
            match ready!(apart(cx, |cx| self.source.poll(cx))) {
                // A cancelled operation ends with an error.
                Came::Lent(memory, _, Err(_)) => {
                    if let Some(lent) = &mut self.lent {
                        lent.memory = Some(memory);
                    }
                }
                came => drop(self.came(came)),
            }
        }
        Poll::Ready(())
    }

    /// Moves bytes that the source holds into a block, or into the memory of a message.
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

    /// Processes a completed receive; `false`: the next may be started.
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
            Came::Lent(memory, at, result) => self.came_lent(memory, at, result),
            Came::Over(error) => self.link.ended(error),
        }
        true
    }

    /// Whether the transport has bytes of its own to send, and may send them.
    fn wants_send_itself(&self) -> bool {
        self.sink.wants_send() && self.link.check_sending().is_ok()
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
}

impl<S: Transport> Driver for Drive<S> {
    #[inline]
    fn link(&mut self) -> &mut Link {
        &mut self.link
    }

    #[inline]
    fn pace(&mut self) -> &mut Pace {
        &mut self.pace
    }

    #[inline]
    fn clock() -> Time {
        now()
    }

    fn poll_queued(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // Operations still in flight at the end are cancelled with the connection.
        while self.link.next() != Next::Over {
            if !self.sink.is_busy() {
                let chain = self.link.take_send();
                if chain.is_none() && !self.wants_send_itself() {
                    break;
                }
                self.sink.start(chain);
            }
            let left = ready!(apart(cx, |cx| self.sink.poll(cx)));
            self.left(left);
        }
        Poll::Ready(())
    }

    #[inline]
    fn wants_send(&mut self) -> bool {
        let wanted = self.sink.is_busy() || self.link.wants_send() || self.wants_send_itself();
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

    #[inline]
    fn poll_transport(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if !self.source.is_busy() {
                self.start_receive();
            }
            let came = ready!(apart(cx, |cx| self.source.poll(cx)));
            self.link.now = now();
            if self.came(came) {
                return Poll::Ready(());
            }
        }
    }

    /// The operation has to own the memory: see [`Lent`].
    fn poll_piece(&mut self, _: &mut Context<'_>, _: &mut [u8]) -> Option<(usize, bool)> {
        None
    }

    fn set_timer(&mut self, at: Time) {
        let at = epoch() + at.since(Time::ZERO);
        self.timer = Some(Box::pin(compio::time::sleep_until(at)));
    }

    fn poll_ring(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(timer) = &mut self.timer else { return Poll::Pending };
        ready!(timer.as_mut().poll(cx));
        self.timer = None;
        Poll::Ready(())
    }
}

/// Polls an operation of the connection outside of the scope of any [`CancelToken`]: the operation outlives the
/// future that began it, and another future may wait for it when the token is used.
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
