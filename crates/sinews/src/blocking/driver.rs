//! A connection and its transport: the loop between them.
//!
//! Partial progress of a call, when the transport would block, is stored here for the next call.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::ops::Range;

use sinews_proto::{Kind, Time};
use sinews_session::ReceivedEvent;

use super::wait::{is_wait, now, read_into, read_much_into, uninterrupted};
use crate::link::{Link, NextStep, ReceiveBuffer};
use crate::resources::{self, BLOCK};

/// A connection and its transport.
pub(super) struct BlockingDriver<S> {
    pub(super) io: S,
    pub(super) link: Link,
    /// Ends the sending side, if the stream has a function for it.
    pub(super) shutdown: Option<fn(&mut S) -> io::Result<()>>,
    /// The sending side has ended.
    shut: bool,
    /// Bytes that the transport has taken may still be in its own buffer.
    unflushed: bool,
    /// Time since which the transport accepts no bytes.
    stalled: Option<Time>,
    /// Time of the last receive that was not used for deadlines. Deadlines are executed once all input received by
    /// then is processed, since unread input would count as silence.
    received: Option<Time>,
    /// Number of bytes of the last read: the next read may return as many.
    last_read: usize,
}

/// Bytes of a large message read at once: the memory cleared for them stays in the cache until it is filled.
const MUCH: usize = 256 << 10;

/// Slices in one send; further slices follow in the next.
const SLICES: usize = 16;

impl<S> BlockingDriver<S> {
    pub(super) fn new(io: S, link: Link) -> Self {
        Self {
            io,
            link,
            shutdown: None,
            shut: false,
            unflushed: false,
            stalled: None,
            received: None,
            last_read: 0,
        }
    }

    /// Executes the deadlines that expired by `now`, for a caller that has read or tried to read since `began`.
    fn handle_deadlines(&mut self, began: Time, now: Time) {
        self.note_sent(began);
        self.link.note_driven(began);
        self.link.now = now;
        self.link.timeout();
        resources::release(self.link.now);
    }

    /// Queued messages have left by now, as far as the idle timeout is concerned.
    fn note_sent(&mut self, now: Time) {
        self.link.now = now;
        if self.link.has_sent() {
            self.link.note_sent();
        }
    }
}

impl<S: Read + Write> BlockingDriver<S> {
    /// The next event, if it is a whole message in the received input.
    pub(super) fn next_whole(&mut self) -> Option<(Kind, Range<usize>)> {
        let whole = self.link.pull_whole()?;
        if self.link.is_overdue(now) {
            // Unsent bytes leave before the next read.
            let _ = self.send();
        }
        Some(whole)
    }

    /// The next event; `None`: the connection has ended.
    ///
    /// # Errors
    /// Only that the transport would block.
    pub(super) fn next_event(&mut self) -> io::Result<Option<ReceivedEvent>> {
        loop {
            if let Some(event) = self.link.pull() {
                if self.link.is_urgent(&event, now) {
                    let _ = self.send();
                }
                return Ok(Some(event));
            }
            if !self.more()? {
                return Ok(None);
            }
        }
    }

    /// Sends, and receives more. Returns whether more may have been received; if not, the connection has ended.
    fn more(&mut self) -> io::Result<bool> {
        let mut waits = None;
        loop {
            // A peer that never stops sending does not delay deadlines.
            if let Some(at) = self.received.take() {
                self.handle_deadlines(at, at);
            }
            let blocked = self.send().err();
            match self.link.next() {
                NextStep::Ended => {
                    // The peer need not wait until the application drops the connection.
                    self.shut();
                    return Ok(false);
                }
                NextStep::ShutDown if blocked.is_none() => {
                    // A stream without a way to end one side is ended by dropping it.
                    if !self.shut() {
                        return Ok(false);
                    }
                    if self.shut {
                        continue;
                    }
                }
                NextStep::ReportEnd => return Ok(false),
                NextStep::ShutDown | NextStep::Continue => {}
            }
            // Deadlines that expired during the wait are executed.
            if let Some(waits) = waits {
                return Err(waits);
            }
            // Also while many bytes are queued: a peer that waits in the same way would read nothing either.
            waits = if self.link.receives() {
                let began = now();
                match self.receive() {
                    Ok(()) => return Ok(true),
                    Err(waits) => {
                        self.handle_deadlines(began, now());
                        Some(waits)
                    }
                }
            } else {
                Some(blocked.unwrap_or_else(|| ErrorKind::WouldBlock.into()))
            };
        }
    }

