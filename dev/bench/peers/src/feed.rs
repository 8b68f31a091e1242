//! Echo loops over `Stream` and `Sink` with one flush for messages that arrived together.

use std::task::Poll;

use futures_util::{Sink, SinkExt, Stream, StreamExt, poll};

/// Feeds each answer at once, and flushes when no further message has arrived: for a library whose `next`
/// does not flush.
pub(crate) async fn at_once<S, M, E>(mut socket: S, is_data: fn(&M) -> bool) -> Result<(), E>
where
    S: Stream<Item = Result<M, E>> + Sink<M, Error = E> + Unpin,
{
    while let Some(message) = socket.next().await {
        let mut message = message?;
        loop {
            if is_data(&message) {
                socket.feed(message).await?;
            }
            match poll!(socket.next()) {
                Poll::Ready(Some(next)) => message = next?,
                Poll::Ready(None) => return Ok(()),
                Poll::Pending => break,
            }
        }
        socket.flush().await?;
    }
    Ok(())
}

/// Takes all available messages, and then feeds all answers: for a library whose `next` flushes. Messages
/// that arrive together with a Close are not answered, since the library sends nothing after its own Close.
pub(crate) async fn together<S, M, E>(mut socket: S, is_data: fn(&M) -> bool) -> Result<(), E>
where
    S: Stream<Item = Result<M, E>> + Sink<M, Error = E> + Unpin,
{
    let mut messages = Vec::new();
    while let Some(message) = socket.next().await {
        messages.push(message?);
        while messages.len() < TOGETHER_MAX {
            match poll!(socket.next()) {
                Poll::Ready(Some(message)) => messages.push(message?),
                Poll::Ready(None) => return Ok(()),
                Poll::Pending => break,
            }
        }
        for message in messages.drain(..).filter(is_data) {
            socket.feed(message).await?;
        }
        socket.flush().await?;
    }
    Ok(())
}

/// Exceeds the messages in flight on a connection of any load.
const TOGETHER_MAX: usize = 128;
