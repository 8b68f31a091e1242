//! Waking the loop from other threads: a message to its ring, or an event descriptor on kernels that accept
//! no messages from threads without a ring (before Linux 6.13).

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::RawFd;
use std::sync::{Arc, PoisonError, RwLock};

use io_uring::{opcode, types};

use super::token::Token;
use crate::calls;

/// Wakes one loop. May outlive the loop.
#[derive(Clone)]
pub(crate) struct RingWaker(Arc<WakeMethod>);

enum WakeMethod {
    /// The ring's descriptor; `None` after the ring is closed. Locked while a message is sent, so that the
    /// number cannot refer to another file meanwhile.
    Message(RwLock<Option<RawFd>>),
    /// Polled by the ring during its lifetime.
    Event(File),
}

impl RingWaker {
    /// Uses a message if the kernel supports it, else an event descriptor.
    pub(super) fn new(ring: RawFd) -> io::Result<Self> {
        let method = match message(ring) {
            // A ring that is not enabled rejects messages, which proves that the kernel knows them.
            Ok(()) => WakeMethod::Message(RwLock::new(Some(ring))),
            Err(error) if error.raw_os_error() == Some(libc::EBADFD) => {
                WakeMethod::Message(RwLock::new(Some(ring)))
            }
            Err(_) => WakeMethod::Event(calls::event()?),
        };
        Ok(Self(Arc::new(method)))
    }

    /// Simulates a kernel without messages to rings.
    #[cfg(test)]
    pub(super) fn by_event() -> io::Result<Self> {
        Ok(Self(Arc::new(WakeMethod::Event(calls::event()?))))
    }

    /// The descriptor that the ring must poll, if it is not woken by messages.
    pub(super) fn event(&self) -> Option<&File> {
        match &*self.0 {
            WakeMethod::Message(_) => None,
            WakeMethod::Event(file) => Some(file),
        }
    }

    /// Must be called before the ring is closed.
    pub(super) fn ring_closed(&self) {
        if let WakeMethod::Message(ring) = &*self.0 {
            *ring.write().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    pub(crate) fn wake(&self) -> io::Result<()> {
        match &*self.0 {
            WakeMethod::Message(ring) => match *ring.read().unwrap_or_else(PoisonError::into_inner) {
                Some(ring) => message(ring),
                None => Ok(()),
            },
            // A saturated counter wakes the loop as well.
            WakeMethod::Event(file) => match (&*file).write(&1u64.to_ne_bytes()) {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
                _ => Ok(()),
            },
        }
    }
}

/// Posts a completion with [`Token::WAKE`] to a ring, from any thread.
fn message(ring: RawFd) -> io::Result<()> {
    let entry = opcode::MsgRingData::new(types::Fd(ring), 0, Token::WAKE.bits(), None).build();
    calls::send_message(&entry)
}