    /// Sends all queued bytes, and flushes. The link reports errors.
    ///
    /// # Errors
    /// Only that the transport would block.
    pub(super) fn send(&mut self) -> io::Result<()> {
        if !self.link.wants_send() && !self.unflushed {
            return Ok(());
        }
        self.note_sent(now());
        let sent = self.send_all();
        match sent {
            Ok(()) => self.stalled = None,
            Err(_) => self.stall(),
        }
        sent
    }

    /// The transport accepts no bytes for now. Only the write timeout is checked here: other deadlines require a read
    /// first.
    fn stall(&mut self) {
        // A write with a timeout of its own took time.
        self.link.now = now();
        match self.stalled {
            None => {
                self.stalled = Some(self.link.now);
                self.link.stalled();
            }
            Some(since) if self.link.now.since(since) >= self.link.config().write_timeout() => {
                self.link.timeout();
            }
            Some(_) => {}
        }
    }

    fn send_all(&mut self) -> io::Result<()> {
        while let Some(chain) = self.link.next_send() {
            let io = &mut self.io;
            let sent = uninterrupted(|| match chain.as_slice() {
                Some(bytes) => io.write(bytes),
                None => {
                    let mut slices = [IoSlice::new(&[]); SLICES];
                    match chain.slices(&mut slices) {
                        1 => io.write(&slices[0]),
                        filled => io.write_vectored(&slices[..filled]),
                    }
                }
            });
            let waiting = chain.len();
            match sent {
                Ok(0) => self.link.send_failed(ErrorKind::WriteZero.into()),
                Ok(count) => {
                    (self.unflushed, self.stalled) = (true, None);
                    self.link.sent(count.min(waiting));
                }
                Err(error) if is_wait(&error) => return Err(ErrorKind::WouldBlock.into()),
                Err(error) => self.link.send_failed(error),
            }
        }
        if self.unflushed {
            match uninterrupted(|| self.io.flush()) {
                Err(error) if is_wait(&error) => return Err(ErrorKind::WouldBlock.into()),
                Err(error) => self.link.send_failed(error),
                Ok(()) => {}
            }
            self.unflushed = false;
        }
        Ok(())
    }

    /// Receives once: bytes, or the end.
    ///
    /// # Errors
    /// Only that the transport would block.
    fn receive(&mut self) -> io::Result<()> {
        let mut buffer = self.link.take_buffer();
        let received = match &mut buffer {
            ReceiveBuffer::Block(block) => {
                let free = block.capacity() - block.len();
                read_into(&mut self.io, block, free)
            }
            ReceiveBuffer::Message(memory, most) if self.last_read < BLOCK => {
                read_into(&mut self.io, memory, *most)
            }
            ReceiveBuffer::Message(memory, most) => {
                read_much_into(&mut self.io, memory, (2 * self.last_read).min(MUCH).min(*most))
            }
        };
        self.last_read = received.as_ref().copied().unwrap_or(0);
        self.link.now = now();
        self.link.received(buffer, received.as_ref().copied().unwrap_or(0));
        match received {
            Ok(0) => self.link.ended(None),
            Ok(_) => self.received = Some(self.link.now),
            Err(error) if is_wait(&error) => return Err(ErrorKind::WouldBlock.into()),
            Err(error) => self.link.ended(Some(error)),
        }
        Ok(())
    }

    /// Sends all queued bytes and ends the sending side, if the stream has a function for it.
    ///
    /// # Errors
    /// Only that the transport would block.
    pub(super) fn close_now(&mut self) -> io::Result<()> {
        self.send()?;
        self.shut();
        Ok(())
    }

    /// Ends the sending side; returns whether the stream has a function for it. A call that would block is retried.
    fn shut(&mut self) -> bool {
        let Some(shutdown) = self.shutdown else { return false };
        // Where nothing can leave any more, TLS cannot send close_notify either.
        if self.shut || self.link.check_sending().is_err() {
            return true;
        }
        match uninterrupted(|| shutdown(&mut self.io)) {
            Ok(()) => {
                self.shut = true;
                self.link.shut();
            }
            Err(error) if is_wait(&error) => {}
            Err(error) => self.link.send_failed(error),
        }
        true
    }
}
