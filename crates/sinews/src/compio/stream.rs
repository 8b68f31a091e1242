//! The transport of a client's connection.

#![allow(private_interfaces, unnameable_types, reason = "the other side of a sealed trait")]

use std::task::{Context, Poll};

use compio::net::TcpStream;
use sinews_session::Chain;

#[cfg(feature = "rustls")]
use super::tls::{TlsSink, TlsSource, TlsStream};
use super::transport::sealed::Duplex;
use super::transport::{ReceiveResult, SendResult, Sink, SocketTransport, Source};
use crate::link::ReceiveBuffer;

/// The transport of a client: TCP, or TLS over TCP.
#[derive(Debug)]
#[non_exhaustive]
pub enum Stream {
    /// `ws`.
    Plain(TcpStream),
    /// `wss` by rustls.
    #[cfg(feature = "rustls")]
    Tls(Box<TlsStream<TcpStream>>),
}

type TcpSource = <TcpStream as Duplex>::Source;
type TcpSink = <TcpStream as Duplex>::Sink;

/// The receiving side.
pub enum StreamSource {
    Plain(TcpSource),
    #[cfg(feature = "rustls")]
    Tls(TlsSource<TcpSource>),
}

/// The sending side.
pub enum StreamSink {
    Plain(TcpSink),
    #[cfg(feature = "rustls")]
    Tls(TlsSink<TcpSink>),
}

impl Duplex for Stream {
    type Source = StreamSource;
    type Sink = StreamSink;

    fn open(self) -> (StreamSource, StreamSink) {
        match self {
            Self::Plain(tcp) => {
                let (source, sink) = tcp.open();
                (StreamSource::Plain(source), StreamSink::Plain(sink))
            }
            #[cfg(feature = "rustls")]
            Self::Tls(tls) => {
                let (source, sink) = tls.open();
                (StreamSource::Tls(source), StreamSink::Tls(sink))
            }
        }
    }
}

impl SocketTransport for Stream {
    type Socket = TcpStream;

    fn socket(sink: &StreamSink) -> &TcpStream {
        match sink {
            StreamSink::Plain(sink) => TcpStream::socket(sink),
            #[cfg(feature = "rustls")]
            StreamSink::Tls(sink) => TlsStream::<TcpStream>::socket(sink),
        }
    }

    fn socket_mut(sink: &mut StreamSink) -> &mut TcpStream {
        match sink {
            StreamSink::Plain(sink) => TcpStream::socket_mut(sink),
            #[cfg(feature = "rustls")]
            StreamSink::Tls(sink) => TlsStream::<TcpStream>::socket_mut(sink),
        }
    }

    #[cfg(feature = "rustls")]
    fn tls_info(sink: &StreamSink) -> Option<crate::TlsInfo> {
        match sink {
            StreamSink::Plain(_) => None,
            StreamSink::Tls(sink) => TlsStream::<TcpStream>::tls_info(sink),
        }
    }
}

/// Forwards a call to the variant.
macro_rules! forward {
    ($side:expr, $inner:ident => $call:expr) => {
        match $side {
            Self::Plain($inner) => $call,
            #[cfg(feature = "rustls")]
            Self::Tls($inner) => $call,
        }
    };
}

impl Source for StreamSource {
    fn is_direct(&self) -> bool {
        forward!(self, inner => inner.is_direct())
    }

    fn wants_block(&self) -> bool {
        forward!(self, inner => inner.wants_block())
    }

    fn is_busy(&self) -> bool {
        forward!(self, inner => inner.is_busy())
    }

    fn start(&mut self, buffer: Option<ReceiveBuffer>) {
        forward!(self, inner => inner.start(buffer));
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ReceiveResult> {
        forward!(self, inner => inner.poll(cx))
    }

    fn drain(&mut self, into: &mut Vec<u8>, most: usize) -> usize {
        forward!(self, inner => inner.drain(into, most))
    }
}

impl Sink for StreamSink {
    fn is_busy(&self) -> bool {
        forward!(self, inner => inner.is_busy())
    }

    fn start(&mut self, chain: Option<Box<Chain>>) {
        forward!(self, inner => inner.start(chain));
    }

    fn start_shut(&mut self) {
        forward!(self, inner => inner.start_shut());
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<SendResult> {
        forward!(self, inner => inner.poll(cx))
    }

    fn wants_send(&self) -> bool {
        forward!(self, inner => inner.wants_send())
    }
}
