//! System calls that the `io-uring` crate lacks, or does not make as required.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::Duration;

use io_uring::squeue::Entry;

/// A ring's descriptor, and its index in the thread's registered table, by which the kernel finds it
/// faster. (The crate stores that index in a value that borrows the ring.)
pub(super) struct RingDescriptor {
    ring: RawFd,
    registered: Option<u32>,
}

impl RingDescriptor {
    pub(super) const fn new(ring: RawFd) -> Self {
        Self { ring, registered: None }
    }

    /// Registers the descriptor with the calling thread. The thread's table is small; if it is full, the
    /// ring works without.
    pub(super) fn register(&mut self) {
        let mut update = RegisterUpdate { offset: u32::MAX, reserved: 0, data: self.ring as u64 };
        // SAFETY: the kernel reads and writes one `RegisterUpdate`, laid out as its `io_uring_rsrc_update`.
        let count = unsafe { register(self.ring, REGISTER_RING_FDS, (&raw mut update).cast()) };
        self.registered = count.is_ok().then_some(update.offset);
    }

    /// Must be called by the thread that registered it. While it is registered, the ring stays alive.
    pub(super) fn unregister(&mut self) {
        if let Some(offset) = self.registered.take() {
            let mut update = RegisterUpdate { offset, reserved: 0, data: 0 };
            // SAFETY: as in `register`.
            let _ = unsafe { register(self.ring, UNREGISTER_RING_FDS, (&raw mut update).cast()) };
        }
    }

    /// Submits `count` operations.
    pub(super) fn submit(&self, count: u32) -> io::Result<()> {
        let (descriptor, by_number) = self.descriptor();
        // SAFETY: without an argument; the operations are the ring's.
        let result = unsafe {
            libc::syscall(libc::SYS_io_uring_enter, descriptor, count, 0, by_number, ptr::null::<u8>(), 0)
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// The descriptor for the kernel, and the flag that tells its kind.
    fn descriptor(&self) -> (RawFd, u32) {
        match self.registered {
            Some(number) => (number as RawFd, ENTER_REGISTERED_RING),
            None => (self.ring, 0),
        }
    }

    /// Submits `count` operations, runs the kernel's deferred work, and waits for `wait` completions, at
    /// most `timeout`.
    pub(super) fn enter(&self, count: u32, wait: u32, timeout: Option<Duration>) -> io::Result<()> {
        let (descriptor, by_number) = self.descriptor();
        let time = timeout.map(|timeout| Timespec {
            seconds: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            nanoseconds: i64::from(timeout.subsec_nanos()),
        });
        let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
        let argument = EnterArgument { signals: 0, signals_size: 0, reserved: 0, time: time as u64 };
        let flags = ENTER_GETEVENTS | ENTER_EXT_ARG | by_number;
        // SAFETY: the last two are the address and size of an `EnterArgument`, laid out as the kernel's
        // `io_uring_getevents_arg`; it and the time it points to live through the call, which writes neither.
        let result = unsafe {
            libc::syscall(
                libc::SYS_io_uring_enter,
                descriptor,
                count,
                wait,
                flags,
                &raw const argument,
                size_of::<EnterArgument>(),
            )
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// Posts a completion to another ring, from any thread: `entry` is a message to a ring.
pub(super) fn send_message(entry: &Entry) -> io::Result<()> {
    // SAFETY: the kernel reads one submission entry, which the crate lays out as the kernel's 64 bytes, and
    // keeps no reference to it.
    unsafe { register(-1, REGISTER_SEND_MSG_RING, ptr::from_ref(entry).cast_mut().cast()) }
}

/// Creates a non-blocking event descriptor.
pub(super) fn event() -> io::Result<File> {
    // SAFETY: the call takes two numbers.
    let descriptor = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just opened and is nobody else's.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(descriptor) }))
}

/// # Safety
///
/// `argument` is the address of one value of the kind that `operation` takes.
unsafe fn register(ring: RawFd, operation: u32, argument: *mut libc::c_void) -> io::Result<()> {
    // SAFETY: as the caller vouches.
    let result = unsafe { libc::syscall(libc::SYS_io_uring_register, ring, operation, argument, 1) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Leaves the choice of a bound socket's port to the call that connects it (`IP_BIND_ADDRESS_NO_PORT`). Otherwise
/// `bind` reserves a port that no other connection from the address can use, not even to another server.
pub(crate) fn choose_port_at_connect(socket: &impl AsRawFd) -> io::Result<()> {
    let yes: libc::c_int = 1;
    // SAFETY: the kernel reads one `c_int` from an address that is valid during the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            (&raw const yes).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[repr(C)]
struct RegisterUpdate {
    offset: u32,
    reserved: u32,
    data: u64,
}

#[repr(C)]
struct EnterArgument {
    signals: u64,
    signals_size: u32,
    reserved: u32,
    time: u64,
}

/// `struct __kernel_timespec`.
#[repr(C)]
struct Timespec {
    seconds: i64,
    nanoseconds: i64,
}

const REGISTER_RING_FDS: u32 = 20;
const UNREGISTER_RING_FDS: u32 = 21;
/// Since Linux 6.13.
const REGISTER_SEND_MSG_RING: u32 = 31;
const ENTER_GETEVENTS: u32 = 1;
const ENTER_EXT_ARG: u32 = 1 << 3;
const ENTER_REGISTERED_RING: u32 = 1 << 4;
