//! Connections to the first of several addresses that answers (RFC 8305, "happy eyeballs"): hooks, webhooks, key sets,
//! and a cluster's broker.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::future::{Either, select};
use futures_util::stream::FuturesUnordered;
use tokio::net::TcpStream;
use tokio::sync::{Mutex, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::background::LOOKUPS_MAX;

/// Time after which the next address is tried, too (RFC 8305 section 5).
pub(crate) const STAGGER: Duration = Duration::from_millis(250);

/// Most addresses that are tried: the last attempt begins after 4 s.
const ADDRESSES_MAX: usize = 16;

/// Returns addresses in the order in which to try them: both families alternate, beginning with the family of the
/// first, each in the system's order (RFC 8305 section 4).
pub(crate) fn ordered(found: impl IntoIterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut found = found.into_iter().peekable();
    let first_is_v4 = found.peek().is_some_and(SocketAddr::is_ipv4);
    let (first, second): (Vec<_>, Vec<_>) = found.partition(|address| address.is_ipv4() == first_is_v4);
    let mut second = second.into_iter();
    let mut ordered: Vec<SocketAddr> =
        first.into_iter().flat_map(|address| [Some(address), second.next()]).flatten().collect();
    ordered.extend(second);
    ordered
}

/// Returns the addresses for `host:port`, in the order in which to try them.
///
/// # Errors
/// The resolver's.
pub(crate) async fn resolve(name: &str) -> io::Result<Vec<SocketAddr>> {
    #[cfg(test)]
    if let Some(addresses) = tests::NAMES.lock().get(name) {
        return Ok(ordered(addresses.iter().copied()));
    }
    if let Ok(address) = name.parse() {
        return Ok(vec![address]);
    }
    let permit = LOOKUPS.acquire().await.map_err(io::Error::other)?;
    let name = name.to_owned();
    let lookup = move || {
        // As long as the resolver blocks: the caller may give up before.
        let _permit = permit;
        name.to_socket_addrs().map(ordered)
    };
    spawn_blocking(lookup).await.map_err(io::Error::other)?
}

/// This process's lookups: pool threads remain for files.
static LOOKUPS: Semaphore = Semaphore::const_new(LOOKUPS_MAX);

/// The addresses of one name. Connections that are opened at the same time share a lookup, so that a name whose servers
/// do not answer delays no others.
pub(crate) struct NameLookup {
    name: String,
    last: Mutex<Option<EndedLookup>>,
}

struct EndedLookup {
    end: Instant,
    found: Result<Vec<SocketAddr>, Arc<io::Error>>,
}

impl NameLookup {
    /// Prepares the lookups for `host:port`.
    pub(crate) fn new(name: String) -> Self {
        Self { name, last: Mutex::default() }
    }

    /// Returns the addresses in the order in which to try them.
    ///
    /// # Errors
    /// The resolver's.
    pub(crate) async fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        let asked = Instant::now();
        let mut last = self.last.lock().await;
        let shared = last.as_ref().filter(|last| last.end >= asked).map(|last| last.found.clone());
        let found = match shared {
            Some(found) => found,
            None => {
                let found = resolve(&self.name).await.map_err(Arc::new);
                *last = Some(EndedLookup { end: Instant::now(), found: found.clone() });
                found
            }
        };
        found.map_err(|error| io::Error::new(error.kind(), error))
    }
}

/// Connects to the first of these targets that answers, and returns it. The next attempt begins after [`STAGGER`], or
/// when an attempt has failed.
///
/// # Errors
/// The last error, if all attempts fail.
pub(crate) async fn connect<T>(targets: Vec<(T, SocketAddr)>) -> io::Result<(T, TcpStream)> {
    let dial = |(target, address)| async move {
        let connected = TcpStream::connect(address).await;
        connected.map(|stream| (target, stream)).map_err(|error| describe(address, &error))
    };
    race(targets.into_iter().take(ADDRESSES_MAX), dial, || sleep(STAGGER)).await
}

