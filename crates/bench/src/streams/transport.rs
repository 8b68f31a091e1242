//! Acknowledgements and transports of the binary messages.

use clap::ValueEnum;

/// Acknowledgement that a producer waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProducerAck {
    /// The order of the records is fixed in memory.
    Memory,
    /// The records are on disk, according to the server's `--streams-fsync`.
    Disk,
}

/// Transport of the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamTransport {
    Tcp,
    WebSocket,
}

impl StreamTransport {
    pub(crate) const BOTH: [Self; 2] = [Self::Tcp, Self::WebSocket];

    pub(crate) fn name(self) -> &'static str {
        if self == Self::Tcp { "tcp" } else { "websocket" }
    }
}
