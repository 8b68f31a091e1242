//! The exchanges before a connection is a WebSocket, as state machines over bytes: the handshake, and the protocols
//! of proxies. [`exchange`] executes them on the transport of any runtime.

use std::io;
use std::time::{Duration, Instant};

/// One exchange with a server or a proxy.
///
/// The driver sends the bytes that [`write`](Self::write) appends, then passes [`read`](Self::read) all bytes
/// received since the exchange began, and follows the returned [`ExchangeStep`].
pub(crate) trait Exchange {
    /// The result of the exchange.
    type Output;
    /// The error of the exchange.
    type Error;

    /// Appends the bytes to send now.
    fn write(&mut self, out: &mut Vec<u8>);

    /// Processes received bytes. At each call they begin with the first byte of the exchange.
    fn read(&mut self, received: &[u8]) -> Result<ExchangeStep<Self::Output>, Self::Error>;

    /// Called at the end of input. Returns the error that is known already, if any.
    fn cut_short(&mut self) -> Option<Self::Error> {
        None
    }
}

/// The driver's next step.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ExchangeStep<T> {
    /// Write again.
    #[cfg_attr(not(feature = "url-connect"), allow(dead_code, reason = "only SOCKS5 has several rounds"))]
    Write,
    /// Receive more.
    More,
    /// Receive more within this time: the outcome is known, and the missing bytes only explain it.
    Rest(Duration),
    /// The exchange is complete. Bytes received behind `consumed` belong to the next protocol.
    Done { output: T, consumed: usize },
}

/// Why a driver did not complete an exchange.
#[derive(Debug)]
pub(crate) enum ExchangeError<E> {
    /// The state machine returned an error.
    Rejected(E),
    /// The transport failed, or ended ([`io::ErrorKind::UnexpectedEof`]).
    Io(io::Error),
    /// The timeout expired.
    TimedOut,
}

/// Why an operation of a transport was not completed.
#[derive(Debug)]
pub(crate) enum WaitError {
    /// The transport failed.
    Io(io::Error),
    /// The deadline expired.
    TimedOut,
}

impl<E> From<WaitError> for ExchangeError<E> {
    fn from(error: WaitError) -> Self {
        match error {
            WaitError::TimedOut => Self::TimedOut,
            WaitError::Io(error) => Self::Io(error),
        }
    }
}

/// A transport during an exchange. The futures of a blocking transport are ready at once.
pub(crate) trait ExchangeIo {
    /// The time of the clock that expires the deadlines of the transport.
    fn now() -> Instant;

    /// Sends all bytes of `out`, flushes, and empties `out`.
    async fn send(&mut self, out: &mut Vec<u8>, until: Option<Instant>) -> Result<(), WaitError>;

    /// Receives once, at most [`RECEIVE_MAX`] bytes, and appends them. Returns their number; 0: the peer has ended
    /// its side.
    async fn receive(&mut self, received: &mut Vec<u8>, until: Option<Instant>) -> Result<usize, WaitError>;
}

/// Sends the output of the state machine and passes it the input, until it is done or the deadline expires.
/// `received` keeps the bytes behind the exchange.
pub(crate) async fn exchange<I: ExchangeIo, E: Exchange>(
    io: &mut I,
    received: &mut Vec<u8>,
    mut machine: E,
    deadline: Option<Instant>,
) -> Result<E::Output, ExchangeError<E::Error>> {
    let mut out = Vec::new();
    let mut until = deadline;
    loop {
        machine.write(&mut out);
        io.send(&mut out, until).await?;
        match machine.read(received).map_err(ExchangeError::Rejected)? {
            ExchangeStep::Write => continue,
            ExchangeStep::More => {}
            ExchangeStep::Rest(wait) => until = [deadline, Some(I::now() + wait)].into_iter().flatten().min(),
            ExchangeStep::Done { output, consumed } => {
                received.drain(..consumed);
                return Ok(output);
            }
        }
        let error = match io.receive(received, until).await {
            Ok(0) => ExchangeError::Io(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => continue,
            Err(error) => error.into(),
        };
        return Err(machine.cut_short().map_or(error, ExchangeError::Rejected));
    }
}

/// Most bytes that a driver receives at once, and thus the most that lie behind a completed exchange.
pub(crate) const RECEIVE_MAX: usize = 8 << 10;

#[cfg(test)]
pub(crate) mod tests {
    use super::{Exchange, ExchangeStep};

    /// Output and result of a state machine whose peer's bytes arrive in chunks of this size, each only once all
    /// earlier bytes are processed; with the number of consumed bytes.
    pub(crate) type Run<M> =
        (Vec<u8>, Option<Result<<M as Exchange>::Output, <M as Exchange>::Error>>, usize);

    pub(crate) fn run<M: Exchange>(mut machine: M, input: &[u8], piece: usize) -> Run<M> {
        let (mut out, mut len) = (Vec::new(), 0);
        machine.write(&mut out);
        loop {
            match machine.read(&input[..len]) {
                Ok(ExchangeStep::Write) => {
                    machine.write(&mut out);
                    continue;
                }
                Ok(ExchangeStep::More | ExchangeStep::Rest(_)) if len == input.len() => {
                    return (out, machine.cut_short().map(Err), len);
                }
                Ok(ExchangeStep::More | ExchangeStep::Rest(_)) => len = input.len().min(len + piece),
                Ok(ExchangeStep::Done { output, consumed }) => return (out, Some(Ok(output)), consumed),
                Err(error) => return (out, Some(Err(error)), len),
            }
        }
    }
}
