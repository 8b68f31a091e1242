//! One connection on an interpreter's thread.

use std::cell::RefCell;
use std::io::IoSlice;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use sinews_proto::{CloseCode, Config, Kind, Misuse, Negotiated, Time};
use sinews_session::{Chain, Closed, Events, Flow, Resources, Sent, Session, TransportAction};

use crate::batch::Batch;

/// The clock's zero.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

thread_local! {
    /// The thread's spare memory.
    static RESOURCES: RefCell<Resources> = RefCell::new(Resources::new());
}

/// Runs a function with the thread's memory and time. Connections without timeouts read no clock.
fn with_thread<R>(is_timed: bool, call: impl FnOnce(&mut Resources, Time) -> R) -> R {
    RESOURCES.with_borrow_mut(|resources| {
        let elapsed = if is_timed { START.elapsed().as_micros() } else { 0 };
        // Half a million years.
        let now = Time::from_micros(u64::try_from(elapsed).unwrap_or(u64::MAX));
        call(resources, now)
    })
}

/// A WebSocket connection after its handshake. All calls are from one thread.
///
/// The socket's owner
/// 1. passes received bytes to [`receive`](Self::receive), and the transport's end to
///    [`receive_end`](Self::receive_end);
/// 2. then, and after sends outside of a burst, writes the slices of [`start_write`](Self::start_write), and calls
///    [`finish_write`](Self::finish_write) once the socket has taken it;
/// 3. then looks at [`action`](Self::action), [`take_closed`](Self::take_closed) and [`timeout`](Self::timeout).
#[derive(Debug)]
pub struct Connection {
    session: Session,
    /// The write in flight.
    chain: Option<Box<Chain>>,
    is_timed: bool,
}

impl Connection {
    /// Creates a connection. A message has at most 4 GiB, whatever `config` permits.
    #[must_use]
    pub fn new(negotiated: Negotiated, config: Arc<Config>) -> Self {
        Self::with_clock(negotiated, config, true)
    }

    /// Creates a connection without timeouts: [`timeout`](Self::timeout) has no meaning.
    #[must_use]
    pub fn without_timeouts(negotiated: Negotiated, config: Arc<Config>) -> Self {
        Self::with_clock(negotiated, config, false)
    }

    fn with_clock(negotiated: Negotiated, config: Arc<Config>, is_timed: bool) -> Self {
        let config = match config.max_message() > u64::from(u32::MAX) {
            true => Arc::new(Config::clone(&config).with_max_message(u32::MAX.into())),
            false => config,
        };
        let session = with_thread(is_timed, |_, now| Session::new(negotiated, config, now));
        Self { session, chain: None, is_timed }
    }

    /// Receives a chunk, which is unmasked in place, and appends its events to `batch`. Returns whether the rest of the
    /// chunk waits: then receive nothing until [`resume`](Self::resume) returns `false`.
    pub fn receive(&mut self, chunk: &mut [u8], batch: &mut Batch) -> bool {
        batch.set_chunk(chunk);
        self.receive_with(chunk, batch)
    }

    /// As [`receive`](Self::receive), for another receiver than [`Batch`], which must call no connection.
    pub fn receive_with(&mut self, chunk: &mut [u8], events: &mut impl Events) -> bool {
        let session = &mut self.session;
        with_thread(self.is_timed, |resources, now| session.receive(chunk, resources, now, events))
            == Flow::Pause
    }

    /// Continues with input that waits. Returns whether some still waits.
    pub fn resume(&mut self, batch: &mut Batch) -> bool {
        batch.set_chunk(&[]);
        self.resume_with(batch)
    }

    /// As [`resume`](Self::resume), for another receiver than [`Batch`], which must call no connection.
    pub fn resume_with(&mut self, events: &mut impl Events) -> bool {
        let session = &mut self.session;
        if !session.is_paused() {
            return false;
        }
        !session.wants_resume()
            || with_thread(self.is_timed, |resources, now| session.resume(resources, now, events))
                == Flow::Pause
    }

