//! Client TLS, by rustls.

use std::io::{Read, Write};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use sinews_session::{Chain, Outbound, Resources};

use crate::trust;

/// One connection's TLS state.
#[derive(Debug)]
pub(crate) struct TlsLayer {
    connection: ClientConnection,
    wire: Outbound,
}

impl TlsLayer {
    /// # Errors
    ///
    /// Returns an error if the name is not valid in a certificate.
    pub(crate) fn new(config: &Arc<ClientConfig>, name: &str) -> Result<Self, String> {
        let name = ServerName::try_from(name.to_owned()).map_err(|error| error.to_string())?;
        let mut connection =
            ClientConnection::new(config.clone(), name).map_err(|error| error.to_string())?;
        // The plan bounds the data in flight.
        connection.set_buffer_limit(None);
        Ok(Self { connection, wire: Outbound::default() })
    }

    /// Decrypts a chunk and appends its plaintext.
    ///
    /// # Errors
    ///
    /// Returns the server's TLS error.
    pub(crate) fn receive(&mut self, mut chunk: &[u8], plain: &mut Vec<u8>) -> Result<(), String> {
        while !chunk.is_empty() {
            self.connection.read_tls(&mut chunk).map_err(|error| error.to_string())?;
            let state = self.connection.process_new_packets().map_err(|error| trust::explain(&error))?;
            let from = plain.len();
            plain.resize(from + state.plaintext_bytes_to_read(), 0);
            self.connection.reader().read_exact(&mut plain[from..]).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Whether the handshake is complete.
    pub(crate) fn is_open(&self) -> bool {
        !self.connection.is_handshaking()
    }

    /// Whether the server selected HTTP/2 by ALPN.
    pub(crate) fn is_http2(&self) -> bool {
        self.connection.alpn_protocol() == Some(HTTP2)
    }

    pub(crate) fn wants_send(&self) -> bool {
        self.connection.wants_write() || self.wire.wants_send()
    }

    /// Encrypts a whole chain.
    pub(crate) fn seal(&mut self, chain: &mut Chain) {
        for piece in chain.pieces() {
            // The writer is unlimited and accepts all bytes.
            let _ = self.connection.writer().write_all(piece);
        }
        chain.advance(chain.len());
    }

    /// Returns records that are ready to send.
    pub(crate) fn start_send(&mut self, resources: &mut Resources) -> Option<Box<Chain>> {
        if self.connection.wants_write() {
            self.wire.pending_chain(resources).write(|out| {
                while self.connection.wants_write() && self.connection.write_tls(out).is_ok() {}
            });
        }
        self.wire.start()
    }

    pub(crate) fn progressed(&mut self, bytes: usize) {
        self.wire.progressed(bytes);
    }

    pub(crate) fn finish_send(&mut self, records: Box<Chain>, resources: &mut Resources) {
        self.wire.finish(records, resources);
    }
}

/// HTTP/2's name in ALPN (RFC 9113 section 3.2).
pub(crate) const HTTP2: &[u8] = b"h2";

/// HTTP/3's name in ALPN (RFC 9114 section 3.1).
pub(crate) const HTTP3: &[u8] = b"h3";
