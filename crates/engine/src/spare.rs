//! Spare memory: receiving into the spare capacity of an application's buffer, and giving back what is free.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsFd;

use socket2::SockRef;

use crate::Large;

/// Gives free memory of the process back to the system, where the C library's allocator keeps it (glibc): small pieces that
/// are in use would hold it in place, however much is free between them. Takes a lock of the allocator for as long as that
/// takes, some microseconds for each free megabyte, so it is no work for a loop.
pub fn give_back_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it may be called at any time on any thread, and touches nothing that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

impl Large {
    /// Bytes that may be received: none if the buffer has no capacity for them.
    pub(crate) fn room(&self) -> usize {
        self.most.min(self.buffer.capacity() - self.buffer.len())
    }

    /// Receives what is there, at most `most` bytes, behind what the buffer holds.
    pub(crate) fn receive(&mut self, socket: &impl AsFd, most: usize) -> io::Result<usize> {
        let room = self.room().min(most);
        let received = SockRef::from(socket).recv(&mut self.buffer.spare_capacity_mut()[..room])?;
        // SAFETY: so many bytes of the spare capacity, which is that long, have just been written.
        unsafe { self.extend(received.min(room)) };
        Ok(received)
    }

    /// # Safety
    ///
    /// The first `received` bytes of the spare capacity have been written.
    pub(crate) unsafe fn extend(&mut self, received: usize) {
        // SAFETY: as the caller vouches; what was written lies within the capacity.
        unsafe { self.buffer.set_len(self.buffer.len() + received) };
    }
}
