//! System calls on a socket that the interpreter owns.

use std::io::{self, IoSlice};

/// A socket's descriptor. Its Python object stays open as long as it is used here.
pub(crate) type Descriptor = i32;

/// Receives bytes. Returns `None` if there are none now.
#[cfg(unix)]
pub(crate) fn receive(descriptor: Descriptor, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    use nix::sys::socket::{MsgFlags, recv};
    would_block(recv(descriptor, buffer, MsgFlags::MSG_DONTWAIT))
}

/// Sends bytes. Returns how many the socket has accepted.
#[cfg(unix)]
pub(crate) fn send(descriptor: Descriptor, slices: &[IoSlice<'_>]) -> io::Result<usize> {
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
#[cfg(not(unix))]
pub(crate) fn receive(_: Descriptor, _: &mut [u8]) -> io::Result<Option<usize>> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Other systems use the loop's transports.
#[cfg(not(unix))]
pub(crate) fn send(_: Descriptor, _: &[IoSlice<'_>]) -> io::Result<usize> {
    Err(io::ErrorKind::Unsupported.into())
}
