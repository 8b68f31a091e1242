//! What is said before a connection is a WebSocket, as machines over bytes: the handshake, and what proxies want to
//! hear. A driver needs a dozen lines for all of them.

use std::io;
use std::time::Duration;

/// One exchange with a server or a proxy.
///
/// The driver sends what [`write`](Self::write) appends, then shows [`read`](Self::read) all that was received since
/// the exchange began, and does what the [`Step`] says.
pub(crate) trait Exchange {
    /// What it is for.
    type Output;
    /// How it fails.
    type Error;

    /// Appends what is to be sent now.
    fn write(&mut self, out: &mut Vec<u8>);

    /// Looks at what was received. It begins with the first byte of the exchange at each call.
    fn read(&mut self, received: &[u8]) -> Result<Step<Self::Output>, Self::Error>;

    /// Nothing more comes. The error that is known already, if any.
    fn cut_short(&mut self) -> Option<Self::Error> {
        None
    }
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step<T> {
    /// Write again.
    #[cfg_attr(not(feature = "url-connect"), allow(dead_code, reason = "only SOCKS5 has several rounds"))]
    Reply,
    /// Receive more.
    More,
    /// Receive more, but only for so long: the outcome is known, and what is missing only explains it.
    Rest(Duration),
    /// It is done. What was received behind `consumed` belongs to what follows.
    Done { output: T, consumed: usize },
}

/// Why a driver did not come to the end of an exchange.
#[derive(Debug)]
pub(crate) enum Broken<E> {
    /// The machine said so.
    Refused(E),
    /// The transport failed, or ended ([`io::ErrorKind::UnexpectedEof`]).
    Io(io::Error),
    /// The time was over.
    TimedOut,
}

/// Most bytes that a driver receives at once, and thus the most that lie behind an exchange when it is done.
pub(crate) const RECEIVE_MAX: usize = 8 << 10;

#[cfg(test)]
pub(crate) mod tests {
    use super::{Exchange, Step};

    /// What a machine said and how it ended, if its peer's bytes come in pieces of this size, each only once all
    /// before it were looked at. What was not consumed comes with it.
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
