//! TLS as a layer between the connection and its transport.
//!
//! rustls works on bytes and knows no transport; so no compio type needs a bridge, and rustls itself makes the only
//! copies. Both directions share the session, which is borrowed only between two operations: a receive in flight does
//! not delay a send.

#![allow(private_interfaces, unnameable_types, reason = "the other side of a sealed trait")]

use std::cell::{Ref, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::io::{self, BufRead as _, IoSlice, Write as _};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};
use sinews_session::Chain;

use super::transport::sealed::Duplex;
use super::transport::{ReceiveResult, SendResult, Sink, SocketTransport, Source, Transport};
use crate::TlsInfo;
use crate::link::ReceiveBuffer;
use crate::resources;

/// A transport with TLS by rustls on it, for a [`WebSocket`](super::WebSocket).
pub struct TlsStream<T: Transport> {
    source: TlsSource<T::Source>,
    sink: TlsSink<T::Sink>,
}

type SharedSession = Rc<RefCell<Connection>>;

impl<T: Transport> TlsStream<T> {
    /// Makes a TLS connection as a client; `name` is the name that the server's certificate must match. It has no
    /// timeout of its own: wrap it in a timeout.
    ///
    /// # Errors
    /// The error of the transport or of rustls; the latter as [`io::ErrorKind::InvalidData`] with a
    /// [`rustls::Error`].
    pub async fn connect(
        transport: T,
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> io::Result<Self> {
        let session = ClientConnection::new(config, name).map_err(invalid)?;
        Self::handshake(transport, session.into()).await
    }

    /// Makes a TLS connection as a server. It has no timeout of its own: wrap it in a timeout.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub async fn accept(transport: T, config: Arc<ServerConfig>) -> io::Result<Self> {
        let session = ServerConnection::new(config).map_err(invalid)?;
        Self::handshake(transport, session.into()).await
    }

    async fn handshake(transport: T, session: Connection) -> io::Result<Self> {
        let (source, sink) = transport.open();
        let session = Rc::new(RefCell::new(session));
        let source =
            TlsSource { inner: source, session: session.clone(), cipher: Vec::new(), at: 0, waits: false };
        let sink = TlsSink { inner: sink, session, op: TlsOperation::Idle };
        let mut stream = Self { source, sink };
        poll_fn(|cx| stream.poll_handshake(cx)).await?;
        Ok(stream)
    }

    fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut blocked = false;
            while self.sink.is_busy() || self.sink.wants_send() {
                if !self.sink.is_busy() {
                    self.sink.start(None);
                }
                match self.sink.poll(cx) {
                    Poll::Ready(SendResult::Sent(_, result)) => result.map(drop)?,
                    Poll::Ready(SendResult::Shut(result)) => result?,
                    Poll::Pending => {
                        blocked = true;
                        break;
                    }
                }
            }
            if !self.sink.session.borrow().is_handshaking() {
                return if blocked { Poll::Pending } else { Poll::Ready(Ok(())) };
            }
            match ready!(self.source.poll_cipher(cx)) {
                Ok(true) => {}
                Ok(false) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                Err(error) => {
                    // An alert may tell the peer the reason; the call does not wait for it.
                    if !self.sink.is_busy() {
                        self.sink.start(None);
                        let _ = self.sink.poll(cx);
                    }
                    return Poll::Ready(Err(error));
                }
            }
        }
    }

    /// The session: the protocol that ALPN selected, the peer's certificates, the cipher suite.
    #[must_use]
    pub fn connection(&self) -> Ref<'_, Connection> {
        self.source.session.borrow()
    }
}

impl<T: Transport> fmt::Debug for TlsStream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsStream").finish_non_exhaustive()
    }
}

impl<T: Transport> Duplex for TlsStream<T> {
    type Source = TlsSource<T::Source>;
    type Sink = TlsSink<T::Sink>;

    fn open(self) -> (Self::Source, Self::Sink) {
        (self.source, self.sink)
    }
}

impl<T: SocketTransport> SocketTransport for TlsStream<T> {
    type Socket = T::Socket;

    fn socket(sink: &Self::Sink) -> &T::Socket {
        T::socket(&sink.inner)
    }

    fn socket_mut(sink: &mut Self::Sink) -> &mut T::Socket {
        T::socket_mut(&mut sink.inner)
    }

    fn tls_info(sink: &Self::Sink) -> Option<TlsInfo> {
        Some(TlsInfo::from(&**sink.session.borrow()))
    }
}

