//! Two halves of a connection, for two tasks.

mod outlet;
mod read;
#[cfg(any(feature = "url-connect", feature = "hyper"))]
pub(crate) mod sides;
mod transport;
mod write;

use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};

use self::outlet::{SharedDriver, WriteOutlet};
pub use self::read::ReadHalf;
use self::read::ReadHalfIo;
#[cfg(any(feature = "url-connect", feature = "hyper"))]
pub use self::sides::{ReadSide, WriteSide};
pub use self::transport::{Locked, Split};
pub use self::write::WriteHalf;
use super::WebSocket;
use super::driver::{self, TokioDriver};
use crate::methods;

impl<S: AsyncRead + AsyncWrite + Unpin> WebSocket<S> {
    /// Splits the connection into halves that may live on different tasks, and run at the same time: neither waits
    /// for the other, and over a socket messages take no lock.
    ///
    /// The writer sends, the reader receives and answers control frames; [`reunite`](ReadHalf::reunite) joins them
    /// again. The order of the halves is that of
    /// [`futures::StreamExt::split`](https://docs.rs/futures/0.3/futures/stream/trait.StreamExt.html). Every stream
    /// that [`connect`](crate::connect), axum and hyper return can be split, and so can sockets and TLS streams of
    /// rustls and native-tls: TCP without a lock, TLS with a lock. The halves are [`Send`] where the stream is, so that
    /// they move to other tasks. Any other stream is split by [`split_locked`](Self::split_locked). The reader skips
    /// the rest of a message that [`recv_into`](Self::recv_into) has received in part.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use sinews::WebSocket;
    /// # let agreed = sinews_testkit::negotiate(None, None);
    /// # let (io, peer) = tokio::io::duplex(1 << 10);
    /// # let ws = WebSocket::from_negotiated(io, agreed.server, Default::default(), &[]);
    /// # let mut peer = WebSocket::from_negotiated(peer, agreed.client, Default::default(), &[]);
    /// let (mut write, mut read) = ws.split();
    /// let reader = tokio::spawn(async move {
    ///     let first = read.next().await;
    ///     (first, read)
    /// });
    /// write.send("from the writer").await?;
    /// # assert_eq!(peer.next().await.expect("open")?.as_text(), Some("from the writer"));
    /// # peer.send("to the reader").await?;
    /// let (first, read) = reader.await?;
    /// assert_eq!(first.expect("open")?.as_text(), Some("to the reader"));
    /// let ws = read.reunite(write)?;
    /// # drop(ws);
    /// # Ok(()) }
    /// ```
    pub fn split(self) -> (WriteHalf<S>, ReadHalf<S>)
    where
        S: Split<Stream = S>,
    {
        self.split_as()
    }

    /// As [`split`](Self::split), for any stream. Its sides share a lock that is held during system calls, for
    /// receiving and for sending; encoding, decoding, validation and compression happen outside of it.
    pub fn split_locked(self) -> (WriteHalf<Locked<S>>, ReadHalf<Locked<S>>) {
        self.split_as()
    }

    fn split_as<T: Split<Stream = S>>(mut self) -> (WriteHalf<T>, ReadHalf<T>) {
        self.filling.abandon(&mut self.driver.link);
        let mut link = self.driver.link;
        link.now = driver::now();
        let info = link.info();
        // A whole connection has both halves.
        let (write, sending, pair) = link.split().expect("no half is driven by a WebSocket");
        let (reader, writer) = T::split(self.driver.io);
        let outlet = Arc::new(WriteOutlet::new(writer, sending, self.driver.unflushed, pair, info));
        let driver = TokioDriver::new(ReadHalfIo { io: reader, outlet: outlet.clone() }, link);
        let shared_driver = Arc::new(SharedDriver::new(driver));
        let read = ReadHalf::new(outlet.clone(), shared_driver.clone());
        (WriteHalf::new(outlet, shared_driver, write), read)
    }
}

impl<T: Split> ReadHalf<T> {
    /// Joins the halves to a whole connection, with all messages that both had queued.
    ///
    /// # Errors
    /// Returns both halves, if they are not of one connection.
    pub fn reunite(self, write: WriteHalf<T>) -> Result<WebSocket<T::Stream>, ReuniteError<T>> {
        if !write.is_of(&self) {
            return Err(ReuniteError { write, read: self });
        }
        let (mut link, outlet) = write.into_parts();
        let TokioDriver { io: ReadHalfIo { io: reader, outlet: own }, link: mut whole, .. } =
            self.into_driver();
        drop(own);
        let out = Arc::into_inner(outlet).expect("both halves were passed").into_out();
        let (writer, sending, unflushed) = out.settle(&mut link);
        whole.now = driver::now();
        whole.join(link, sending);
        let stream = T::reunite(reader, writer);
        let mut driver = TokioDriver::new(stream, whole);
        driver.unflushed = unflushed;
        Ok(WebSocket::from_driver(driver))
    }
}

methods::reunite_error!(Split);
