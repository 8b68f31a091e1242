//! TLS between an event loop and a protocol, by rustls.
//!
//! ```text
//!   loop ─▶ chunk ─▶ receive: records ─▶ plaintext of the whole chunk ─▶ HTTP or WebSocket
//!   loop ◀─ chain ◀─ start_send: records, 256 KiB at a time ◀──────────── chain
//! ```
//!
//! Records are encrypted into chains from the thread's pool, and plaintext is in one buffer per thread. An idle
//! connection holds only its cipher state: buffers for partial records and unsent output exist only while needed.

mod certificates;

use std::num::NonZeroU16;

use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, InsufficientSizeError, UnbufferedStatus,
    WriteTraffic,
};
use sinews_session::{Chain, Outbound, Resources};

pub use self::certificates::{Certificates, InvalidTls, TlsConfig};

/// One connection's TLS state.
pub(crate) struct TlsConn {
    connection: UnbufferedServerConnection,
    http3_port: Option<NonZeroU16>,
    /// Outbound records.
    wire: Outbound,
    /// Partial record, or partial handshake message.
    partial: Vec<u8>,
    /// Unencrypted part of the protocol's chain in flight.
    plain: Option<Box<Chain>>,
    state: State,
    /// The protocol has queued its last output: close_notify follows.
    finishing: bool,
    /// The input's end has been reported.
    end_reported: bool,
    failed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Handshake,
    Open,
    /// The peer has closed its side.
    PeerClosed,
    /// close_notify is queued, or the connection has failed: no more output follows.
    Closed,
}

impl TlsConn {
    /// Returns `None` if the configuration is unusable.
    pub(crate) fn new(config: &TlsConfig, http2: bool, http3_port: Option<NonZeroU16>) -> Option<Self> {
        let connection = UnbufferedServerConnection::new(config.current(http2))
            .inspect_err(|error| tracing::error!(%error, "invalid TLS configuration"))
            .ok()?;
        Some(Self {
            connection,
            http3_port,
            wire: Outbound::default(),
            partial: Vec::new(),
            plain: None,
            state: State::Handshake,
            finishing: false,
            end_reported: false,
            failed: false,
        })
    }

    /// Returns the HTTP/3 port beside the listener.
    pub(crate) const fn http3_port(&self) -> Option<NonZeroU16> {
        self.http3_port
    }

    /// Returns whether the handshake is complete.
    pub(crate) fn is_open(&self) -> bool {
        self.state != State::Handshake
    }

    /// Returns whether the client chose HTTP/2.
    pub(crate) fn is_http2(&self) -> bool {
        self.connection.alpn_protocol() == Some(b"h2")
    }

    /// Handles received records: appends their plaintext to `plain`.
    ///
    /// # Errors
    /// The peer's protocol errors. An alert reports them to it.
    pub(crate) fn receive(
        &mut self,
        chunk: &mut [u8],
        plain: &mut Vec<u8>,
        resources: &mut Resources,
    ) -> Result<(), rustls::Error> {
        if self.partial.is_empty() {
            let used = self.process(chunk, plain, resources)?;
            self.partial.extend_from_slice(&chunk[used..]);
        } else {
            let mut partial = std::mem::take(&mut self.partial);
            partial.extend_from_slice(chunk);
            let used = self.process(&mut partial, plain, resources)?;
            partial.drain(..used);
            partial.shrink_to_fit();
            self.partial = partial;
        }
        if self.partial.len() > PARTIAL_MAX {
            return Err(rustls::Error::General("a message of the handshake is too long".to_owned()));
        }
        Ok(())
    }

