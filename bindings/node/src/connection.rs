//! The connection for JavaScript.

use std::cell::RefCell;

use napi::bindgen_prelude::{Buffer, BufferSlice};
use napi::{Error, Result, Status};
use napi_derive::napi;
use sinews_bindings::{Batch, Connection};
use sinews_proto::{CloseCode, Kind, Misuse, Role};
use sinews_session::Sent;

use crate::closed::ClosedInfo;
use crate::options::{DeflateOptions, LimitOptions, negotiated};

thread_local! {
    /// The events of the thread's latest burst, until JavaScript has taken them.
    static BATCH: RefCell<Batch> = RefCell::new(Batch::new());
}

/// Results of a receive, beside the number of events.
mod flags {
    /// The connection has ended: `takeClosed` returns how.
    pub(super) const CLOSED: u32 = 1;
    /// Input waits: call `resume`.
    pub(super) const WAITS: u32 = 2;
    /// Payloads were copied: call `takeBytes`.
    pub(super) const COPIED: u32 = 4;
    /// The events do not fit: call `takeWords` with more memory.
    pub(super) const TOO_MANY: u32 = 8;
    /// Bytes are queued.
    pub(super) const QUEUED: u32 = 16;
    /// The number of events is above these bits.
    pub(super) const BITS: u32 = 8;
}

/// Numbers for each event.
const WORDS: usize = 4;

/// Numbers for each message to send: its kind and [`sending`] flags, its first byte, its length.
const SEND_WORDS: usize = 3;

/// What a message to send is, in the first of its numbers.
mod sending {
    /// The opcode.
    pub(super) const KIND: u32 = 0xf;
    /// The message continues.
    pub(super) const MORE: u32 = 16;
    /// The message is sent uncompressed.
    pub(super) const PLAIN: u32 = 32;
}

/// Spare bytes of the thread's batch.
const KEPT_BYTES: usize = 64 << 10;

/// A WebSocket connection after its handshake.
#[napi]
#[derive(Debug)]
pub struct NativeConnection {
    connection: Connection,
    /// A message is being sent in fragments.
    fragments: Option<Kind>,
    is_plain: bool,
}

#[napi]
impl NativeConnection {
    /// Creates a connection for a server or a client.
    ///
    /// # Errors
    /// The parameters for compression are invalid.
    #[napi(constructor)]
    pub fn new(is_server: bool, limits: LimitOptions, deflate: Option<DeflateOptions>) -> Result<Self> {
        let role = if is_server { Role::Server } else { Role::Client };
        let connection = Connection::new(negotiated(role, deflate)?, limits.config());
        Ok(Self { connection, fragments: None, is_plain: false })
    }

    /// Receives a chunk, which is unmasked in place. Writes its events into `words` and returns their number and flags.
    #[napi]
    pub fn receive(&mut self, mut chunk: BufferSlice<'_>, mut words: BufferSlice<'_>) -> u32 {
        BATCH.with_borrow_mut(|batch| {
            batch.clear(KEPT_BYTES);
            let waits = self.connection.receive(&mut chunk, batch);
            self.report(waits, batch, &mut words)
        })
    }

    /// Continues with input that waits, as [`receive`](Self::receive).
    #[napi]
    pub fn resume(&mut self, mut words: BufferSlice<'_>) -> u32 {
        BATCH.with_borrow_mut(|batch| {
            batch.clear(KEPT_BYTES);
            let waits = self.connection.resume(batch);
            self.report(waits, batch, &mut words)
        })
    }

    fn report(&mut self, waits: bool, batch: &Batch, words: &mut [u8]) -> u32 {
        let events = batch.words();
        let count = (events.len() / WORDS) as u32;
        let mut state = count << flags::BITS;
        if !write_words(events, words) {
            state |= flags::TOO_MANY;
        }
        for (is_set, flag) in [
            (self.connection.has_closed(), flags::CLOSED),
            (waits, flags::WAITS),
            (!batch.bytes().is_empty(), flags::COPIED),
            (self.connection.wants_write(), flags::QUEUED),
        ] {
            state |= if is_set { flag } else { 0 };
        }
        state
    }

    /// Writes the latest burst's events into `words`.
    #[napi]
    pub fn take_words(&self, mut words: BufferSlice<'_>) {
        BATCH.with_borrow(|batch| write_words(batch.words(), &mut words));
    }

    /// Returns the latest burst's copied payloads.
    #[napi]
    pub fn take_bytes(&self) -> Buffer {
        BATCH.with_borrow_mut(|batch| Buffer::from(batch.take_bytes()))
    }

