//! One descriptor of libuv's loop for the sockets of many connections.

use std::os::fd::{AsFd as _, AsRawFd as _};

use napi::bindgen_prelude::{BufferSlice, Function};
use napi::{Env, Result};
use napi_derive::napi;
use sinews_bindings::socket;

use crate::memory::write_words;
use crate::uv::LoopWatcher;

/// Set in the number of a socket that has failed.
#[napi]
pub const FAILED: u32 = 1 << 31;

/// Calls a function when sockets are readable: one call for all of them.
#[napi]
#[derive(Debug)]
pub struct Poller {
    /// Dropped before the descriptor that it watches.
    watcher: LoopWatcher,
    poller: socket::Poller,
    ids: Vec<u32>,
}

#[napi]
impl Poller {
    /// Creates a poller without sockets. It does not keep the process alive.
    ///
    /// # Errors
    /// The system has no further descriptor.
    #[napi(constructor)]
    pub fn new(env: Env, tick: Function<'_, (), ()>) -> Result<Self> {
        let poller = socket::Poller::new()?;
        let watcher = LoopWatcher::new(&env, poller.as_fd().as_raw_fd(), &tick)?;
        watcher.set_ref(false);
        Ok(Self { watcher, poller, ids: Vec::new() })
    }

    /// Watches the socket of a connection. Returns whether that is possible.
    #[napi]
    pub fn watch(&self, fd: i32, id: u32) -> bool {
        self.poller.watch(fd, id).is_ok()
    }

    /// Watches an open socket no longer.
    #[napi]
    pub fn unwatch(&self, fd: i32) {
        self.poller.unwatch(fd);
    }

    /// Writes the numbers of readable sockets, with [`FAILED`] for those that have failed. Returns how many they are.
    ///
    /// # Errors
    /// The kernel cannot be asked.
    #[napi]
    pub fn ready(&mut self, mut out: BufferSlice<'_>) -> Result<u32> {
        self.ids.clear();
        let number = |ready: socket::Ready| ready.id | if ready.has_failed { FAILED } else { 0 };
        self.ids.extend(self.poller.ready()?.take(out.len() / size_of::<u32>()).map(number));
        write_words(&self.ids, &mut out);
        Ok(self.ids.len() as u32)
    }

    /// Whether the sockets keep the process alive.
    #[napi]
    pub fn set_ref(&self, is_ref: bool) {
        self.watcher.set_ref(is_ref);
    }
}