fn describe(address: SocketAddr, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{address}: {error}"))
}

/// Races attempts; `wait` completes when the next one begins although the last one has no result.
pub(crate) async fn race<A, T, D, W>(
    targets: impl Iterator<Item = A>,
    dial: impl Fn(A) -> D,
    wait: impl Fn() -> W,
) -> io::Result<T>
where
    D: Future<Output = io::Result<T>>,
    W: Future,
{
    let mut targets = targets.peekable();
    let mut attempts = FuturesUnordered::new();
    let mut fault = None;
    loop {
        attempts.extend(targets.next().map(&dial));
        let done = if targets.peek().is_some() {
            match select(attempts.next(), pin!(wait())).await {
                Either::Left((done, _)) => done,
                Either::Right(_) => continue,
            }
        } else {
            attempts.next().await
        };
        match done {
            Some(Ok(connection)) => return Ok(connection),
            Some(Err(error)) => fault = Some(error),
            None => return Err(fault.unwrap_or_else(|| io::Error::other("the name has no address"))),
        }
    }
}

/// Gives `host:port` these addresses in all tests of this process.
#[cfg(test)]
pub(crate) fn name_addresses(name: &str, addresses: &[SocketAddr]) {
    tests::NAMES.lock().insert(name.to_owned(), addresses.to_vec());
}

/// An address that never answers a connection, for tests: its connection queue is full.
#[cfg(test)]
pub(crate) struct SilentAddress {
    pub(crate) address: SocketAddr,
    _listener: std::os::fd::OwnedFd,
    _waiting: Vec<std::os::fd::OwnedFd>,
}

#[cfg(test)]
impl SilentAddress {
    pub(crate) fn new() -> Self {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, listen, socket_with};
        let open =
            || socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::NONBLOCK, None).unwrap();
        let listener = open();
        bind(&listener, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        listen(&listener, 0).unwrap();
        let address = SocketAddr::try_from(rustix::net::getsockname(&listener).unwrap()).unwrap();
        // Further connections than the queue has wait for ever.
        let waiting: Vec<_> = (0..4)
            .map(|_| {
                let socket = open();
                let _ = connect(&socket, &address);
                socket
            })
            .collect();
        let blocking = std::net::TcpStream::connect_timeout(&address, Duration::from_millis(50));
        assert!(blocking.is_err(), "the queue is not full");
        Self { address, _listener: listener, _waiting: waiting }
    }
}