    /// Queues messages, whose payloads are in `bytes` and which `words` describes. Then writes all queued bytes into
    /// `out` from `at` on, and returns their number; if they do not fit, writes nothing and returns the negative number.
    ///
    /// # Errors
    /// A message exceeds a limit of the protocol.
    #[napi]
    pub fn flush(&mut self, bytes: &[u8], words: &[u32], count: u32, out: BufferSlice<'_>, at: u32) -> Result<i32> {
        self.queue(bytes, words, count)?;
        Ok(self.write(out, at))
    }

    /// Writes the queued bytes as [`flush`](Self::flush).
    #[napi]
    pub fn write(&mut self, mut out: BufferSlice<'_>, at: u32) -> i32 {
        let queued = self.connection.buffered();
        let Some(room) = out.get_mut(at as usize..).filter(|room| room.len() >= queued) else {
            return -i32::try_from(queued).unwrap_or(i32::MAX);
        };
        let mut len = 0;
        for piece in self.connection.start_write().into_iter().flatten() {
            room[len..len + piece.len()].copy_from_slice(piece);
            len += piece.len();
        }
        self.connection.finish_write();
        i32::try_from(len).unwrap_or(i32::MAX)
    }

    /// Queues messages as [`flush`](Self::flush). Returns the number of queued bytes.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    #[napi]
    pub fn queue(&mut self, bytes: &[u8], words: &[u32], count: u32) -> Result<f64> {
        for message in words.chunks_exact(SEND_WORDS).take(count as usize) {
            let (start, len) = (message[1] as usize, message[2] as usize);
            let payload = bytes.get(start..).and_then(|bytes| bytes.get(..len));
            let payload = payload.ok_or_else(|| Error::new(Status::InvalidArg, "payload out of range"))?;
            self.send_one(message[0], payload)?;
        }
        Ok(self.connection.buffered() as f64)
    }

    /// Queues one message. Returns the number of queued bytes.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    #[napi]
    pub fn send(&mut self, how: u32, payload: &[u8]) -> Result<f64> {
        self.send_one(how, payload)?;
        Ok(self.connection.buffered() as f64)
    }

    fn send_one(&mut self, how: u32, payload: &[u8]) -> Result<()> {
        let kind = match how & sending::KIND {
            1 => Kind::Text,
            9 => return check(self.connection.ping(payload)),
            10 => return check(self.connection.pong(payload)),
            _ => Kind::Binary,
        };
        let is_plain = how & sending::PLAIN != 0;
        if is_plain != self.is_plain {
            self.is_plain = is_plain;
            self.connection.set_compression(!is_plain);
        }
        let more = how & sending::MORE != 0;
        if !more && self.fragments.is_none() {
            return check(self.connection.send(kind, payload));
        }
        let kind = *self.fragments.get_or_insert(kind);
        if !more {
            self.fragments = None;
        }
        check(self.connection.send_fragment(kind, payload, !more))
    }

    /// Starts the closing handshake. Without a code, the Close has none.
    ///
    /// # Errors
    /// The code is invalid or the reason too long.
    #[napi]
    pub fn close(&mut self, code: Option<u16>, reason: String) -> Result<()> {
        let code = match code {
            Some(code) => Some(CloseCode::try_from(code).map_err(|error| invalid(&error))?),
            None => None,
        };
        self.connection.close_with(code, &reason).map_err(|error| invalid(&error))
    }

    /// Records the transport's end.
    #[napi]
    pub fn receive_end(&mut self) {
        self.connection.receive_end();
    }

    /// Returns how the connection has ended, once.
    #[napi]
    pub fn take_closed(&mut self) -> Option<ClosedInfo> {
        self.connection.take_closed().map(ClosedInfo::from)
    }

    /// The number of queued bytes.
    #[napi]
    pub fn buffered(&self) -> f64 {
        self.connection.buffered() as f64
    }
}

/// Writes numbers in the machine's byte order. Returns `false` if they do not fit.
fn write_words(words: &[u32], out: &mut [u8]) -> bool {
    let Some(out) = out.get_mut(..words.len() * size_of::<u32>()) else { return false };
    for (out, word) in out.chunks_exact_mut(size_of::<u32>()).zip(words) {
        out.copy_from_slice(&word.to_ne_bytes());
    }
    true
}

/// A message after the Close is dropped: JavaScript reports it.
fn check(sent: std::result::Result<Sent, Misuse>) -> Result<()> {
    match sent {
        Ok(_) | Err(Misuse::Closing) => Ok(()),
        Err(misuse) => Err(invalid(&misuse)),
    }
}

fn invalid(error: &dyn std::error::Error) -> Error {
    Error::new(Status::InvalidArg, error.to_string())
}