    /// Whether received input waits for [`resume`](Self::resume), which makes progress now.
    #[must_use]
    pub fn wants_resume(&self) -> bool {
        self.session.is_paused() && self.session.wants_resume()
    }

    /// The peer has ended the transport.
    pub fn receive_end(&mut self) {
        let session = &mut self.session;
        with_thread(self.is_timed, |_, now| session.receive_end(now));
    }

    /// Queues a message. A text must be UTF-8.
    ///
    /// # Errors
    /// [`Misuse::Closing`] after a Close; [`Misuse::MessageOpen`] within a fragmented message.
    pub fn send(&mut self, kind: Kind, payload: &[u8]) -> Result<Sent, Misuse> {
        self.with_tx(|tx| tx.send(kind, payload))
    }

    /// Queues a message's next piece. A piece may end within a character.
    ///
    /// # Errors
    /// As [`send`](Self::send); [`Misuse::MessageOpen`] for the other kind.
    pub fn send_fragment(&mut self, kind: Kind, piece: &[u8], is_last: bool) -> Result<Sent, Misuse> {
        self.with_tx(|tx| tx.send_fragment(kind, piece, is_last))
    }

    /// Enables or disables compression for later messages, if it was negotiated.
    pub fn set_compression(&mut self, enabled: bool) {
        self.with_tx(|tx| tx.set_compression(enabled));
    }

    /// Queues a ping.
    ///
    /// # Errors
    /// [`Misuse::PingTooLong`] over 125 bytes; [`Misuse::Closing`] after a Close.
    pub fn ping(&mut self, payload: &[u8]) -> Result<Sent, Misuse> {
        self.with_tx(|tx| tx.send_ping(payload))
    }

    /// Queues an unsolicited pong.
    ///
    /// # Errors
    /// As [`ping`](Self::ping).
    pub fn pong(&mut self, payload: &[u8]) -> Result<Sent, Misuse> {
        self.with_tx(|tx| tx.send_pong(payload))
    }

    /// Starts the closing handshake behind the queued messages.
    ///
    /// # Errors
    /// [`Misuse::ReasonTooLong`] over 123 bytes; [`Misuse::Closing`] if it was started.
    pub fn close(&mut self, code: CloseCode, reason: &str) -> Result<(), Misuse> {
        self.with_tx(|tx| tx.close(code, reason))
    }

    /// Starts the closing handshake behind the queued messages. Without a code, the Close is empty, and the reason unused.
    ///
    /// # Errors
    /// As [`close`](Self::close).
    pub fn close_with(&mut self, code: Option<CloseCode>, reason: &str) -> Result<(), Misuse> {
        match code {
            Some(code) => self.close(code, reason),
            None => self.with_tx(|tx| tx.close_without_code()),
        }
    }

    /// Answers the peer's Close, or its violation, if that waits for it: only
    /// [without own answers](Config::answers). Messages that were sent before precede the answer.
    pub fn answer_end(&mut self) {
        let session = &mut self.session;
        if session.unanswered().is_some() {
            with_thread(self.is_timed, |resources, now| session.answer_end(resources, now));
        }
    }

