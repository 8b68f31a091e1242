//! A program without a standard library that speaks WebSocket: it is compiled, never run.
#![no_std]

extern crate alloc;

use alloc::sync::Arc;
use core::alloc::{GlobalAlloc, Layout};

use sinews_proto::{Config, Connection, Negotiated, Time};

/// Memory is for whoever runs this to give.
struct Nothing;

// SAFETY: a null pointer is the answer of an allocator that has nothing; nothing is ever freed.
unsafe impl GlobalAlloc for Nothing {
    unsafe fn alloc(&self, _: Layout) -> *mut u8 {
        core::ptr::null_mut()
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[global_allocator]
static NOTHING: Nothing = Nothing;

/// Needs the whole machine.
#[must_use]
pub fn connection(negotiated: Negotiated) -> Connection {
    Connection::new(negotiated, Arc::new(Config::default()), Time::ZERO)
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
