//! The transport of a connection, based on completions: operations take memory by value and return it by value.
#![allow(private_interfaces, unnameable_types, reason = "the other side of a sealed trait")]

use std::io;
use std::task::{Context, Poll};

use sinews_session::Chain;

use super::app_memory::AppMemory;
use crate::link::ReceiveBuffer;

/// The transport of a compio [`WebSocket`](super::WebSocket):
///
/// * [`TcpStream`](compio::net::TcpStream) and [`UnixStream`](compio::net::UnixStream), whose operations are
///   submitted as concrete types, and which wait for bytes without memory of their own, in the runtime's managed
///   buffers;
/// * `TlsStream` over any of these (feature `rustls`);
/// * a pair `(reader, writer)` of any [`AsyncRead`](compio::io::AsyncRead) and
///   [`AsyncWrite`](compio::io::AsyncWrite), as returned by compio's [`Splittable`](compio::io::util::Splittable).
///   The two must not wait for each other: a stream behind one lock, such as `compio::io::util::Split`, cannot send
///   while it waits for bytes.
///
/// The set is closed, so that the requirements of a driver may grow.
pub trait Transport: sealed::Duplex {}

impl<T: sealed::Duplex> Transport for T {}

/// A [`Transport`] over one socket, which [`WebSocket::get_ref`](super::WebSocket::get_ref) returns: all transports
/// except pairs of a reader and a writer, which are inside their operations while these are in flight.
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
    /// A transport that receives and sends at the same time.
    pub trait Duplex: 'static {
        type Source: crate::compio::transport::Source;
        type Sink: crate::compio::transport::Sink;

        fn open(self) -> (Self::Source, Self::Sink);
    }
}

/// The receiving side, with at most one operation in flight.
pub trait Source: 'static {
    /// Whether a large message is received into its own memory.
    fn is_direct(&self) -> bool;

    /// Whether much data is available, so that the next bytes should go into a block of the caller.
    fn wants_block(&self) -> bool;

    /// Whether an operation is in flight, or its result was not taken.
    fn is_busy(&self) -> bool;

    /// Begins to receive; without `buffer` the source waits in memory of its own, which is small or shared.
    fn start(&mut self, buffer: Option<ReceiveBuffer>);

    /// Begins to receive into the application's memory, at an offset and at most `most` bytes. A source without
    /// support returns the memory.
    fn start_app_receive(
        &mut self,
        memory: Box<dyn AppMemory>,
        at: usize,
        most: usize,
    ) -> Option<Box<dyn AppMemory>> {
        let _ = (at, most);
        Some(memory)
    }

    /// Cancels a receive into the application's memory, which then completes soon, with or without bytes.
    fn cancel_app_receive(&mut self) {}

    /// The result of the operation. A source that is not busy returns [`ReceiveResult::Nothing`].
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ReceiveResult>;

    /// Appends bytes that the source holds, at most `most`, and returns their number.
    fn drain(&mut self, into: &mut Vec<u8>, most: usize) -> usize;
}

/// The result of a receive.
#[allow(clippy::exhaustive_enums, reason = "the driver handles each")]
pub enum ReceiveResult {
    /// The source holds bytes, for [`Source::drain`].
    Buffered,
    /// The room, with this many bytes appended; 0: the peer has ended its side.
    Filled(ReceiveBuffer, io::Result<usize>),
    /// The application's memory, with this many bytes at an offset; 0: the peer has ended its side.
    AppMemory(Box<dyn AppMemory>, usize, io::Result<usize>),
    /// No result; another receive may be started.
    Nothing,
    /// The peer has ended its side, or the transport failed.
    Ended(Option<io::Error>),
}

/// The sending side, with at most one operation in flight.
pub trait Sink: 'static {
    /// Whether an operation is in flight.
    fn is_busy(&self) -> bool;

    /// Begins to send; without a chain, only the transport's own bytes ([`wants_send`](Self::wants_send)). The sink
    /// must not be busy.
    fn start(&mut self, chain: Option<Box<Chain>>);

    /// Begins to end the sending side. The sink must not be busy.
    fn start_shut(&mut self);

    /// The result of the operation. A sink that is not busy is pending forever.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<SendResult>;

    /// Whether the transport has bytes of its own to send, such as TLS records.
    fn wants_send(&self) -> bool {
        false
    }
}

/// The result of an operation of the sending side.
#[derive(Debug)]
#[allow(clippy::exhaustive_enums, reason = "the driver handles each")]
pub enum SendResult {
    /// The chain, if there was one; this many of its bytes have left.
    Sent(Option<Box<Chain>>, io::Result<usize>),
    /// The sending side has ended.
    Shut(io::Result<()>),
}
