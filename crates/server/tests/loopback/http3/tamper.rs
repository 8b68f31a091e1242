//! A client of quinn-proto that violates QUIC: its packets and its handshake are changed before they are protected.

use std::any::Any;
use std::mem;
use std::sync::{Arc, Mutex};

use bytes::BytesMut;
use quinn_proto::crypto::{
    ClientConfig, CryptoError, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, Session,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectError, ConnectionId, Side, TransportError};

/// Packets of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Handshake,
    OneRtt,
}

/// The change of a packet.
#[derive(Clone, Debug)]
pub(super) enum PacketChange {
    /// Frames instead of those of a packet that is long enough. PADDING fills the rest.
    Frames(Vec<u8>),
    ReservedBits,
}

/// The change of the TLS extension with the transport parameters, each an identifier and a value.
pub(super) type ParameterChange = fn(&mut Vec<(u64, Vec<u8>)>);

/// Changes of a client, each once.
#[derive(Default)]
pub(super) struct Changes {
    pub(super) packet: Option<(Level, PacketChange)>,
    pub(super) parameters: Option<ParameterChange>,
    /// The type of the extension with the parameters; 0 removes it.
    pub(super) extension: Option<u16>,
    /// Bytes before the client's last message of the handshake.
    pub(super) before_finished: Vec<u8>,
}

pub(super) type SharedChanges = Arc<Mutex<Changes>>;

/// Starts sessions that are changed.
pub(super) struct TamperConfig {
    pub(super) inner: Arc<dyn ClientConfig>,
    pub(super) changes: SharedChanges,
}

impl ClientConfig for TamperConfig {
    fn start_session(
        self: Arc<Self>,
        version: u32,
        server_name: &str,
        params: &TransportParameters,
    ) -> Result<Box<dyn Session>, ConnectError> {
        let inner = Arc::clone(&self.inner).start_session(version, server_name, params)?;
        let session = TamperSession { inner, changes: Arc::clone(&self.changes), flights: 0, levels: 0 };
        Ok(Box::new(session))
    }
}

struct TamperSession {
    inner: Box<dyn Session>,
    changes: SharedChanges,
    /// Flights of the handshake that were written.
    flights: usize,
    /// Keys that were derived.
    levels: usize,
}

impl TamperSession {
    fn key(&self, inner: Box<dyn PacketKey>, level: Level) -> Box<dyn PacketKey> {
        Box::new(TamperKey { inner, level, changes: Arc::clone(&self.changes) })
    }
}

impl Session for TamperSession {
    fn initial_keys(&self, dst_cid: &ConnectionId, side: Side) -> Keys {
        self.inner.initial_keys(dst_cid, side)
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        self.inner.handshake_data()
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        self.inner.peer_identity()
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        self.inner.early_crypto()
    }

    fn early_data_accepted(&self) -> Option<bool> {
        self.inner.early_data_accepted()
    }

    fn is_handshaking(&self) -> bool {
        self.inner.is_handshaking()
    }

    fn read_handshake(&mut self, buf: &[u8]) -> Result<bool, TransportError> {
        self.inner.read_handshake(buf)
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        self.inner.transport_parameters()
    }

    fn write_handshake(&mut self, buf: &mut Vec<u8>) -> Option<Keys> {
        let mut flight = Vec::new();
        let keys = self.inner.write_handshake(&mut flight);
        if !flight.is_empty() {
            let mut changes = self.changes.lock().unwrap();
            match self.flights {
                0 => flight = change_hello(&flight, &mut changes),
                _ => drop(flight.splice(..0, mem::take(&mut changes.before_finished))),
            }
            self.flights += 1;
        }
        buf.extend_from_slice(&flight);
        let mut keys = keys?;
        let level = if self.levels == 0 { Level::Handshake } else { Level::OneRtt };
        self.levels += 1;
        keys.packet.local = self.key(keys.packet.local, level);
        Some(keys)
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        let keys = self.inner.next_1rtt_keys()?;
        Some(KeyPair { local: self.key(keys.local, Level::OneRtt), remote: keys.remote })
    }

    fn is_valid_retry(&self, orig_dst_cid: &ConnectionId, header: &[u8], payload: &[u8]) -> bool {
        self.inner.is_valid_retry(orig_dst_cid, header, payload)
    }

    fn export_keying_material(
        &self,
        output: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        self.inner.export_keying_material(output, label, context)
    }
}

struct TamperKey {
    inner: Box<dyn PacketKey>,
    level: Level,
    changes: SharedChanges,
}

