//! Listeners at a path of the file system.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;

use socket2::{Domain, SockAddr, Socket, Type};

use super::{BACKLOG, ListenOptions, Listener};

impl Listener {
    /// Listens at a path, which becomes a socket with these permission bits (`0o660`: its user and group may connect).
    /// They are in force before any client can connect. [`try_clone`](Self::try_clone) creates listeners for further
    /// threads, since a path belongs to one socket. A new connection wakes them all, and one listener accepts it.
    ///
    /// A stale socket of a server that has exited is replaced. (Two servers that start at the same moment
    /// can both find it stale.) The file stays when the listener is closed; its creator must remove it.
    ///
    /// # Errors
    ///
    /// [`AddrInUse`](io::ErrorKind::AddrInUse) if another process listens at the path, or the file is not a
    /// socket; errors of the system.
    pub fn bind_unix(path: &Path, mode: u32, options: &ListenOptions) -> io::Result<Self> {
        let socket = match bound(path, options) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_stale(path) => {
                fs::remove_file(path)?;
                bound(path, options)?
            }
            result => result?,
        };
        fs::set_permissions(path, Permissions::from_mode(mode))?;
        socket.listen(BACKLOG)?;
        Ok(Self { socket: socket.into(), unix: true, inherited: false })
    }

    /// Creates another listener on the same socket.
    ///
    /// # Errors
    ///
    /// Errors of the system.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { socket: self.socket.try_clone()?, ..*self })
    }
}

/// Creates a socket bound to `path` that does not listen yet, so that no client connects before its
/// permissions are set.
fn bound(path: &Path, options: &ListenOptions) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    if let Some(bytes) = options.send_buffer {
        socket.set_send_buffer_size(bytes)?;
    }
    if let Some(bytes) = options.receive_buffer {
        socket.set_recv_buffer_size(bytes)?;
    }
    socket.bind(&SockAddr::unix(path)?)?;
    Ok(socket)
}

/// Whether the file is a socket without a listener.
fn is_stale(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    is_socket
        && UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}
