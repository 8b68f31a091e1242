//! Handles for many producers.

use tokio::io::{AsyncRead, AsyncWrite};

use super::WebSocket;
use crate::sender::Sender;

impl<S: AsyncRead + AsyncWrite + Unpin> WebSocket<S> {
    /// A handle by which any task may send on this connection while another task drives it: awaits
    /// [`next`](Self::next), or sends. All handles share one queue of [`Sender::CAPACITY`] messages.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use sinews::WebSocket;
    /// # let agreed = sinews_testkit::negotiate(None, None);
    /// # let (io, peer) = tokio::io::duplex(1 << 10);
    /// # let mut ws = WebSocket::from_negotiated(io, agreed.server, Default::default(), &[]);
    /// # let mut peer = WebSocket::from_negotiated(peer, agreed.client, Default::default(), &[]);
    /// let sender = ws.sender();
    /// tokio::spawn(async move {
    ///     for number in 0..3 {
    ///         sender.send(format!("tick {number}")).await?;
    ///     }
    ///     Ok::<(), sinews::SendError>(())
    /// });
    /// // The task that reads also sends the queued messages.
    /// tokio::spawn(async move { while ws.next().await.is_some() {} });
    /// # assert_eq!(peer.next().await.expect("open")?.as_text(), Some("tick 0"));
    /// # Ok(()) }
    /// ```
    pub fn sender(&mut self) -> Sender {
        self.sender_with_capacity(Sender::CAPACITY)
    }

    /// As [`sender`](Self::sender), with capacity for `capacity` messages, at least one. The first call for a
    /// connection sets it.
    pub fn sender_with_capacity(&mut self, capacity: usize) -> Sender {
        self.driver.link.sender(capacity)
    }
}
