//! The application's memory that a message is received into, and how much of it is filled.

use std::any::Any;

use compio::buf::IoBufMut;

use super::app_memory::AppMemory;
use crate::reading::ReceiveTarget;

/// Least remaining payload that justifies a separate receive: a shorter payload is received with the input behind it.
pub(super) const DIRECT_MIN: usize = 16 << 10;

/// Memory of a call, and its state.
#[derive(Default)]
pub(super) struct AppBuffer {
    /// `None` while the kernel has it.
    pub(super) memory: Option<Box<dyn AppMemory>>,
    pub(super) capacity: usize,
    /// Offset from which the transport may receive.
    pub(super) at: usize,
    /// A message that has begun is received into it. Before its head is known, nothing may be received directly.
    pub(super) started: bool,
    /// The unprocessed result of a receive there: number of bytes, and whether they end the message.
    pub(super) piece: Option<(usize, bool)>,
}

impl AppBuffer {
    pub(super) fn new<B: IoBufMut>(mut buffer: B) -> Box<Self> {
        let capacity = buffer.buf_capacity();
        Box::new(Self { memory: Some(Box::new(buffer)), capacity, at: 0, started: false, piece: None })
    }

    /// The memory in its original type; `None`: the kernel has it, or its type is another.
    pub(super) fn into_buffer<B: IoBufMut>(self) -> Option<B> {
        let memory: Box<dyn Any> = self.memory?;
        memory.downcast().ok().map(|buffer| *buffer)
    }

    pub(super) fn filled(&self, len: usize) -> &[u8] {
        let memory = self.memory.as_ref().expect("the kernel has returned the memory");
        let bytes = (**memory).bytes();
        &bytes[..len.min(bytes.len())]
    }
}

impl ReceiveTarget for Box<AppBuffer> {
    fn capacity(&mut self) -> usize {
        self.capacity
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        if !bytes.is_empty() {
            // While the kernel has the memory, no other receive is in flight, so that no other bytes arrive.
            let memory = self.memory.take().expect("the kernel has returned the memory");
            self.memory = Some(memory.put(at, bytes));
        }
    }

    /// The operation has to own the memory.
    fn behind(&mut self, _: usize) -> &mut [u8] {
        &mut []
    }

    fn take_piece(&mut self) -> Option<(usize, bool)> {
        self.piece.take()
    }
}
