//! Creating a ring: as large as the limits permit, with the available features, or a refusal.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;
use std::thread;

use io_uring::squeue::Entry;
use io_uring::types::{Fd, Fixed};
use io_uring::{IoUring, opcode};
use rustix::process::{Resource, getrlimit};

use super::unavailable::RingUnavailable;
use crate::{EngineConfig, Io};

/// Creates a ring as large as the limits permit, not yet enabled.
///
/// A short-lived thread creates it: when a ring is closed, the kernel interrupts the thread that created
/// it, which would be the caller's thread.
pub(super) fn create_ring() -> Result<IoUring, RingUnavailable> {
    let thread = thread::Builder::new().name("io_uring setup".into()).spawn(|| {
        let ring = try_sizes()?;
        supports_socket_options().map_err(|error| RingUnavailable::new("querying socket options", &error))?;
        Ok(ring)
    });
    let thread = thread.map_err(|error| RingUnavailable::new("starting a thread", &error))?;
    thread
        .join()
        .unwrap_or_else(|_| Err(RingUnavailable::new("a ring", &io::Error::from_raw_os_error(libc::EIO))))
}

fn try_sizes() -> Result<IoUring, RingUnavailable> {
    let mut last = io::Error::from_raw_os_error(libc::ENOSYS);
    for entries in QUEUE_ENTRIES {
        for sq_array in [false, true] {
            let mut builder = IoUring::builder();
            builder
                .setup_single_issuer()
                .setup_defer_taskrun()
                .setup_submit_all()
                .setup_r_disabled()
                .setup_cqsize(entries * COMPLETIONS_PER_ENTRY);
            if !sq_array {
                builder.setup_no_sqarray();
            }
            match builder.build(entries) {
                Ok(ring) => return Ok(ring),
                Err(error) => last = error,
            }
            if last.raw_os_error() != Some(libc::EINVAL) {
                break;
            }
        }
        if last.raw_os_error() != Some(libc::ENOMEM) {
            break;
        }
    }
    Err(RingUnavailable::new("io_uring_setup", &last))
}

/// Whether completions arrive in the order in which the kernel fills an incremental buffer, which
/// determines the position of the bytes. Before Linux 6.15, single receives could complete after later
/// multishot receives.
pub(super) fn fills_in_order() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    version(&release).is_some_and(|version| version >= (6, 15))
}

/// Parses major and minor number of a kernel release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|byte: char| !byte.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Registers a file table as large as the limits permit. Returns its size.
pub(super) fn register_files(ring: &IoUring, config: &EngineConfig) -> io::Result<usize> {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let max = config.ring_files.unwrap_or(FILES_MAX).min(u32::try_from(limit).unwrap_or(u32::MAX)).max(1);
    let submitter = ring.submitter();
    submitter.register_files_sparse(max)?;
    Ok(max as usize)
}

/// Checks that the ring supports `getsockopt` commands, which came with Linux 6.7; all other required
/// features are older.
fn supports_socket_options() -> io::Result<()> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
    let mut ring = IoUring::new(2)?;
    let mut name = [0; 28];
    let entry = peer_name(opcode::SetSockOpt::new, Fd(socket.as_raw_fd()), &mut name);
    // SAFETY: the name lives until the completion has come.
    unsafe { ring.submission().push(&entry) }.map_err(io::Error::other)?;
    ring.submit_and_wait(1)?;
    let result = ring.completion().next().map_or(-libc::EIO, |entry| entry.result());
    // A socket without a peer has no name, but the command was accepted.
    if result >= 0 || result == -libc::ENOTCONN { Ok(()) } else { Err(io::Error::from_raw_os_error(-result)) }
}

/// Requests a peer's address. The crate has no `getsockopt`, which differs from `setsockopt` only in the
/// command; it also does not export the file type that the constructor of `set` takes.
pub(super) fn peer_name<F>(
    set: impl FnOnce(F, u32, u32, *const libc::c_void, u32) -> opcode::SetSockOpt,
    file: F,
    name: &mut [u8],
) -> Entry {
    let set = set(file, SOL_SOCKET, SO_PEERNAME, name.as_mut_ptr().cast(), name.len() as u32);
    let mut entry = set.build();
    let command = (&raw mut entry).cast::<u8>().wrapping_add(COMMAND_OFFSET).cast::<u32>();
    // SAFETY: an entry is laid out as `struct io_uring_sqe`, whose 64 bytes have `cmd_op` there.
    unsafe { command.write(GETSOCKOPT) };
    entry
}

/// Limits the unsent bytes of a socket (`TCP_NOTSENT_LOWAT`).
pub(super) fn unsent_limit(file: u32) -> Entry {
    static LIMIT: u32 = Io::UNSENT_LIMIT;
    let (level, option) = (libc::IPPROTO_TCP as u32, libc::TCP_NOTSENT_LOWAT as u32);
    opcode::SetSockOpt::new(Fixed(file), level, option, (&raw const LIMIT).cast(), size_of_val(&LIMIT) as u32)
        .build()
}

/// Submission queue sizes to try. A turn with more operations makes more system calls. 256 entries fit into
/// 64 KB of locked memory.
const QUEUE_ENTRIES: [u32; 3] = [1024, 256, 64];

/// Completions beyond the queue's capacity cost the kernel memory and the loop a system call.
const COMPLETIONS_PER_ENTRY: u32 = 4;

/// Default limit of the file table: 8 bytes per slot in the kernel.
const FILES_MAX: u32 = 131_072;

const SOL_SOCKET: u32 = libc::SOL_SOCKET as u32;
const SO_PEERNAME: u32 = libc::SO_PEERNAME as u32;

/// `SOCKET_URING_OP_GETSOCKOPT`, and the offset of `cmd_op` in `struct io_uring_sqe`.
const GETSOCKOPT: u32 = 2;
const COMMAND_OFFSET: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_by_number() {
        assert_eq!(version("6.18.44\n"), Some((6, 18)));
        assert_eq!(version("6.8.0-41-generic"), Some((6, 8)));
        assert!(version("6.8.0") < version("6.15-rc1"));
        assert_eq!(version("unknown"), None);
    }
}
