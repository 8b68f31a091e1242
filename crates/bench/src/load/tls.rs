//! TLS of a client, by rustls.

use std::io::{Read, Write};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use sinews_session::{Chain, Outbound, Resources};

use crate::trust;

/// The TLS of one connection.
#[derive(Debug)]
pub(crate) struct Tls {
    connection: ClientConnection,
    wire: Outbound,
}

impl Tls {
    /// # Errors
    ///
    /// No name that a certificate can have.
    pub(crate) fn new(config: &Arc<ClientConfig>, name: &str) -> Result<Self, String> {
        let name = ServerName::try_from(name.to_owned()).map_err(|error| error.to_string())?;
        let mut connection =
            ClientConnection::new(config.clone(), name).map_err(|error| error.to_string())?;
        // What is in flight is bounded by the plan.
        connection.set_buffer_limit(None);
        Ok(Self { connection, wire: Outbound::default() })
    }

    /// Appends the plaintext of what has come.
    ///
    /// # Errors
    ///
    /// What the server did wrong.
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

    /// Whether the handshake is over.
    pub(crate) fn is_open(&self) -> bool {
        !self.connection.is_handshaking()
    }

    pub(crate) fn wants_send(&self) -> bool {
        self.connection.wants_write() || self.wire.wants_send()
    }

    /// Encrypts a chain, whole.
    pub(crate) fn seal(&mut self, chain: &mut Chain) {
        for piece in chain.pieces() {
            // It takes everything, having no limit.
            let _ = self.connection.writer().write_all(piece);
        }
        chain.advance(chain.len());
    }

    /// Records that leave now.
    pub(crate) fn start_send(&mut self, resources: &mut Resources) -> Option<Box<Chain>> {
        if self.connection.wants_write() {
            self.wire.gathering(resources).write(|out| {
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
