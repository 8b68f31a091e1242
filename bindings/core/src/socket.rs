//! System calls on sockets that the interpreter owns.

use std::io::{self, IoSlice};

#[cfg(target_os = "linux")]
pub use poller::{Poller, Ready};

/// A socket's descriptor. Its Python object stays open as long as it is used here.
pub type Descriptor = i32;

/// Receives bytes. Returns `None` if there are none now.
///
/// # Errors
/// The system's.
#[cfg(unix)]
pub fn receive(descriptor: Descriptor, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    use nix::sys::socket::{MsgFlags, recv};
    would_block(recv(descriptor, buffer, MsgFlags::MSG_DONTWAIT))
}

/// Sends bytes. Returns how many the socket has accepted.
///
/// # Errors
/// The system's.
#[cfg(unix)]
pub fn send(descriptor: Descriptor, slices: &[IoSlice<'_>]) -> io::Result<usize> {
    use nix::sys::socket::{MsgFlags, send, sendmsg};
    #[cfg(not(target_vendor = "apple"))]
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    // Interpreters ignore SIGPIPE.
    #[cfg(target_vendor = "apple")]
    let flags = MsgFlags::MSG_DONTWAIT;
    let sent = match slices {
        [slice] => send(descriptor, slice, flags),
        _ => sendmsg::<()>(descriptor, slices, &[], flags, None),
    };
    Ok(would_block(sent)?.unwrap_or(0))
}

#[cfg(unix)]
fn would_block(result: nix::Result<usize>) -> io::Result<Option<usize>> {
    use nix::errno::Errno;
    match result {
        Ok(count) => Ok(Some(count)),
        Err(Errno::EAGAIN | Errno::EINTR) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Other systems use the loop's transports.
///
/// # Errors
/// Always.
#[cfg(not(unix))]
pub fn receive(_: Descriptor, _: &mut [u8]) -> io::Result<Option<usize>> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Other systems use the loop's transports.
///
/// # Errors
/// Always.
#[cfg(not(unix))]
pub fn send(_: Descriptor, _: &[IoSlice<'_>]) -> io::Result<usize> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(target_os = "linux")]
mod poller {
    // The safe functions take borrowed descriptors; those of an interpreter are numbers.
    #![allow(deprecated, reason = "as above")]

    use std::io;
    use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};

    use nix::errno::Errno;
    use nix::sys::epoll::{
        Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollOp, EpollTimeout, epoll_ctl,
    };

    use super::Descriptor;

    /// Readable sockets in one wait.
    const READY_MAX: usize = 256;

    /// Watches many sockets for input behind one descriptor, which the interpreter's loop watches: one call of the loop
    /// serves all readable sockets.
    #[derive(Debug)]
    pub struct Poller {
        epoll: Epoll,
        events: Box<[EpollEvent]>,
    }

    impl Poller {
        /// Creates a poller without sockets.
        ///
        /// # Errors
        /// The system has no further descriptor.
        pub fn new() -> io::Result<Self> {
            let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
            Ok(Self { epoll, events: vec![EpollEvent::empty(); READY_MAX].into_boxed_slice() })
        }

        /// Watches a socket. Its close ends that, too.
        ///
        /// # Errors
        /// The system cannot watch it.
        pub fn watch(&self, socket: Descriptor, id: u32) -> io::Result<()> {
            let mut event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP, id.into());
            Ok(epoll_ctl(self.epoll.0.as_raw_fd(), EpollOp::EpollCtlAdd, socket, &mut event)?)
        }

        /// Watches an open socket no longer.
        pub fn unwatch(&self, socket: Descriptor) {
            // It fails for a socket that is not watched.
            let _ = epoll_ctl(self.epoll.0.as_raw_fd(), EpollOp::EpollCtlDel, socket, None);
        }

        /// Returns the sockets with input, an end or an error, without waiting. Sockets that are not read are returned
        /// again.
        ///
        /// # Errors
        /// The system's.
        pub fn ready(&mut self) -> io::Result<impl Iterator<Item = Ready>> {
            let count = match self.epoll.wait(&mut self.events, EpollTimeout::ZERO) {
                Err(Errno::EINTR) => 0,
                count => count?,
            };
            Ok(self.events[..count].iter().map(|event| Ready {
                id: event.data() as u32,
                has_failed: event.events().intersects(EpollFlags::EPOLLERR | EpollFlags::EPOLLHUP),
            }))
        }
    }

    /// A socket with something to receive.
    #[derive(Clone, Copy, Debug)]
    #[allow(clippy::exhaustive_structs, reason = "the caller takes both")]
    pub struct Ready {
        /// The socket's number at [`Poller::watch`].
        pub id: u32,
        /// The transport has failed or ended in both directions.
        pub has_failed: bool,
    }

    impl AsFd for Poller {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.epoll.0.as_fd()
        }
    }
}