/// Gives `host:port` two addresses, for tests: the first never answers, and the second answers one request with this
/// JSON. The thread ends with the client's connection.
#[cfg(test)]
pub(crate) fn answer_behind_silent_address(
    name: &str,
    json: &'static str,
) -> (SilentAddress, std::thread::JoinHandle<()>) {
    use std::io::{Read as _, Write as _};
    let (silent, live) = (SilentAddress::new(), std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    name_addresses(name, &[silent.address, live.local_addr().unwrap()]);
    let answering = std::thread::spawn(move || {
        let (mut stream, _) = live.accept().unwrap();
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() > 0 {
            head.push(byte[0]);
        }
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{json}", json.len()).unwrap();
        // The client closes the connection, once it has read the answer.
        let _ = stream.read_to_end(&mut head);
    });
    (silent, answering)
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeMap;
    use std::future::{pending, ready};
    use std::net::TcpListener;

    use super::*;
    use futures_util::FutureExt as _;

    /// Names of tests, in place of the resolver's.
    pub(super) static NAMES: parking_lot::Mutex<BTreeMap<String, Vec<SocketAddr>>> =
        parking_lot::Mutex::new(BTreeMap::new());

    #[test]
    fn address_families_alternate() {
        let addresses = |text: &[&str]| -> Vec<SocketAddr> {
            text.iter().map(|address| address.parse().unwrap()).collect()
        };
        let found = addresses(&["[::1]:1", "[::2]:1", "[::3]:1", "1.1.1.1:1", "2.2.2.2:1"]);
        let expected = addresses(&["[::1]:1", "1.1.1.1:1", "[::2]:1", "2.2.2.2:1", "[::3]:1"]);
        assert_eq!(ordered(found), expected);
        let found = addresses(&["1.1.1.1:1", "[::1]:1", "[::2]:1", "[::3]:1"]);
        assert_eq!(ordered(found.clone()), found);
        assert!(ordered([]).is_empty());
    }

    /// Races these results; `None` never comes. Returns the result and the attempts that have begun.
    fn raced(results: &[Option<io::Result<u32>>]) -> (Option<io::Result<u32>>, usize) {
        let (begun, waits) = (RefCell::new(0), Cell::new(0));
        let dial = |result: &Option<io::Result<u32>>| {
            *begun.borrow_mut() += 1;
            let result = result.as_ref().map(|it| it.as_ref().copied().map_err(|error| error.kind().into()));
            async move {
                match result {
                    Some(result) => result,
                    None => pending().await,
                }
            }
        };
        let wait = || {
            waits.set(waits.get() + 1);
            ready(())
        };
        let result = race(results.iter(), dial, wait).now_or_never();
        (result, begun.into_inner())
    }

    #[test]
    fn silent_and_failed_addresses_do_not_end_the_race() {
        let refused = || Some(Err(io::ErrorKind::ConnectionRefused.into()));
        let won = |results: &[_]| {
            let (result, begun) = raced(results);
            (result.map(|result| result.map_err(|error| error.kind())), begun)
        };
        assert_eq!(won(&[Some(Ok(1)), Some(Ok(2))]), (Some(Ok(1)), 1), "the second never begins");
        assert_eq!(won(&[None, Some(Ok(2))]), (Some(Ok(2)), 2));
        assert_eq!(won(&[None, refused(), None, Some(Ok(4))]), (Some(Ok(4)), 4));
        assert_eq!(won(&[refused(), refused()]), (Some(Err(io::ErrorKind::ConnectionRefused)), 2));
        assert_eq!(won(&[None, refused()]), (None, 2), "the first may answer still");
        assert_eq!(won(&[]), (Some(Err(io::ErrorKind::Other)), 0));
    }

    #[test]
    fn connections_that_wait_for_a_lookup_share_its_result() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let lookup = NameLookup::new("shared.invalid:1".to_owned());
        let addresses = |text: &str| vec![text.parse::<SocketAddr>().unwrap()];
        name_addresses("shared.invalid:1", &addresses("127.0.0.1:1"));
        runtime.block_on(async {
            let mut in_progress = lookup.last.lock().await;
            let (mut first, mut second) = (pin!(lookup.addresses()), pin!(lookup.addresses()));
            assert!(first.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none());
            *in_progress = Some(EndedLookup { end: Instant::now(), found: Ok(addresses("127.0.0.1:2")) });
            drop(in_progress);
            assert_eq!(first.await.unwrap(), addresses("127.0.0.1:2"));
            assert_eq!(second.await.unwrap(), addresses("127.0.0.1:2"));
            // A later connection looks the name up again.
            assert_eq!(lookup.addresses().await.unwrap(), addresses("127.0.0.1:1"));
        });
    }

    #[test]
    fn connection_is_to_the_address_that_answers() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (silent, live) = (SilentAddress::new(), TcpListener::bind("127.0.0.1:0").unwrap());
        let refused = {
            let closed = TcpListener::bind("127.0.0.1:0").unwrap();
            closed.local_addr().unwrap()
        };
        let targets =
            vec![("silent", silent.address), ("refused", refused), ("live", live.local_addr().unwrap())];
        let connected = async { tokio::time::timeout(Duration::from_secs(60), connect(targets)).await };
        let (target, _stream) = runtime.block_on(connected).expect("in time").unwrap();
        assert_eq!(target, "live");
        let error = runtime.block_on(connect(vec![((), refused)])).unwrap_err();
        assert!(error.to_string().starts_with(&refused.to_string()), "{error}");
    }
}
