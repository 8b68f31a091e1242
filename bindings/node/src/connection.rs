//! The connections for JavaScript, which names them by numbers: that costs less than objects do.

use std::cell::RefCell;
use std::io::IoSlice;

use napi::bindgen_prelude::{Buffer, BufferSlice};
use napi::{Error, Result, Status};
use napi_derive::napi;
use sinews_bindings::{Connection, socket};
use sinews_proto::{CloseCode, Kind, Misuse, Role};
use sinews_session::Sent;

use crate::closed::ClosedInfo;
use crate::kinds::{PING, PONG, TEXT};
use crate::memory::{self, Memory, read_word, write_words};
use crate::options::{DeflateOptions, LimitOptions, negotiated};

thread_local! {
    static SLOTS: RefCell<Slots> = const { RefCell::new(Slots { slots: Vec::new(), free: Vec::new() }) };
}

/// The thread's connections. JavaScript frees a slot when its socket has closed.
struct Slots {
    slots: Vec<Option<Box<Slot>>>,
    free: Vec<u32>,
}

struct Slot {
    connection: Connection,
    /// A message is being sent in fragments.
    fragments: Option<Kind>,
    is_plain: bool,
    /// Bytes that passed the socket without libuv.
    received: u64,
    sent: u64,
}

/// Results of a receive, beside the number of events.
mod flags {
    /// The connection has ended: `takeClosed` returns how.
    pub(super) const CLOSED: u32 = 1;
    /// Input waits: call `resume`.
    pub(super) const WAITS: u32 = 2;
    /// Payloads were copied: call `takeBytes`.
    pub(super) const COPIED: u32 = 4;
    /// The events do not fit: call `takeEvents`.
    pub(super) const TOO_MANY: u32 = 8;
    /// The socket has ended or failed.
    pub(super) const ENDED: u32 = 16;
    /// The number of events is above these bits.
    pub(super) const BITS: u32 = 8;
}

/// What a message to send is, in the first of its numbers.
mod sending {
    /// The opcode.
    pub(super) const KIND: u32 = 0xf;
    /// The message continues.
    pub(super) const MORE: u32 = 16;
    /// The message is sent uncompressed.
    pub(super) const PLAIN: u32 = 32;
}

/// Numbers for each event.
const EVENT_WORDS: usize = 4;

/// Bytes of the numbers for each message to send: kind and [`sending`] flags, first byte, length.
const MESSAGE_BYTES: usize = 3 * size_of::<u32>();

/// Spare bytes of the thread's batch.
const KEPT_BYTES: usize = 64 << 10;

/// Creates a connection for a server or a client after its handshake. Returns its number.
///
/// # Errors
/// The parameters for compression are invalid.
#[napi]
pub fn open(is_server: bool, limits: LimitOptions, deflate: Option<DeflateOptions>) -> Result<u32> {
    let role = if is_server { Role::Server } else { Role::Client };
    let connection = Connection::without_timeouts(negotiated(role, deflate)?, limits.config());
    let slot = Box::new(Slot { connection, fragments: None, is_plain: false, received: 0, sent: 0 });
    Ok(SLOTS.with_borrow_mut(|slots| match slots.free.pop() {
        Some(id) => {
            slots.slots[id as usize] = Some(slot);
            id
        }
        None => {
            slots.slots.push(Some(slot));
            (slots.slots.len() - 1) as u32
        }
    }))
}

/// Frees a connection. Later calls with its number fail until it is used again.
#[napi]
pub fn free(id: u32) {
    SLOTS.with_borrow_mut(|slots| {
        if slots.slots.get_mut(id as usize).and_then(Option::take).is_some() {
            slots.free.push(id);
        }
    });
}

/// The number of open connections.
#[napi]
pub fn count() -> u32 {
    SLOTS.with_borrow(|slots| (slots.slots.len() - slots.free.len()) as u32)
}

/// Runs a function with a connection.
fn with_slot<R>(id: u32, call: impl FnOnce(&mut Slot) -> R) -> Result<R> {
    SLOTS.with_borrow_mut(|slots| match slots.slots.get_mut(id as usize) {
        Some(Some(slot)) => Ok(call(slot)),
        _ => Err(Error::new(Status::InvalidArg, "the connection is freed")),
    })
}

