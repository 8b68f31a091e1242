//! Memory that operations in flight point to: receive buffers, addresses of peers, and the slices of sends.

#![allow(unsafe_code)]

use std::io::IoSlice;
use std::mem;

use super::buffers::Buffers;
use crate::EngineConfig;

/// Memory that operations in flight point to.
pub(super) struct RingMemory {
    pub(super) buffers: Buffers,
    pub(super) names: Box<[SocketAddressBytes]>,
    #[expect(clippy::vec_box, reason = "the kernel holds their addresses while the vector grows")]
    messages: Vec<Box<SendMessage>>,
    /// Messages in use since the last complete submission.
    messages_used: usize,
}

/// A `sockaddr` of an IP address.
type SocketAddressBytes = [u8; NAME];
pub(super) const NAME: usize = 28;
pub(super) const NAME_V4: usize = 16;
/// The address family: a Unix client seldom has a longer name.
pub(super) const NAME_UNIX: usize = 2;

/// The memory of a send with several slices; the kernel copies it when it takes the operation.
struct SendMessage {
    header: libc::msghdr,
    slices: [libc::iovec; SLICES],
}

// SAFETY: the addresses in it are numbers to us; nothing here reads through them.
unsafe impl Send for SendMessage {}

/// The slices that fit one send, and their total length.
pub(super) fn fitting_slices<'s, 'a>(slices: &'s [IoSlice<'a>]) -> (&'s [IoSlice<'a>], u32) {
    let mut offered = 0;
    for (index, slice) in slices.iter().enumerate() {
        let with = offered + slice.len() as u64;
        if with > OFFERED_MAX {
            // A longer single slice is truncated.
            return if index == 0 {
                (&slices[..1], OFFERED_MAX as u32)
            } else {
                (&slices[..index], offered as u32)
            };
        }
        offered = with;
    }
    (slices, offered as u32)
}

impl RingMemory {
    pub(super) fn new(config: &EngineConfig) -> Self {
        Self {
            buffers: Buffers::new(config.ring_buffers, config.ring_buffer()),
            names: vec![[0; NAME]; config.accepts_per_turn.min(NAME_SLOTS_MAX) as usize].into(),
            messages: Vec::new(),
            messages_used: 0,
        }
    }

    /// The next free message, pointing to `slices`.
    pub(super) fn message(&mut self, slices: &[IoSlice<'_>]) -> *const libc::msghdr {
        if self.messages_used == self.messages.len() {
            self.messages.push(SendMessage::new());
        }
        let message = &mut *self.messages[self.messages_used];
        self.messages_used += 1;
        for (to, from) in message.slices.iter_mut().zip(slices) {
            *to = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() };
        }
        message.header.msg_iov = message.slices.as_mut_ptr();
        message.header.msg_iovlen = slices.len() as _;
        &raw const message.header
    }

    /// The same, for operations on slices.
    pub(super) fn slices(&mut self, slices: &[IoSlice<'_>]) -> (*const libc::iovec, u32) {
        self.message(slices);
        let message = &*self.messages[self.messages_used - 1];
        (message.slices.as_ptr(), slices.len() as u32)
    }

    /// All operations are submitted: messages may be reused. A rare flood does not pin its memory.
    pub(super) fn reset_messages(&mut self) {
        self.messages_used = 0;
        self.messages.truncate(MESSAGES_RETAINED);
    }
}

impl SendMessage {
    fn new() -> Box<Self> {
        // SAFETY: both are plain structures of the kernel, for which zeros are valid: null and empty.
        Box::new(unsafe { mem::zeroed() })
    }
}

/// Concurrent address requests.
const NAME_SLOTS_MAX: u32 = 1024;

/// Slices of a chain per send; a longer chain continues in the next turn.
pub(super) const SLICES: usize = 64;

/// Bytes offered to one send; the rest follows in the next send.
pub(super) const OFFERED_MAX: u64 = 1 << 30;

/// Messages retained between turns, a KiB each.
const MESSAGES_RETAINED: usize = 64;
