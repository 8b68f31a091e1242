//! Memory: receiving into the spare capacity of an application's buffer, and returning free memory to the
//! system.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsFd;

use socket2::SockRef;

use crate::LargeBuffer;

/// Returns the process's free memory to the system, where the C library's allocator retains it (glibc): small
/// allocations would pin it otherwise. It holds an allocator lock for some microseconds per free megabyte, so it must
/// not run on a loop.
pub fn release_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it may be called at any time on any thread, and touches nothing that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

impl LargeBuffer {
    /// Number of bytes that may be received: 0 if the buffer has no spare capacity.
    pub(crate) fn spare_capacity(&self) -> usize {
        self.limit.min(self.buffer.capacity() - self.buffer.len())
    }

    /// Receives available bytes, at most `most`, behind the content of the buffer.
    pub(crate) fn receive(&mut self, socket: &impl AsFd, most: usize) -> io::Result<usize> {
        let spare_capacity = self.spare_capacity().min(most);
        let received = SockRef::from(socket).recv(&mut self.buffer.spare_capacity_mut()[..spare_capacity])?;
        // SAFETY: so many bytes of the spare capacity, which is that long, have just been written.
        unsafe { self.extend(received.min(spare_capacity)) };
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
