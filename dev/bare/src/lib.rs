//! A WebSocket program without a standard library: it is compiled, never run.
#![no_std]

extern crate alloc;

use alloc::sync::Arc;
use core::alloc::{GlobalAlloc, Layout};

use sinews_proto::{Config, Connection, Negotiated, Time};

/// An allocator without memory; a real program provides its own.
struct Nothing;

// SAFETY: a null pointer is the answer of an allocator without memory; no memory is ever freed.
unsafe impl GlobalAlloc for Nothing {
    unsafe fn alloc(&self, _: Layout) -> *mut u8 {
        core::ptr::null_mut()
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[global_allocator]
static NOTHING: Nothing = Nothing;

/// Refers to all parts of the machine.
#[must_use]
pub fn connection(negotiated: Negotiated) -> Connection {
    Connection::new(negotiated, Arc::new(Config::default()), Time::ZERO)
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