impl PacketKey for TamperKey {
    fn encrypt(&self, packet: u64, buf: &mut [u8], header_len: usize) {
        let end = buf.len() - self.tag_len();
        let mut changes = self.changes.lock().unwrap();
        let change = changes.packet.take_if(|(level, change)| {
            *level == self.level
                && match change {
                    PacketChange::Frames(frames) => frames.len() <= end - header_len,
                    PacketChange::ReservedBits => true,
                }
        });
        match change {
            Some((_, PacketChange::Frames(frames))) => {
                buf[header_len..end].fill(0);
                buf[header_len..header_len + frames.len()].copy_from_slice(&frames);
            }
            Some((level, PacketChange::ReservedBits)) => {
                buf[0] |= if level == Level::OneRtt { 0x18 } else { 0x0c };
            }
            None => {}
        }
        self.inner.encrypt(packet, buf, header_len);
    }

    fn decrypt(&self, packet: u64, header: &[u8], payload: &mut BytesMut) -> Result<(), CryptoError> {
        self.inner.decrypt(packet, header, payload)
    }

    fn tag_len(&self) -> usize {
        self.inner.tag_len()
    }

    fn confidentiality_limit(&self) -> u64 {
        self.inner.confidentiality_limit()
    }

    fn integrity_limit(&self) -> u64 {
        self.inner.integrity_limit()
    }
}

/// The type of the extension with the transport parameters (RFC 9001 section 8.2).
const PARAMETERS: u16 = 0x39;

/// Changes the extension with the transport parameters of a ClientHello (RFC 8446 section 4.1.2).
fn change_hello(hello: &[u8], changes: &mut Changes) -> Vec<u8> {
    let (extension, parameters) = (changes.extension.take(), changes.parameters.take());
    if extension.is_none() && parameters.is_none() {
        return hello.to_vec();
    }
    // Type, length, version, random; then the session, the cipher suites and the compression methods.
    let session = 4 + 2 + 32;
    let suites = session + 1 + usize::from(hello[session]);
    let compression = suites + 2 + number(&hello[suites..suites + 2]);
    let start = compression + 1 + usize::from(hello[compression]);
    let mut rest = &hello[start + 2..];
    let mut extensions = Vec::new();
    while let [a, b, c, d, ..] = *rest {
        let (kind, len) = (u16::from_be_bytes([a, b]), usize::from(u16::from_be_bytes([c, d])));
        let mut body = rest[4..4 + len].to_vec();
        rest = &rest[4 + len..];
        let kind = if kind == PARAMETERS { extension.unwrap_or(kind) } else { kind };
        if let Some(change) = parameters.filter(|_| kind == PARAMETERS) {
            body = change_parameters(&body, change);
        }
        if kind != 0 || extension.is_none() {
            extensions.extend_from_slice(&kind.to_be_bytes());
            extensions.extend_from_slice(&(body.len() as u16).to_be_bytes());
            extensions.extend_from_slice(&body);
        }
    }
    let mut changed = hello[..start].to_vec();
    changed.extend_from_slice(&(extensions.len() as u16).to_be_bytes());
    changed.extend_from_slice(&extensions);
    let len = (changed.len() as u32 - 4).to_be_bytes();
    changed[1..4].copy_from_slice(&len[1..]);
    changed
}

fn number(bytes: &[u8]) -> usize {
    bytes.iter().fold(0, |number, byte| number << 8 | usize::from(*byte))
}

fn change_parameters(mut body: &[u8], change: ParameterChange) -> Vec<u8> {
    let mut parameters = Vec::new();
    while !body.is_empty() {
        let (id, len) = (read(&mut body), read(&mut body) as usize);
        parameters.push((id, body[..len].to_vec()));
        body = &body[len..];
    }
    change(&mut parameters);
    let mut changed = Vec::new();
    for (id, value) in parameters {
        changed.extend(varint(id));
        changed.extend(varint(value.len() as u64));
        changed.extend(value);
    }
    changed
}

/// Reads an integer of variable length (RFC 9000 section 16).
fn read(bytes: &mut &[u8]) -> u64 {
    let len = 1 << (bytes[0] >> 6);
    let first = u64::from(bytes[0] & 0x3f);
    let value = bytes[1..len].iter().fold(first, |value, byte| value << 8 | u64::from(*byte));
    *bytes = &bytes[len..];
    value
}

/// Writes an integer of variable length.
pub(super) fn varint(value: u64) -> Vec<u8> {
    match value {
        0..0x40 => vec![value as u8],
        0x40..0x4000 => (value as u16 | 0x4000).to_be_bytes().to_vec(),
        0x4000..0x4000_0000 => (value as u32 | 0x8000_0000).to_be_bytes().to_vec(),
        _ => (value | 0xc000_0000_0000_0000).to_be_bytes().to_vec(),
    }
}
