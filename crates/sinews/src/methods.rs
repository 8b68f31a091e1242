//! Methods that several connections and halves have, each defined once.

/// Defines the accessors of a connection or a half: `end` knows how the connection ended, `info` its constant
/// properties.
macro_rules! accessors {
    ($this:ident => end: $end:expr, info: $info:expr) => {
        /// How the connection ended, if it has: code, reason and side.
        #[must_use]
        pub fn closed(&self) -> Option<&sinews_session::Closed> {
            let $this = self;
            $end.closed()
        }

        /// The subprotocol that the handshake agreed on.
        #[must_use]
        pub fn subprotocol(&self) -> Option<&str> {
            let $this = self;
            $info.subprotocol()
        }

        /// Whether this is the client or the server.
        #[must_use]
        pub fn role(&self) -> sinews_proto::Role {
            let $this = self;
            $info.role()
        }

        /// Limits and timeouts.
        #[must_use]
        pub fn config(&self) -> &sinews_proto::Config {
            let $this = self;
            $info.config()
        }
    };
}

/// Defines access to the stream of type `S` that a driver owns.
#[cfg(any(feature = "tokio", feature = "blocking"))]
macro_rules! stream_accessors {
    () => {
        /// The transport. Bytes read from it or written to it directly are missing in the connection.
        #[must_use]
        pub fn get_ref(&self) -> &S {
            &self.driver.io
        }

        /// The transport, mutably.
        pub fn get_mut(&mut self) -> &mut S {
            &mut self.driver.io
        }
    };
}

/// Defines the receive methods over `poll_message`.
#[cfg(any(feature = "tokio", feature = "compio"))]
macro_rules! receive_methods {
    () => {
        /// Receives the next message, or `None` when the connection has ended in order; [`closed`](Self::closed) then
        /// returns the details.
        ///
        /// Cancel-safe: a future that is dropped loses nothing.
        ///
        /// # Errors
        /// Once, how the connection ended, if not in order; then `None`.
        pub async fn next(&mut self) -> Option<Result<crate::Message, crate::Error>> {
            std::future::poll_fn(|cx| self.poll_message(cx)).await
        }

        /// Receives the next text or binary message; pings, pongs and Close are skipped, since the library answers
        /// them.
        ///
        /// Cancel-safe.
        ///
        /// # Errors
        /// As [`next`](Self::next).
        pub async fn next_data(&mut self) -> Option<Result<crate::Message, crate::Error>> {
            loop {
                match self.next().await? {
                    Ok(message) if !message.is_data() => {}
                    message => return Some(message),
                }
            }
        }
    };
}

/// Defines the methods that queue a message in the link of a driver without waiting.
macro_rules! queue_methods {
    () => {
        /// Queues a message without waiting. If [`Config::max_outbound`](crate::Config::max_outbound) bytes are queued
        /// already, [`Config::overflow`](crate::Config::overflow) applies.
        ///
        /// Returns [`Sent::Dropped`](crate::Sent::Dropped) if that policy drops this message: check the value. Returns
        /// [`Sent::Backpressure`](crate::Sent::Backpressure) if the message is queued, and more than
        /// [`Config::high_water`](crate::Config::high_water) bytes are queued now. Under
        /// [`Overflow::Close`](crate::Overflow::Close), the default, a full queue ends the connection, and the call
        /// returns [`Error::Closed`](crate::Error::Closed) with [`Cause::Overflow`](crate::Cause::Overflow).
        ///
        /// # Errors
        /// See [`Error`](crate::Error).
        pub fn try_send(
            &mut self,
            message: impl Into<crate::Message>,
        ) -> Result<sinews_session::Sent, crate::Error> {
            self.driver.link.queue(message.into())
        }

        /// Queues a message that is framed once for many connections, without waiting, as
        /// [`try_send`](Self::try_send). For a slow consumer, [`Overflow::DropOldest`](crate::Overflow::DropOldest)
        /// drops older messages of this kind, and always queues the new one.
        ///
        /// # Errors
        /// See [`Error`](crate::Error).
        pub fn publish(
            &mut self,
            message: &sinews_session::Prepared,
        ) -> Result<sinews_session::Sent, crate::Error> {
            self.driver.link.publish(message)
        }
    };
}

