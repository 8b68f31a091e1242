//! A connection to a broker that several requests use.

use std::future::Future;
use std::time::Instant;

use crate::reconnect::ReconnectDelay;

/// A connection that callers share. One caller opens it, and the others wait.
pub(crate) struct SharedConnection<C>(tokio::sync::Mutex<SharedState<C>>);

struct SharedState<C> {
    open: Option<C>,
    /// Number of this connection.
    number: u64,
    delay: ReconnectDelay,
    retry_at: Option<Instant>,
    /// The error of the last connection.
    error: String,
}

impl<C> Default for SharedConnection<C> {
    fn default() -> Self {
        let (delay, error) = (ReconnectDelay::default(), String::new());
        Self(SharedState { open: None, number: 0, delay, retry_at: None, error }.into())
    }
}

impl<C: Clone> SharedConnection<C> {
    /// Returns the connection and its number.
    ///
    /// # Errors
    /// It cannot be opened. The next attempt begins after a delay; calls before have the same error.
    pub(crate) async fn get<E: ToString>(
        &self,
        open: impl Future<Output = Result<C, E>>,
    ) -> Result<(C, u64), String> {
        let mut state = self.0.lock().await;
        if let Some(connection) = &state.open {
            return Ok((connection.clone(), state.number));
        }
        let now = Instant::now();
        if state.retry_at.is_some_and(|at| now < at) {
            return Err(state.error.clone());
        }
        state.retry_at = Some(now + state.delay.next(now));
        // The caller may give up meanwhile.
        "no connection within the time of a request".clone_into(&mut state.error);
        match open.await {
            Ok(connection) => {
                state.number += 1;
                state.open = Some(connection.clone());
                Ok((connection, state.number))
            }
            Err(error) => {
                state.error = error.to_string();
                Err(state.error.clone())
            }
        }
    }

    /// Discards a connection that is lost.
    #[cfg(any(feature = "redis", test))]
    pub(crate) async fn discard(&self, number: u64, reason: &str) {
        let mut state = self.0.lock().await;
        if state.number == number {
            state.open = None;
            reason.clone_into(&mut state.error);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::reconnect::simulated;

    #[test]
    fn callers_share_one_login_and_its_error() {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let (shared, logins) = (SharedConnection::<u32>::default(), Cell::new(0));
        let open = |result: Result<u32, &'static str>| {
            logins.set(logins.get() + 1);
            let count = logins.get();
            async move {
                tokio::task::yield_now().await;
                result.map(|_| count)
            }
        };
        let lazy = |result| async move { open(result).await };
        runtime.block_on(async {
            let (one, two) =
                futures_util::future::join(shared.get(lazy(Ok(0))), shared.get(lazy(Ok(0)))).await;
            assert_eq!((one, two, logins.get()), (Ok((1, 1)), Ok((1, 1)), 1));
            shared.discard(0, "another one").await;
            assert_eq!(shared.get(lazy(Ok(0))).await, Ok((1, 1)));
            // The broker has closed the connection behind the login: the next attempt waits.
            shared.discard(1, "closed").await;
            for _ in 0..100 {
                assert_eq!(shared.get(lazy(Ok(0))).await, Err("closed".to_owned()));
            }
            assert_eq!(logins.get(), 1);
        });
    }

    #[test]
    fn delays_grow_across_logins() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let shared = SharedConnection::<u32>::default();
        simulated::start();
        runtime.block_on(async {
            for number in 1..=6_u64 {
                // Every second login is rejected, and the other connections are lost soon.
                let login = if number % 2 == 0 { Err("rejected") } else { Ok(0) };
                assert_eq!(shared.get(async { login }).await.is_ok(), login.is_ok());
                shared.discard(number.div_ceil(2), "closed").await;
            }
        });
        let delays = simulated::delays();
        assert_eq!(delays.len(), 6);
        simulated::assert_growth(&delays);
    }
}