    /// Handles complete records. Returns the consumed byte count.
    fn process(
        &mut self,
        input: &mut [u8],
        plain: &mut Vec<u8>,
        resources: &mut Resources,
    ) -> Result<usize, rustls::Error> {
        let mut at = 0;
        loop {
            let UnbufferedStatus { mut discard, state, .. } =
                self.connection.process_tls_records(&mut input[at..]);
            let continues = match state.inspect_err(|_| self.state = State::Closed)? {
                ConnectionState::ReadTraffic(mut traffic) => {
                    while let Some(record) = traffic.next_record() {
                        let record = record?;
                        plain.extend_from_slice(record.payload);
                        discard += record.discard;
                    }
                    true
                }
                ConnectionState::EncodeTlsData(data) => {
                    encode(data, &mut self.wire, resources);
                    true
                }
                ConnectionState::TransmitTlsData(data) => {
                    // Queued records leave in order.
                    data.done();
                    true
                }
                ConnectionState::PeerClosed => {
                    self.state = self.state.max(State::PeerClosed);
                    true
                }
                ConnectionState::WriteTraffic(_) => {
                    self.state = self.state.max(State::Open);
                    false
                }
                _ => false,
            };
            at += discard;
            if !continues {
                return Ok(at);
            }
        }
    }