fn invalid(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// The receiving side.
pub struct TlsSource<I> {
    inner: I,
    session: SharedSession,
    /// Received bytes that are not decrypted, from an offset on; a block of the thread, or empty.
    cipher: Vec<u8>,
    at: usize,
    /// The connection waits for bytes.
    waits: bool,
}

/// Slices that are encrypted at once, into as few records as possible.
const SLICES: usize = 64;

/// Limit of plaintext that waits in the session: rustls accepts no more beyond this.
const PLAIN_MAX: usize = 16 << 10;

impl<I: Source> TlsSource<I> {
    /// Passes received bytes to the session until it has plaintext. Returns whether it has.
    fn decrypt(&mut self) -> io::Result<bool> {
        let mut session = self.session.borrow_mut();
        let mut plain = session.process_new_packets().map_err(invalid)?.plaintext_bytes_to_read();
        while self.at < self.cipher.len() && plain <= PLAIN_MAX {
            self.at = match session.read_tls(&mut &self.cipher[self.at..])? {
                // Bytes behind the peer's close_notify are ignored.
                0 => self.cipher.len(),
                taken => self.at + taken,
            };
            plain = session.process_new_packets().map_err(invalid)?.plaintext_bytes_to_read();
        }
        if self.at == self.cipher.len() && !self.cipher.is_empty() {
            resources::give_block(std::mem::take(&mut self.cipher));
            self.at = 0;
        }
        Ok(plain > 0)
    }

    /// Receives once and decrypts; `false`: the peer has ended its side.
    fn poll_cipher(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        loop {
            if !self.inner.is_busy() {
                let block = self.inner.wants_block().then(|| ReceiveBuffer::Block(resources::take_block()));
                self.inner.start(block);
            }
            match ready!(self.inner.poll(cx)) {
                ReceiveResult::Nothing | ReceiveResult::AppMemory(..) => continue,
                ReceiveResult::Buffered => {
                    let mut block = resources::take_block();
                    self.inner.drain(&mut block, resources::BLOCK);
                    self.cipher = block;
                }
                ReceiveResult::Filled(
                    ReceiveBuffer::Block(block) | ReceiveBuffer::Message(block, _),
                    Ok(count),
                ) if count > 0 => {
                    self.cipher = block;
                }
                ReceiveResult::Filled(buffer, result) => {
                    if let ReceiveBuffer::Block(block) = buffer {
                        resources::give_block(block);
                    }
                    match result {
                        Ok(_) => return Poll::Ready(Ok(false)),
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                        Err(error) => return Poll::Ready(Err(error)),
                    }
                }
                ReceiveResult::Ended(None) => return Poll::Ready(Ok(false)),
                ReceiveResult::Ended(Some(error)) => return Poll::Ready(Err(error)),
            }
            self.decrypt()?;
            return Poll::Ready(Ok(true));
        }
    }

    /// Whether the peer has sent close_notify; an end without it may be a truncation attack.
    fn has_close_notify(&self) -> bool {
        let mut session = self.session.borrow_mut();
        let mut reader = session.reader();
        reader.fill_buf().is_ok_and(<[u8]>::is_empty)
    }
}

impl<I: Source> Source for TlsSource<I> {
    fn is_direct(&self) -> bool {
        false
    }

    fn wants_block(&self) -> bool {
        false
    }

    fn is_busy(&self) -> bool {
        self.waits
    }

    fn start(&mut self, _: Option<ReceiveBuffer>) {
        self.waits = true;
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ReceiveResult> {
        if !self.waits {
            return Poll::Ready(ReceiveResult::Nothing);
        }
        loop {
            let result = match self.decrypt() {
                Ok(true) => return Poll::Ready(ReceiveResult::Buffered),
                Ok(false) if self.has_close_notify() => Ok(false),
                Ok(false) => ready!(self.poll_cipher(cx)),
                Err(error) => Err(error),
            };
            let error = match result {
                Ok(true) => continue,
                Ok(false) if self.has_close_notify() => None,
                Ok(false) => Some(io::ErrorKind::UnexpectedEof.into()),
                Err(error) => Some(error),
            };
            self.waits = false;
            return Poll::Ready(ReceiveResult::Ended(error));
        }
    }

    fn drain(&mut self, into: &mut Vec<u8>, most: usize) -> usize {
        let mut session = self.session.borrow_mut();
        let mut reader = session.reader();
        let mut drained = 0;
        while let Ok(chunk) = reader.fill_buf()
            && !chunk.is_empty()
            && drained < most
        {
            let count = chunk.len().min(most - drained);
            into.extend_from_slice(&chunk[..count]);
            reader.consume(count);
            drained += count;
        }
        self.waits = false;
        drained
    }
}

/// The sending side.
pub struct TlsSink<I> {
    inner: I,
    session: SharedSession,
    op: TlsOperation,
}

enum TlsOperation {
    Idle,
    /// This many bytes of a chain are encrypted and in flight.
    Sending(Option<Box<Chain>>, usize),
    /// Sending close_notify, and then the end.
    Closing,
}

impl<I: Sink> TlsSink<I> {
    /// Passes the session's output to the transport; `false`: there is none.
    fn start_cipher(&mut self) -> io::Result<bool> {
        let mut session = self.session.borrow_mut();
        if !session.wants_write() {
            return Ok(false);
        }
        let mut cipher = Box::<Chain>::default();
        cipher.write(|arena| {
            while session.wants_write() {
                session.write_tls(arena)?;
            }
            Ok::<(), io::Error>(())
        })?;
        self.inner.start(Some(cipher));
        Ok(true)
    }

    /// Encrypts the beginning of a chain: as much as the session accepts at once, 64 KiB, so that progress is
    /// visible.
    fn encrypt(&self, chain: &Chain) -> io::Result<usize> {
        let mut session = self.session.borrow_mut();
        let slices: Vec<IoSlice<'_>> = chain.pieces().take(SLICES).map(IoSlice::new).collect();
        session.writer().write_vectored(&slices)
    }

    fn begin(&mut self, chain: Option<&Chain>) -> io::Result<usize> {
        let taken = chain.map_or(Ok(0), |chain| self.encrypt(chain))?;
        self.start_cipher()?;
        Ok(taken)
    }

    /// Completes the operation in flight of the transport.
    fn poll_inner(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.inner.is_busy() {
            if let SendResult::Sent(Some(mut cipher), result) = ready!(self.inner.poll(cx)) {
                match result {
                    Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    Ok(count) => cipher.advance(count),
                    Err(error) => return Poll::Ready(Err(error)),
                }
                if !cipher.is_empty() {
                    self.inner.start(Some(cipher));
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<I: Sink> Sink for TlsSink<I> {
    fn is_busy(&self) -> bool {
        !matches!(self.op, TlsOperation::Idle)
    }

    fn start(&mut self, chain: Option<Box<Chain>>) {
        // It fails when a session has sent its maximum number of records: nothing leaves, which ends the connection.
        let taken = self.begin(chain.as_deref()).unwrap_or(0);
        self.op = TlsOperation::Sending(chain, taken);
    }

    fn start_shut(&mut self) {
        self.session.borrow_mut().send_close_notify();
        self.op = TlsOperation::Closing;
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<SendResult> {
        if let TlsOperation::Closing = self.op {
            return self.poll_closing(cx);
        }
        let sent = match &self.op {
            TlsOperation::Sending(..) => ready!(self.poll_inner(cx)),
            TlsOperation::Idle | TlsOperation::Closing => return Poll::Pending,
        };
        match std::mem::replace(&mut self.op, TlsOperation::Idle) {
            TlsOperation::Sending(chain, taken) => Poll::Ready(SendResult::Sent(chain, sent.map(|()| taken))),
            TlsOperation::Idle | TlsOperation::Closing => Poll::Pending,
        }
    }

    fn wants_send(&self) -> bool {
        self.session.borrow().wants_write()
    }
}

impl<I: Sink> TlsSink<I> {
    fn poll_closing(&mut self, cx: &mut Context<'_>) -> Poll<SendResult> {
        loop {
            if self.inner.is_busy() {
                match ready!(self.inner.poll(cx)) {
                    SendResult::Sent(Some(mut cipher), Ok(count)) if count > 0 => {
                        cipher.advance(count);
                        if !cipher.is_empty() {
                            self.inner.start(Some(cipher));
                        }
                    }
                    SendResult::Sent(_, Err(error)) | SendResult::Shut(Err(error)) => {
                        return self.closed(Err(error));
                    }
                    SendResult::Sent(..) => return self.closed(Err(io::ErrorKind::WriteZero.into())),
                    SendResult::Shut(Ok(())) => return self.closed(Ok(())),
                }
            } else {
                match self.start_cipher() {
                    Ok(true) => {}
                    Ok(false) => self.inner.start_shut(),
                    Err(error) => return self.closed(Err(error)),
                }
            }
        }
    }

    fn closed(&mut self, result: io::Result<()>) -> Poll<SendResult> {
        self.op = TlsOperation::Idle;
        Poll::Ready(SendResult::Shut(result))
    }
}