    fn with_tx<R>(&mut self, call: impl FnOnce(&mut sinews_session::Tx<'_>) -> R) -> R {
        let session = &mut self.session;
        with_thread(self.is_timed, |resources, now| {
            let result = call(&mut session.tx(resources, now));
            session.after_tx(resources, now);
            result
        })
    }

    /// Returns all queued bytes for one write; `None` if nothing is queued, or a write is in flight.
    pub fn start_write(&mut self) -> Option<Vec<&[u8]>> {
        if self.chain.is_none() {
            self.chain = Some(self.session.start_send()?);
            return self.chain.as_ref().map(|chain| chain.pieces().collect());
        }
        None
    }

    /// The socket has taken the write in flight. Returns whether a sender that was told to slow down may continue.
    pub fn finish_write(&mut self) -> bool {
        let Some(mut chain) = self.chain.take() else { return false };
        let session = &mut self.session;
        with_thread(self.is_timed, |resources, now| {
            let len = chain.len();
            chain.advance(len);
            session.progressed(len, now);
            session.finish_send(chain, resources, now)
        })
    }

    /// Passes queued bytes to `write` until nothing is queued, or `write` accepts less than its slices. The bytes that it did not
    /// accept stay in flight: [`is_writing`](Self::is_writing). Returns whether a sender that was told to slow down may
    /// continue.
    ///
    /// # Errors
    /// The error that `write` returned.
    pub fn write_with<E>(
        &mut self,
        mut write: impl FnMut(&[IoSlice<'_>]) -> Result<usize, E>,
    ) -> Result<bool, E> {
        let mut has_drained = false;
        while self.chain.is_some() || self.session.wants_send() {
            let Some(mut chain) = self.chain.take().or_else(|| self.session.start_send()) else { break };
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = chain.slices(&mut slices);
            let offered: usize = slices[..count].iter().map(|slice| slice.len()).sum();
            let written = write(&slices[..count]);
            let accepted = *written.as_ref().unwrap_or(&0);
            chain.advance(accepted);
            let session = &mut self.session;
            with_thread(self.is_timed, |resources, now| {
                session.progressed(accepted, now);
                if chain.is_empty() {
                    has_drained |= session.finish_send(chain, resources, now);
                } else {
                    self.chain = Some(chain);
                }
            });
            if written? < offered {
                break;
            }
        }
        Ok(has_drained)
    }

    /// Whether a write is in flight.
    #[must_use]
    pub fn is_writing(&self) -> bool {
        self.chain.is_some()
    }

    /// Whether [`start_write`](Self::start_write) returns something.
    #[must_use]
    pub fn wants_write(&self) -> bool {
        self.chain.is_none() && self.session.wants_send()
    }

    /// Bytes that are queued or in flight.
    #[must_use]
    pub fn buffered(&self) -> usize {
        self.session.buffered()
    }

    /// Whether data may still be sent.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.session.is_open()
    }

    /// The next action on the socket.
    #[must_use]
    pub fn action(&self) -> TransportAction {
        self.session.transport_action()
    }

    /// Whether [`take_closed`](Self::take_closed) returns a result.
    #[must_use]
    pub fn has_closed(&self) -> bool {
        self.session.has_closed()
    }

    /// Returns how the connection ended, once.
    pub fn take_closed(&mut self) -> Option<Closed> {
        self.session.take_closed()
    }
    /// Whether input waits for [`resume`](Self::resume).
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.session.is_paused()
    }

    /// Records that the owner has not read from the socket: the peer's silence until now does not count.
    pub fn note_unread(&mut self) {
        let session = &mut self.session;
        with_thread(self.is_timed, |_, now| session.note_unread(now));
    }

    /// Returns the time at which [`handle_timeout`](Self::handle_timeout) is due. It may move to a later time without
    /// notice.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.session.deadline()
    }

    /// Returns the time until [`handle_timeout`](Self::handle_timeout) is due. It may become longer without notice.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        let deadline = self.session.deadline()?;
        Some(with_thread(self.is_timed, |_, now| deadline.since(now)))
    }

    /// Does what is due. A call before [`timeout`](Self::timeout) does nothing.
    pub fn handle_timeout(&mut self) {
        let session = &mut self.session;
        with_thread(self.is_timed, |resources, now| {
            if session.deadline().is_some_and(|deadline| deadline <= now) {
                session.handle_timeout(resources, now);
            }
        });
    }
}

/// Pieces of one write.
const SLICES: usize = 16;

#[cfg(test)]
mod tests;