    /// Queues an alert with the failure's reason.
    pub(crate) fn fail(&mut self, resources: &mut Resources) {
        (self.state, self.failed) = (State::Closed, true);
        while let UnbufferedStatus { state: Ok(state), .. } = self.connection.process_tls_records(&mut []) {
            match state {
                ConnectionState::EncodeTlsData(data) => encode(data, &mut self.wire, resources),
                ConnectionState::TransmitTlsData(data) => data.done(),
                _ => return,
            }
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Returns whether the peer has closed its side within TLS; true once.
    pub(crate) fn take_end(&mut self) -> bool {
        self.state >= State::PeerClosed && !std::mem::replace(&mut self.end_reported, true)
    }

    /// Handles the transport's end. Returns whether the end was not reported before.
    pub(crate) fn take_transport_end(&mut self) -> bool {
        !std::mem::replace(&mut self.end_reported, true)
    }

    /// Returns whether TLS's own records are queued.
    pub(crate) fn wants_send(&self) -> bool {
        self.wire.wants_send()
    }

    /// Returns whether all records have left, and no more follow.
    pub(crate) fn has_left(&self) -> bool {
        !matches!(self.state, State::Open | State::PeerClosed) && self.wire.is_empty()
    }

    /// Marks the protocol's queued output as its last.
    pub(crate) fn finish(&mut self) {
        self.finishing = true;
    }

    /// Returns the bytes in buffers with incomplete input.
    pub(crate) fn incomplete(&self) -> usize {
        self.partial.capacity()
    }

    /// Returns the next output. Calls `next` for the protocol's chain when the previous chain has completed.
    pub(crate) fn start_send(
        &mut self,
        next: impl FnOnce() -> Option<Box<Chain>>,
        resources: &mut Resources,
        scratch: &mut Vec<u8>,
    ) -> Option<Box<Chain>> {
        if matches!(self.state, State::Open | State::PeerClosed) {
            if self.plain.is_none() {
                self.plain = next();
            }
            self.encrypt(resources, scratch);
        }
        self.wire.start()
    }

    /// Encrypts the next output, and close_notify after the last.
    fn encrypt(&mut self, resources: &mut Resources, scratch: &mut Vec<u8>) {
        let has_plain = self.plain.as_ref().is_some_and(|plain| !plain.is_empty());
        if !has_plain && !self.finishing {
            return;
        }
        loop {
            match self.connection.process_tls_records(&mut []).state {
                Ok(ConnectionState::EncodeTlsData(data)) => encode(data, &mut self.wire, resources),
                Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
                Ok(ConnectionState::PeerClosed) => self.state = State::PeerClosed,
                Ok(ConnectionState::WriteTraffic(mut traffic)) => {
                    let wire = self.wire.pending_chain(resources);
                    let mut sealed = wire.write(|out| match &mut self.plain {
                        Some(plain) => seal(&mut traffic, plain, out, scratch),
                        None => Ok(()),
                    });
                    let is_last = self.finishing && self.plain.as_ref().is_none_or(|plain| plain.is_empty());
                    if is_last && sealed.is_ok() {
                        sealed = wire.write(|out| {
                            append(out, RECORD_OVERHEAD, |capacity| traffic.queue_close_notify(capacity))
                        });
                    }
                    if is_last || sealed.is_err() {
                        self.state = State::Closed;
                    }
                    return;
                }
                _ => return self.state = State::Closed,
            }
        }
    }

    /// Counts sent bytes in the records in flight.
    pub(crate) fn progressed(&mut self, bytes: usize) {
        self.wire.progressed(bytes);
    }

    /// Handles completed records. Returns the protocol's chain if the whole chain has left.
    pub(crate) fn finish_send(
        &mut self,
        records: Box<Chain>,
        resources: &mut Resources,
    ) -> Option<Box<Chain>> {
        self.wire.finish(records, resources);
        self.plain.take_if(|plain| plain.is_empty())
    }

    /// Returns whether part of the protocol's chain is not encrypted yet.
    pub(crate) fn has_more(&self) -> bool {
        self.plain.as_ref().is_some_and(|plain| !plain.is_empty())
    }
}

/// Appends records of up to 256 KiB of plaintext.
fn seal(
    traffic: &mut WriteTraffic<'_, ServerConnectionData>,
    plain: &mut Chain,
    out: &mut Vec<u8>,
    scratch: &mut Vec<u8>,
) -> Result<(), EncryptError> {
    let mut left = SEALED_AT_ONCE;
    while left > 0 && !plain.is_empty() {
        let record = next_record(plain, scratch);
        append(out, record.len() + RECORD_OVERHEAD, |capacity| traffic.encrypt(record, capacity))?;
        let sealed = record.len();
        plain.advance(sealed);
        left = left.saturating_sub(sealed);
    }
    Ok(())
}

/// Returns the plaintext of one record: a slice of a large piece, or several pieces gathered.
fn next_record<'a>(plain: &'a Chain, scratch: &'a mut Vec<u8>) -> &'a [u8] {
    if let Some(piece) = plain.pieces().next()
        && piece.len() >= RECORD
    {
        return &piece[..RECORD];
    }
    scratch.clear();
    for piece in plain.pieces() {
        let capacity = RECORD - scratch.len();
        scratch.extend_from_slice(&piece[..piece.len().min(capacity)]);
        if scratch.len() == RECORD {
            break;
        }
    }
    scratch
}

fn encode(mut data: EncodeTlsData<'_, ServerConnectionData>, wire: &mut Outbound, resources: &mut Resources) {
    // The alert is encoded once, so this cannot fail with enough capacity.
    let _ = wire.pending_chain(resources).write(|out| append(out, 0, |capacity| data.encode(capacity)));
}

/// Appends the output of `write`, with as much capacity as it reports to need.
fn append<E: NeedsCapacity>(
    out: &mut Vec<u8>,
    capacity: usize,
    mut write: impl FnMut(&mut [u8]) -> Result<usize, E>,
) -> Result<(), E> {
    let start = out.len();
    let mut capacity = capacity;
    loop {
        out.resize(start + capacity, 0);
        match write(&mut out[start..]) {
            Ok(written) => {
                out.truncate(start + written);
                return Ok(());
            }
            Err(error) => match error.capacity() {
                Some(needed) if needed > capacity => capacity = needed,
                _ => {
                    out.truncate(start);
                    return Err(error);
                }
            },
        }
    }
}

/// Error that may report the needed capacity.
trait NeedsCapacity {
    fn capacity(&self) -> Option<usize>;
}

impl NeedsCapacity for EncodeError {
    fn capacity(&self) -> Option<usize> {
        match self {
            Self::InsufficientSize(InsufficientSizeError { required_size }) => Some(*required_size),
            Self::AlreadyEncoded => None,
        }
    }
}

impl NeedsCapacity for EncryptError {
    fn capacity(&self) -> Option<usize> {
        match self {
            Self::InsufficientSize(InsufficientSizeError { required_size }) => Some(*required_size),
            Self::EncryptExhausted => None,
        }
    }
}

/// One record's plaintext (RFC 8446 section 5.1).
const RECORD: usize = 16 << 10;

/// A record's overhead: its header, a nonce or the inner type, the tag. If it is more, rustls reports that.
const RECORD_OVERHEAD: usize = 32;

/// Plaintext encrypted for one send: enough to fill a socket, and the most extra memory of a large message.
const SEALED_AT_ONCE: usize = 256 << 10;

/// Maximum size of a buffered partial record or handshake message: rustls accepts handshakes of 64 KiB.
const PARTIAL_MAX: usize = 80 << 10;
