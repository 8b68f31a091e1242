//! Memory that JavaScript and the native part share, so that a call passes numbers only.

use std::cell::RefCell;
use std::mem::ManuallyDrop;

use napi::bindgen_prelude::Buffer;
use napi_derive::napi;
use sinews_bindings::Batch;

thread_local! {
    static MEMORY: RefCell<Memory> = RefCell::new(Memory::new());
}

/// A JavaScript thread's memory.
pub(crate) struct Memory {
    /// Events that JavaScript reads.
    pub(crate) events: Shared,
    /// Messages to send: their payloads, and the numbers that describe them.
    pub(crate) payloads: Shared,
    pub(crate) messages: Shared,
    /// Bytes that a socket has just received.
    pub(crate) input: Shared,
    /// Frames for the socket.
    pub(crate) slab: Shared,
    /// The latest burst, until JavaScript has taken it.
    pub(crate) batch: Batch,
}

/// A Buffer that outlives the thread's destructors: they run after JavaScript has ended.
pub(crate) type Shared = ManuallyDrop<Buffer>;

impl Memory {
    fn new() -> Self {
        let none = || ManuallyDrop::new(Buffer::from(Vec::new()));
        Self {
            events: none(),
            payloads: none(),
            messages: none(),
            input: none(),
            slab: none(),
            batch: Batch::new(),
        }
    }

    /// Writes the latest burst's events into the memory that is shared. Returns `false` if they do not fit.
    pub(crate) fn write_events(&mut self) -> bool {
        write_words(self.batch.words(), &mut self.events)
    }

    /// Writes the number of received bytes behind the events.
    pub(crate) fn set_received(&mut self, len: usize) {
        if let Some(last) = self.events.last_chunk_mut() {
            *last = (len as u32).to_ne_bytes();
        }
    }
}

/// Runs a function with the thread's memory.
pub(crate) fn with<R>(call: impl FnOnce(&mut Memory) -> R) -> R {
    MEMORY.with_borrow_mut(call)
}

/// Writes numbers in the machine's byte order. Returns `false` if they do not fit.
pub(crate) fn write_words(words: &[u32], out: &mut [u8]) -> bool {
    let Some(out) = out.get_mut(..size_of_val(words)) else { return false };
    for (out, word) in out.chunks_exact_mut(size_of::<u32>()).zip(words) {
        out.copy_from_slice(&word.to_ne_bytes());
    }
    true
}

/// Reads a number in the machine's byte order.
pub(crate) fn read_word(bytes: &[u8]) -> u32 {
    bytes.first_chunk().copied().map_or(0, u32::from_ne_bytes)
}

/// Shares the thread's memory. JavaScript calls it once.
#[napi]
pub fn share(events: Buffer, payloads: Buffer, messages: Buffer, input: Buffer) {
    with(|memory| {
        memory.events = ManuallyDrop::new(events);
        memory.payloads = ManuallyDrop::new(payloads);
        memory.messages = ManuallyDrop::new(messages);
        memory.input = ManuallyDrop::new(input);
    });
}

/// Shares new memory for frames. The old memory belongs to JavaScript alone.
#[napi]
pub fn share_slab(slab: Buffer) {
    with(|memory| {
        let old = std::mem::replace(&mut memory.slab, ManuallyDrop::new(slab));
        drop(ManuallyDrop::into_inner(old));
    });
}
