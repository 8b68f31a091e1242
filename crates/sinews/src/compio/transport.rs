//! What a connection runs over, in the shape of completions: memory goes down by value and comes home by value.
#![allow(private_interfaces, unnameable_types, reason = "the other side of a sealed trait")]

use std::io;
use std::task::{Context, Poll};

use sinews_session::Chain;

use super::lent::Memory;
use crate::link::Room;

/// What a [`WebSocket`](super::WebSocket) of compio runs over:
///
/// * [`TcpStream`](compio::net::TcpStream) and [`UnixStream`](compio::net::UnixStream), whose operations are
///   submitted by name, and which wait for bytes without memory of their own, in the runtime's managed buffers;
/// * `TlsStream` over any of these (feature `rustls`);
/// * a pair `(reader, writer)` of anything that is [`AsyncRead`](compio::io::AsyncRead) and
///   [`AsyncWrite`](compio::io::AsyncWrite): what compio's
///   [`Splittable`](compio::io::util::Splittable) gives. The two must not wait for each other: a stream behind one
///   lock, such as `compio::io::util::Split`, cannot send while it waits for bytes.
///
/// The set is closed, so that what a driver needs of it may grow.
pub trait Transport: sealed::Duplex {}

impl<T: sealed::Duplex> Transport for T {}

/// A [`Transport`] over one socket, which [`WebSocket::get_ref`](super::WebSocket::get_ref) gives: all but pairs of a
/// reader and a writer, which are with the kernel while they are in use.
pub trait SocketTransport: Transport {
    /// The socket: [`TcpStream`](compio::net::TcpStream) or [`UnixStream`](compio::net::UnixStream).
    type Socket;

    #[doc(hidden)]
    fn socket(sink: &Self::Sink) -> &Self::Socket;

    #[doc(hidden)]
    fn socket_mut(sink: &mut Self::Sink) -> &mut Self::Socket;

    #[doc(hidden)]
    #[cfg(feature = "rustls")]
    fn tls_info(sink: &Self::Sink) -> Option<crate::TlsInfo> {
        let _ = sink;
        None
    }
}

pub(crate) mod sealed {
    /// Something that receives and sends at the same time.
    pub trait Duplex: 'static {
        type Source: super::Source;
        type Sink: super::Sink;

        fn open(self) -> (Self::Source, Self::Sink);
    }
}

/// The receiving side, with at most one operation in flight.
pub trait Source: 'static {
    /// Whether a large message is received into its own memory.
    fn is_direct(&self) -> bool;

    /// Whether much is there, so that the next bytes should go into a block of the caller.
    fn wants_block(&self) -> bool;

    /// Whether an operation is in flight, or what one has brought was not taken.
    fn is_busy(&self) -> bool;

    /// Begins to receive; without a room the source waits in memory of its own, which is small or shared.
    fn start(&mut self, room: Option<Room>);

    /// Begins to receive into memory of the application's, from an offset on and so many bytes at most. A source that
    /// cannot gives it back.
    fn start_lent(&mut self, memory: Box<dyn Memory>, at: usize, most: usize) -> Option<Box<dyn Memory>> {
        let _ = (at, most);
        Some(memory)
    }

    /// The memory of the application's is to come home soon, with or without bytes.
    fn cancel_lent(&mut self) {}

    /// How the operation ended. A source that is not busy answers [`Came::Nothing`].
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Came>;

    /// Appends what the source holds, so many bytes at most, and answers how many.
    fn drain(&mut self, into: &mut Vec<u8>, most: usize) -> usize;
}

/// How a receive ended.
#[allow(clippy::exhaustive_enums, reason = "the driver handles each")]
pub enum Came {
    /// The source holds bytes, for [`Source::drain`].
    Held,
    /// The room comes home, with so many bytes appended; none: the peer has ended its side.
    Filled(Room, io::Result<usize>),
    /// Memory of the application's comes home, with so many bytes from an offset on; none: the peer has ended its side.
    Lent(Box<dyn Memory>, usize, io::Result<usize>),
    /// Nothing; another receive may be started.
    Nothing,
    /// The peer has ended its side, or the transport failed.
    Over(Option<io::Error>),
}

/// The sending side, with at most one operation in flight.
pub trait Sink: 'static {
    /// Whether an operation is in flight.
    fn is_busy(&self) -> bool;

    /// Begins to send; without a chain, only what [`wants_send`](Self::wants_send) is about. The sink must not be
    /// busy.
    fn start(&mut self, chain: Option<Box<Chain>>);

    /// Begins to end the sending side. The sink must not be busy.
    fn start_shut(&mut self);

    /// How the operation ended. A sink that is not busy is pending forever.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Left>;

    /// Whether the transport itself has something to say that no message carries.
    fn wants_send(&self) -> bool {
        false
    }
}

/// How a send ended.
#[derive(Debug)]
#[allow(clippy::exhaustive_enums, reason = "the driver handles each")]
pub enum Left {
    /// The chain comes home, if there was one; so many of its bytes have left.
    Sent(Option<Box<Chain>>, io::Result<usize>),
    /// The sending side is ended.
    Shut(io::Result<()>),
}