/// Receives a chunk, which is unmasked in place. Writes its events into the shared memory, and returns their number and
/// flags.
///
/// # Errors
/// The connection is freed.
#[napi]
pub fn receive(id: u32, mut chunk: BufferSlice<'_>) -> Result<u32> {
    memory::with(|memory| {
        memory.batch.clear(KEPT_BYTES);
        with_slot(id, |slot| {
            let waits = slot.connection.receive(&mut chunk, &mut memory.batch);
            report(&slot.connection, memory, waits)
        })
    })
}

/// Receives the shared input's first bytes, as [`receive`].
///
/// # Errors
/// The connection is freed.
#[napi]
pub fn receive_shared(id: u32, len: u32) -> Result<u32> {
    memory::with(|memory| {
        memory.batch.clear(KEPT_BYTES);
        with_slot(id, |slot| {
            let chunk = memory.input.get_mut(..len as usize).unwrap_or_default();
            let waits = slot.connection.receive(chunk, &mut memory.batch);
            report(&slot.connection, memory, waits)
        })
    })
}

/// Receives from a socket into the shared input, as [`receive`]. The number behind the shared events is that of the bytes.
///
/// # Errors
/// The connection is freed.
#[napi]
pub fn receive_socket(id: u32, fd: i32) -> Result<u32> {
    memory::with(|memory| {
        memory.batch.clear(KEPT_BYTES);
        with_slot(id, |slot| {
            let len = match socket::receive(fd, &mut memory.input) {
                Ok(None) => return 0,
                Ok(Some(0)) | Err(_) => return flags::ENDED,
                Ok(Some(len)) => len,
            };
            slot.received += len as u64;
            memory.set_received(len);
            let chunk = memory.input.get_mut(..len).unwrap_or_default();
            let waits = slot.connection.receive(chunk, &mut memory.batch);
            report(&slot.connection, memory, waits)
        })
    })
}

/// Bytes that [`receive_socket`] has received.
///
/// # Errors
/// The connection is freed.
#[napi]
pub fn received_bytes(id: u32) -> Result<f64> {
    with_slot(id, |slot| slot.received as f64)
}

/// Bytes that [`flush`] has sent.
///
/// # Errors
/// The connection is freed.
#[napi]
pub fn sent_bytes(id: u32) -> Result<f64> {
    with_slot(id, |slot| slot.sent as f64)
}

/// Continues with input that waits, as [`receive`].
///
/// # Errors
/// The connection is freed.
#[napi]
pub fn resume(id: u32) -> Result<u32> {
    memory::with(|memory| {
        memory.batch.clear(KEPT_BYTES);
        with_slot(id, |slot| {
            let waits = slot.connection.resume(&mut memory.batch);
            report(&slot.connection, memory, waits)
        })
    })
}

/// Writes a burst's events into the shared memory, and returns their number and flags.
fn report(connection: &Connection, memory: &mut Memory, waits: bool) -> u32 {
    let count = (memory.batch.words().len() / EVENT_WORDS) as u32;
    let mut state = count << flags::BITS;
    for (is_set, flag) in [
        (connection.has_closed(), flags::CLOSED),
        (waits, flags::WAITS),
        (!memory.batch.bytes().is_empty(), flags::COPIED),
        (!memory.write_events(), flags::TOO_MANY),
    ] {
        state |= if is_set { flag } else { 0 };
    }
    state
}

/// Writes the latest burst's events into `events`.
#[napi]
pub fn take_events(mut events: BufferSlice<'_>) {
    memory::with(|memory| write_words(memory.batch.words(), &mut events));
}

/// Returns the latest burst's copied payloads.
#[napi]
pub fn take_bytes() -> Buffer {
    memory::with(|memory| Buffer::from(memory.batch.take_bytes()))
}

