//! Several addresses, and the first that connects (RFC 8305, "happy eyeballs").

use std::future::{Future, poll_fn};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

/// Time after which the next address is tried concurrently (RFC 8305 section 5).
pub(crate) const STAGGER: Duration = Duration::from_millis(250);

/// Most addresses of a name that are tried. With [`STAGGER`], the last attempt begins after 4 s.
const ADDRESSES_MAX: usize = 16;

/// The addresses in the order in which to try them: both families alternate, beginning with the family of the first,
/// each in the order of the system (RFC 8305 section 4). With a local address, only addresses of its family.
pub(crate) fn order(found: impl IntoIterator<Item = SocketAddr>, local: Option<IpAddr>) -> Vec<SocketAddr> {
    let found =
        found.into_iter().filter(|address| local.is_none_or(|local| local.is_ipv4() == address.is_ipv4()));
    let mut found = found.peekable();
    let first_is_v4 = found.peek().is_some_and(SocketAddr::is_ipv4);
    let (first, second): (Vec<_>, Vec<_>) = found.partition(|address| address.is_ipv4() == first_is_v4);
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    let mut ordered = Vec::new();
    while let (Some(address), other) = (first.next().or_else(|| second.next()), second.next()) {
        ordered.push(address);
        ordered.extend(other);
    }
    ordered.truncate(ADDRESSES_MAX);
    ordered
}

/// Tries the addresses in order: the next attempt begins when `wait` has passed or when an attempt has failed.
/// Returns the first connection and drops the other attempts. If all fail, returns the last error, or `None` if there
/// was no address.
pub(crate) async fn race<T, E, D, W>(
    addresses: Vec<SocketAddr>,
    mut dial: impl FnMut(SocketAddr) -> D,
    mut wait: impl FnMut() -> W,
) -> Result<T, Option<(SocketAddr, E)>>
where
    D: Future<Output = Result<T, E>>,
    W: Future,
{
    let mut addresses = addresses.into_iter();
    let mut dialing: Vec<(SocketAddr, Pin<Box<D>>)> = Vec::new();
    let mut waiting: Option<Pin<Box<W>>> = None;
    let mut fault = None;
    poll_fn(|cx| {
        loop {
            let mut at = 0;
            while let Some((address, dial)) = dialing.get_mut(at) {
                match dial.as_mut().poll(cx) {
                    Poll::Pending => at += 1,
                    Poll::Ready(Ok(connection)) => return Poll::Ready(Ok(connection)),
                    Poll::Ready(Err(error)) => {
                        fault = Some((*address, error));
                        drop(dialing.remove(at));
                        waiting = None;
                    }
                }
            }
            if waiting.as_mut().is_some_and(|waiting| waiting.as_mut().poll(cx).is_pending()) {
                return Poll::Pending;
            }
            waiting = None;
            match addresses.next() {
                Some(address) => {
                    dialing.push((address, Box::pin(dial(address))));
                    waiting = Some(Box::pin(wait()));
                }
                None if dialing.is_empty() => return Poll::Ready(Err(fault.take())),
                None => return Poll::Pending,
            }
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(text: &[&str]) -> Vec<SocketAddr> {
        text.iter().map(|address| address.parse().expect("an address")).collect()
    }

    #[test]
    fn address_families_alternate() {
        let found = addresses(&["[::1]:1", "[::2]:1", "[::3]:1", "1.1.1.1:1", "2.2.2.2:1"]);
        let expected = addresses(&["[::1]:1", "1.1.1.1:1", "[::2]:1", "2.2.2.2:1", "[::3]:1"]);
        assert_eq!(order(found.clone(), None), expected);
        let reversed = addresses(&["1.1.1.1:1", "[::1]:1", "[::2]:1", "[::3]:1"]);
        assert_eq!(order(reversed.clone(), None), reversed);
        assert_eq!(order(found.clone(), Some([127, 0, 0, 1].into())), found[3..]);
        assert_eq!(order(std::iter::repeat_n(found[0], 100), None).len(), ADDRESSES_MAX);
        assert!(order([], None).is_empty());
    }

    #[cfg(feature = "tokio")]
    mod clock {
        use tokio::time::{Instant, sleep};

        use super::*;

        /// Races addresses that connect after `port` milliseconds; odd ports fail.
        async fn raced(ports: &[u16]) -> (Result<u16, Option<u16>>, u128, usize) {
            let found = ports.iter().map(|&port| SocketAddr::from(([127, 0, 0, 1], port))).collect();
            let (start, mut dialed) = (Instant::now(), 0);
            let dial = |address: SocketAddr| {
                dialed += 1;
                async move {
                    sleep(Duration::from_millis(address.port().into())).await;
                    if address.port().is_multiple_of(2) { Ok(address.port()) } else { Err(()) }
                }
            };
            let winner = race(found, dial, || sleep(STAGGER)).await;
            let winner = winner.map_err(|fault| fault.map(|(address, ())| address.port()));
            (winner, start.elapsed().as_millis(), dialed)
        }

        #[tokio::test(start_paused = true)]
        async fn first_connection_wins() {
            assert_eq!(raced(&[100, 10]).await, (Ok(100), 100, 1), "the second never begins");
            assert_eq!(raced(&[60_000, 100]).await, (Ok(100), 350, 2));
            assert_eq!(raced(&[400, 200]).await, (Ok(400), 400, 2));
            assert_eq!(raced(&[60_000, 60_000, 60_000, 2]).await, (Ok(2), 752, 4));
        }

        #[tokio::test(start_paused = true)]
        async fn failed_attempt_starts_the_next_at_once() {
            assert_eq!(raced(&[11, 21, 30]).await, (Ok(30), 62, 3));
            assert_eq!(raced(&[301, 1]).await, (Err(Some(301)), 301, 2), "a failed one is not the last word");
            assert_eq!(raced(&[]).await, (Err(None), 0, 0));
        }
    }
}
