//! A socket on its way into the ring's file table.

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use socket2::{SockAddr, Socket};

use crate::connect::ConnectRequest;

/// A socket to be connected.
pub(crate) struct OutgoingSocket {
    /// The descriptor to install; after completion its slot in the table, written by the kernel.
    descriptor: RawFd,
    /// Closed when it is in the table.
    socket: Option<Socket>,
    address: SockAddr,
}

impl OutgoingSocket {
    pub(super) fn new(connect: &ConnectRequest) -> io::Result<Self> {
        let (socket, address) = connect.socket()?;
        Ok(Self { descriptor: socket.as_raw_fd(), socket: Some(socket), address })
    }

    /// The address from which the kernel reads the descriptor and to which it writes the slot.
    pub(super) fn descriptor(&mut self) -> *mut RawFd {
        &raw mut self.descriptor
    }

    pub(super) fn address(&self) -> &SockAddr {
        &self.address
    }

    /// Closes the descriptor, which the kernel has copied into the table.
    pub(super) fn close_descriptor(&mut self) {
        self.socket = None;
    }

    /// The slot in the table, once the kernel has written it.
    pub(super) fn slot(&self) -> u32 {
        self.descriptor.cast_unsigned()
    }
}