/// Defines the send methods of a connection with an asynchronous [`Driver`](crate::driver::Driver).
#[cfg(any(feature = "tokio", feature = "compio"))]
macro_rules! send_methods {
    () => {
        crate::methods::queue_methods!();

        /// Sends a message. It leaves at once, or, while messages received together are unread, with the reply to the
        /// last of them, in one write.
        ///
        /// Cancel-safe: a dropped future has queued the message whole or not at all.
        ///
        /// # Errors
        /// See [`Error`](crate::Error).
        pub fn send(
            &mut self,
            message: impl Into<crate::Message>,
        ) -> impl Future<Output = Result<(), crate::Error>> {
            // Written by hand: the compiler would store the message several times.
            let mut message = Some(message.into());
            std::future::poll_fn(move |cx| {
                self.driver.poll_queue(cx, |link| message.take().map(|message| link.queue(message)))
            })
        }

        /// Sends borrowed text, copied once, behind its frame header; otherwise as [`send`](Self::send).
        ///
        /// Cancel-safe, as [`send`](Self::send) is.
        ///
        /// # Errors
        /// See [`Error`](crate::Error).
        pub fn send_text(&mut self, text: &str) -> impl Future<Output = Result<(), crate::Error>> {
            self.send_borrowed(sinews_proto::Kind::Text, text.as_bytes())
        }

        /// Sends a borrowed binary message, copied once, behind its frame header; otherwise as [`send`](Self::send).
        ///
        /// Cancel-safe, as [`send`](Self::send) is.
        ///
        /// # Errors
        /// See [`Error`](crate::Error).
        pub fn send_binary(&mut self, payload: &[u8]) -> impl Future<Output = Result<(), crate::Error>> {
            self.send_borrowed(sinews_proto::Kind::Binary, payload)
        }

        fn send_borrowed(
            &mut self,
            kind: sinews_proto::Kind,
            payload: &[u8],
        ) -> impl Future<Output = Result<(), crate::Error>> {
            let mut payload = Some(payload);
            std::future::poll_fn(move |cx| {
                self.driver
                    .poll_queue(cx, |link| payload.take().map(|payload| link.queue_borrowed(kind, payload)))
            })
        }

        /// Queues a message without sending it: it leaves with the next [`flush`](Self::flush),
        /// [`send`](Self::send), or [`next`](Self::next) that waits. Waits only while more than
        /// [`Config::high_water`](crate::Config::high_water) bytes are queued.
        ///
        /// Cancel-safe, as [`send`](Self::send) is.
        ///
        /// # Errors
        /// See [`Error`](crate::Error).
        pub async fn feed(&mut self, message: impl Into<crate::Message>) -> Result<(), crate::Error> {
            if self.driver.link.is_congested() {
                std::future::poll_fn(|cx| self.driver.poll_capacity(cx)).await;
            }
            crate::link::accepted(self.driver.link.queue(message.into()))
        }

        /// Sends all queued bytes.
        ///
        /// Cancel-safe.
        ///
        /// # Errors
        /// See [`Error`](crate::Error).
        pub async fn flush(&mut self) -> Result<(), crate::Error> {
            std::future::poll_fn(|cx| self.driver.poll_out(cx)).await
        }

        /// Begins the closing handshake (RFC 6455 section 7.1.2) behind queued messages, without waiting.
        /// [`next`](Self::next) still returns messages of the peer until its Close arrives.
        ///
        /// # Errors
        /// [`Error::Misuse`](crate::Error::Misuse) for a reason over 123 bytes, or if a Close is decided already.
        pub fn start_close(
            &mut self,
            code: sinews_proto::CloseCode,
            reason: &str,
        ) -> Result<(), crate::Error> {
            self.driver.start_close(code, reason)
        }
    };
}

/// Defines the accessors of a [`Link`](crate::link::Link) that a driver owns.
macro_rules! link_accessors {
    () => {
        crate::methods::accessors!(this => end: this.driver.link, info: this.driver.link);
    };
}

/// Defines the error of `reunite`, for halves whose type parameter has this bound.
#[cfg(any(feature = "tokio", feature = "compio"))]
macro_rules! reunite_error {
    ($bound:path) => {
        /// Halves that are not of one connection.
        #[allow(clippy::exhaustive_structs, reason = "two halves")]
        pub struct ReuniteError<T: $bound> {
            /// The sending half.
            pub write: WriteHalf<T>,
            /// The receiving half.
            pub read: ReadHalf<T>,
        }

        impl<T: $bound> std::fmt::Debug for ReuniteError<T> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct("ReuniteError").finish_non_exhaustive()
            }
        }

        impl<T: $bound> std::fmt::Display for ReuniteError<T> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("the halves are not of one connection")
            }
        }

        impl<T: $bound> std::error::Error for ReuniteError<T> {}
    };
}

#[cfg(any(feature = "tokio", feature = "blocking"))]
pub(crate) use stream_accessors;
pub(crate) use {accessors, link_accessors, queue_methods};
#[cfg(any(feature = "tokio", feature = "compio"))]
pub(crate) use {receive_methods, reunite_error, send_methods};
