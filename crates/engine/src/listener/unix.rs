//! Listening at a path of the file system.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;

use socket2::{Domain, SockAddr, Socket, Type};

use super::{ListenOptions, Listener};

impl Listener {
    /// Listens at a path, which becomes a socket with these permission bits (`0o660`: its user and group may
    /// connect). They are in force before anybody can connect. [`try_clone`](Self::try_clone) makes listeners of it
    /// for further threads, since a path belongs to one socket; each of them is woken for a connection, and one gets
    /// it.
    ///
    /// A socket that a server left behind which is not there any more is replaced. (Two servers that start at the
    /// same moment can both find it so.) The file stays when the listener is closed: it is its maker's to remove.
    ///
    /// # Errors
    ///
    /// [`AddrInUse`](io::ErrorKind::AddrInUse) if somebody listens there, or the file is no socket; otherwise those
    /// of the system.
    pub fn bind_unix(path: &Path, mode: u32, options: &ListenOptions) -> io::Result<Self> {
        let socket = match bound(path, options) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_stale(path) => {
                fs::remove_file(path)?;
                bound(path, options)?
            }
            result => result?,
        };
        fs::set_permissions(path, Permissions::from_mode(mode))?;
        socket.listen(i32::try_from(options.backlog).unwrap_or(i32::MAX))?;
        Ok(Self { socket: socket.into(), unix: true, inherited: false })
    }

    /// Another listener on the same socket.
    ///
    /// # Errors
    ///
    /// Those of the system.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { socket: self.socket.try_clone()?, ..*self })
    }
}

/// A socket bound to `path` that does not listen yet, so that nobody connects before its permissions are set.
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

/// Whether the file is a socket at which nobody listens.
fn is_stale(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    is_socket
        && UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}
