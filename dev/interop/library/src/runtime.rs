//! Requirements of the checks on a runtime.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::{Sink, Stream};
use sinews::client::Response;
use sinews::compio::Compio;
use sinews::tokio::Tokio;
use sinews::{Connect, ConnectError, Message};

use crate::Error;

/// Time limit of each check, which needs milliseconds.
const LIMIT: Duration = Duration::from_secs(60);

/// A WebSocket on any runtime.
pub(crate) trait Socket:
    Stream<Item = Result<Message, sinews::Error>> + Sink<Message, Error = sinews::Error> + Unpin
{
}

impl<T> Socket for T where
    T: Stream<Item = Result<Message, sinews::Error>> + Sink<Message, Error = sinews::Error> + Unpin
{
}

pub(crate) trait Runtime: sinews::client::Runtime + Copy {
    type Socket: Socket;

    async fn open(connect: Connect<Self>) -> Result<(Self::Socket, Response), ConnectError>;

    /// Returns the other end of the TCP connection, where it is available.
    fn leads_to(socket: &Self::Socket) -> Option<SocketAddr>;

    /// Runs a check with a time limit.
    async fn limit(check: impl Future<Output = Result<(), Error>>) -> Result<(), Error>;
}

impl Runtime for Tokio {
    type Socket = sinews::WebSocket<sinews::tokio::Stream>;

    async fn open(connect: Connect<Self>) -> Result<(Self::Socket, Response), ConnectError> {
        connect.open().await
    }

    fn leads_to(socket: &Self::Socket) -> Option<SocketAddr> {
        socket.get_ref().tcp().peer_addr().ok()
    }

    async fn limit(check: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
        tokio::time::timeout(LIMIT, check).await?
    }
}

impl Runtime for Compio {
    type Socket = sinews::compio::WebSocket<sinews::compio::Stream>;

    async fn open(connect: Connect<Self>) -> Result<(Self::Socket, Response), ConnectError> {
        connect.open().await
    }

    fn leads_to(_: &Self::Socket) -> Option<SocketAddr> {
        None
    }

    async fn limit(check: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
        compio::time::timeout(LIMIT, check).await?
    }
}
