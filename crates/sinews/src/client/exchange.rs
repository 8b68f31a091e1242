//! The exchanges before a connection is a WebSocket, as state machines over bytes: the handshake, and the protocols
//! of proxies. A driver needs a dozen lines for all of them.

use std::io;
use std::time::Duration;

/// One exchange with a server or a proxy.
///
/// The driver sends the bytes that [`write`](Self::write) appends, then passes [`read`](Self::read) all bytes
/// received since the exchange began, and follows the returned [`Step`].
pub(crate) trait Exchange {
    /// The result of the exchange.
    type Output;
    /// The error of the exchange.
    type Error;

    /// Appends the bytes to send now.
    fn write(&mut self, out: &mut Vec<u8>);

    /// Processes received bytes. At each call they begin with the first byte of the exchange.
    fn read(&mut self, received: &[u8]) -> Result<Step<Self::Output>, Self::Error>;

    /// Called at the end of input. Returns the error that is known already, if any.
    fn cut_short(&mut self) -> Option<Self::Error> {
        None
    }
}

/// The driver's next step.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step<T> {
    /// Write again.
    #[cfg_attr(not(feature = "url-connect"), allow(dead_code, reason = "only SOCKS5 has several rounds"))]
    Reply,
    /// Receive more.
    More,
    /// Receive more within this time: the outcome is known, and the missing bytes only explain it.
    Rest(Duration),
    /// The exchange is complete. Bytes received behind `consumed` belong to the next protocol.
    Done { output: T, consumed: usize },
}

/// Why a driver did not complete an exchange.
#[derive(Debug)]
pub(crate) enum Broken<E> {
    /// The state machine returned an error.
    Refused(E),
    /// The transport failed, or ended ([`io::ErrorKind::UnexpectedEof`]).
    Io(io::Error),
    /// The timeout expired.
    TimedOut,
}

/// Most bytes that a driver receives at once, and thus the most that lie behind a completed exchange.
pub(crate) const RECEIVE_MAX: usize = 8 << 10;

#[cfg(test)]
pub(crate) mod tests {
    use super::{Exchange, Step};

    /// Output and result of a state machine whose peer's bytes arrive in chunks of this size, each only once all
    /// earlier bytes are processed; with the number of consumed bytes.
    pub(crate) type Run<M> =
        (Vec<u8>, Option<Result<<M as Exchange>::Output, <M as Exchange>::Error>>, usize);

    pub(crate) fn run<M: Exchange>(mut machine: M, input: &[u8], piece: usize) -> Run<M> {
        let (mut out, mut len) = (Vec::new(), 0);
        machine.write(&mut out);
        loop {
            match machine.read(&input[..len]) {
                Ok(Step::Reply) => {
                    machine.write(&mut out);
                    continue;
                }
                Ok(Step::More | Step::Rest(_)) if len == input.len() => {
                    return (out, machine.cut_short().map(Err), len);
                }
                Ok(Step::More | Step::Rest(_)) => len = input.len().min(len + piece),
                Ok(Step::Done { output, consumed }) => return (out, Some(Ok(output)), consumed),
                Err(error) => return (out, Some(Err(error)), len),
            }
        }
    }
}