/// Queues the shared memory's messages. Then writes all queued bytes into the slab from `at` on, and returns their number;
/// if they do not fit, writes nothing and returns the negative number. With a socket, sends the bytes first: those that it
/// does not accept are written.
///
/// # Errors
/// The connection is freed, or a message exceeds a limit of the protocol.
#[napi]
pub fn flush(id: u32, count: u32, at: u32, fd: i32) -> Result<i32> {
    memory::with(|memory| {
        with_slot(id, |slot| {
            slot.queue(&memory.payloads, &memory.messages, count)?;
            let slab = memory.slab.get_mut(at as usize..).unwrap_or_default();
            let written = slot.write(slab);
            let frames =
                usize::try_from(written).ok().filter(|len| *len > 0).and_then(|len| slab.get_mut(..len));
            Ok(match frames {
                Some(frames) if fd >= 0 => slot.send_socket(fd, frames),
                _ => written,
            })
        })?
    })
}

/// Queues the shared memory's messages.
///
/// # Errors
/// As [`flush`].
#[napi]
pub fn queue(id: u32, count: u32) -> Result<()> {
    memory::with(|memory| with_slot(id, |slot| slot.queue(&memory.payloads, &memory.messages, count))?)
}

/// Queues one message.
///
/// # Errors
/// As [`flush`].
#[napi]
pub fn send(id: u32, how: u32, payload: BufferSlice<'_>) -> Result<()> {
    with_slot(id, |slot| slot.send(how, &payload))?
}

/// Writes the queued bytes into `out`, as [`flush`] does into the slab.
///
/// # Errors
/// The connection is freed.
#[napi]
pub fn write(id: u32, mut out: BufferSlice<'_>) -> Result<i32> {
    with_slot(id, |slot| slot.write(&mut out))
}

/// Starts the closing handshake. Without a code, the Close is empty.
///
/// # Errors
/// The code is invalid or the reason too long.
#[napi]
pub fn close(id: u32, code: Option<u16>, reason: String) -> Result<()> {
    let code = code.map(CloseCode::try_from).transpose().map_err(|error| invalid(&error))?;
    with_slot(id, |slot| match slot.connection.close_with(code, &reason) {
        Ok(()) | Err(Misuse::Closing) => Ok(()),
        Err(misuse) => Err(invalid(&misuse)),
    })?
}

/// Returns how a connection has ended, once.
///
/// # Errors
/// The connection is freed.
#[napi]
pub fn take_closed(id: u32) -> Result<Option<ClosedInfo>> {
    with_slot(id, |slot| slot.connection.take_closed().map(ClosedInfo::from))
}

impl Slot {
    fn queue(&mut self, payloads: &[u8], messages: &[u8], count: u32) -> Result<()> {
        for message in messages.chunks_exact(MESSAGE_BYTES).take(count as usize) {
            let [how, start, len] = [0, 4, 8].map(|at| read_word(&message[at..]));
            let payload = payloads.get(start as usize..).and_then(|bytes| bytes.get(..len as usize));
            let payload = payload.ok_or_else(|| Error::new(Status::InvalidArg, "payload out of range"))?;
            self.send(how, payload)?;
        }
        Ok(())
    }

    fn send(&mut self, how: u32, payload: &[u8]) -> Result<()> {
        let kind = match how & sending::KIND {
            TEXT => Kind::Text,
            PING => return check(self.connection.ping(payload)),
            PONG => return check(self.connection.pong(payload)),
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

    /// Sends frames, and moves those that the socket does not accept to the front. Returns their length.
    fn send_socket(&mut self, fd: socket::Descriptor, frames: &mut [u8]) -> i32 {
        // A write by libuv reports the error.
        let sent = socket::send(fd, &[IoSlice::new(frames)]).unwrap_or(0);
        self.sent += sent as u64;
        frames.copy_within(sent.., 0);
        // As long as the slab at most.
        (frames.len() - sent) as i32
    }

    fn write(&mut self, out: &mut [u8]) -> i32 {
        let queued = self.connection.buffered();
        if out.len() < queued {
            return -i32::try_from(queued).unwrap_or(i32::MAX);
        }
        let Some(pieces) = self.connection.start_write() else { return 0 };
        let mut rest = out;
        for piece in pieces {
            let (target, behind) = rest.split_at_mut(piece.len());
            target.copy_from_slice(piece);
            rest = behind;
        }
        self.connection.finish_write();
        i32::try_from(queued).unwrap_or(i32::MAX)
    }
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
