//! Waking the loop from other threads: a message to its ring, or an event descriptor where the kernel takes
//! none from a thread without a ring (before Linux 6.13).

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::RawFd;
use std::sync::{Arc, PoisonError, RwLock};

use io_uring::{opcode, types};

use super::calls;
use super::token::Token;

/// Wakes one loop. Outlives it.
#[derive(Clone)]
pub(crate) struct RingWaker(Arc<Way>);

enum Way {
    /// The ring's descriptor; `None` when the ring has gone. Held while a message is sent, so that the
    /// number cannot name another file meanwhile.
    Message(RwLock<Option<RawFd>>),
    /// Polled by the ring for as long as it lives.
    Event(File),
}

impl RingWaker {
    /// A message if the kernel takes them, else an event.
    pub(super) fn new(ring: RawFd) -> io::Result<Self> {
        let way = match message(ring) {
            // A ring that has not begun takes no messages yet: the kernel knows what they are.
            Ok(()) => Way::Message(RwLock::new(Some(ring))),
            Err(error) if error.raw_os_error() == Some(libc::EBADFD) => Way::Message(RwLock::new(Some(ring))),
            Err(_) => Way::Event(calls::event()?),
        };
        Ok(Self(Arc::new(way)))
    }

    /// As on a kernel that takes no messages.
    #[cfg(test)]
    pub(super) fn by_event() -> io::Result<Self> {
        Ok(Self(Arc::new(Way::Event(calls::event()?))))
    }

    /// What the ring has to poll to be woken, if it is not sent messages.
    pub(super) fn event(&self) -> Option<&File> {
        match &*self.0 {
            Way::Message(_) => None,
            Way::Event(file) => Some(file),
        }
    }

    /// The ring is about to be closed.
    pub(super) fn ring_gone(&self) {
        if let Way::Message(ring) = &*self.0 {
            *ring.write().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    pub(crate) fn wake(&self) -> io::Result<()> {
        match &*self.0 {
            Way::Message(ring) => match *ring.read().unwrap_or_else(PoisonError::into_inner) {
                Some(ring) => message(ring),
                None => Ok(()),
            },
            // A counter that is full wakes all the same.
            Way::Event(file) => match (&*file).write(&1u64.to_ne_bytes()) {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
                _ => Ok(()),
            },
        }
    }
}

/// Puts a completion named [`Token::WAKE`] into a ring, from any thread.
fn message(ring: RawFd) -> io::Result<()> {
    let entry = opcode::MsgRingData::new(types::Fd(ring), 0, Token::WAKE.bits(), None).build();
    calls::send_message(&entry)
}
