//! Binds datagram sockets after a handover.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use sinews_engine::{DatagramSocket, Post};

use crate::topics::mail::{Mail, Stop, StopLevel};
use crate::worker::QuicRouting;

/// Sockets of a successor process. While those of its predecessor are bound, too, the kernel gives datagrams of the
/// predecessor's connections to this process, which passes them on. Sockets of a predecessor that takes none are closed
/// first.
pub(super) struct LateSockets {
    /// Indexes of the sockets in each loop, and their addresses.
    addresses: Vec<(usize, SocketAddr)>,
    posts: Arc<[Post<Mail>]>,
    stop: Arc<StopLevel>,
    routing: Arc<QuicRouting>,
}

/// Wait before the next look whether an address is free. A client repeats its first datagram later.
const LATE_INTERVAL: Duration = Duration::from_millis(10);

/// Wait before the next look after the warning.
const LATE_INTERVAL_MAX: Duration = Duration::from_secs(1);

/// Wait until a warning: a handover takes less.
const LATE_WARNING: Duration = Duration::from_secs(60);

impl LateSockets {
    pub(super) fn new(
        addresses: Vec<(usize, SocketAddr)>,
        posts: &Arc<[Post<Mail>]>,
        stop: &Arc<StopLevel>,
        routing: &Arc<QuicRouting>,
    ) -> Self {
        let (posts, stop, routing) = (Arc::clone(posts), Arc::clone(stop), Arc::clone(routing));
        Self { addresses, posts, stop, routing }
    }

    /// Starts to receive from the predecessor, and binds the sockets; a thread binds those that must wait.
    pub(super) fn start(mut self) -> io::Result<()> {
        self.routing.receive_from_predecessor(&self.posts)?;
        if self.routing.has_predecessor() {
            // Before the predecessor closes its own: no datagram finds the port closed.
            let groups = by_port(std::mem::take(&mut self.addresses)).into_iter();
            self.addresses =
                groups.filter(|group| bind_group(group, &self.posts).is_err()).flatten().collect();
        }
        if self.addresses.is_empty() {
            return Ok(());
        }
        thread::Builder::new().name("sinews-udp".to_owned()).spawn(|| self.bind_all()).map(drop)
    }

    /// Binds all sockets, and passes them to their threads. Waits until then, or until the server stops.
    fn bind_all(self) {
        let mut warns_at = Some(Instant::now() + LATE_WARNING);
        let mut groups = by_port(self.addresses);
        while !groups.is_empty() && self.stop.read() == Stop::No {
            groups.retain(|group| {
                let addresses = group.iter().map(|(_, address)| *address);
                let taken = addresses
                    .filter(|_| !self.routing.has_predecessor())
                    .find_map(|address| Some((address, taken(address)?)));
                let unbound = taken.or_else(|| bind_group(group, &self.posts).err());
                if let Some((address, error)) = &unbound
                    // Other errors are none of a handover.
                    && warns_at.take_if(|at| *at <= Instant::now() || !is_taken(error)).is_some()
                {
                    tracing::warn!(%address, %error, "HTTP/3 cannot open its UDP address yet; it retries");
                }
                unbound.is_some()
            });
            if !groups.is_empty() {
                thread::sleep(if warns_at.is_some() { LATE_INTERVAL } else { LATE_INTERVAL_MAX });
            }
        }
    }
}

/// Groups addresses by their port. An unspecified address overlaps with others of its port: those of a group are bound
/// together, once all of them are free, since a bound one would look like one of another process.
fn by_port(mut addresses: Vec<(usize, SocketAddr)>) -> Vec<Vec<(usize, SocketAddr)>> {
    addresses.sort_by_key(|(_, address)| address.port());
    addresses.chunk_by(|(_, a), (_, b)| a.port() == b.port()).map(<[_]>::to_vec).collect()
}

/// The error of an address that any socket has, or one that overlaps with it. Other errors appear again as the address
/// is bound.
fn taken(address: SocketAddr) -> Option<io::Error> {
    // Fails as long as any other socket has the address, unlike a socket that shares it.
    UdpSocket::bind(address).err().filter(is_taken)
}

fn is_taken(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrInUse
}

/// Binds the sockets of a group for all threads, and passes them on.
///
/// # Errors
/// An address that cannot be bound, such as one that another process has taken since it was free: none of the group is
/// bound then.
fn bind_group(group: &[(usize, SocketAddr)], posts: &[Post<Mail>]) -> Result<(), (SocketAddr, io::Error)> {
    let mut bound = Vec::new();
    for (index, address) in group {
        let sockets = posts.iter().map(|_| DatagramSocket::bind(*address));
        let sockets: io::Result<Vec<DatagramSocket>> = sockets.collect();
        bound.push((*index, sockets.map_err(|error| (*address, error))?));
    }
    for (index, sockets) in bound {
        posts.iter().zip(sockets).for_each(|(post, socket)| pass_socket(index, socket, post));
    }
    Ok(())
}

/// Passes a socket to its thread, unless that has ended.
fn pass_socket(index: usize, socket: DatagramSocket, post: &Post<Mail>) {
    let mut mail = Mail::DatagramSocket(index, Box::new(socket));
    while let Err(rejected) = post.send(mail) {
        if post.is_closed() {
            break;
        }
        mail = rejected;
        thread::sleep(LATE_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use sinews_engine::{App, CloseReason, ConnId, ConnectionOrigin, Engine, EngineConfig, Flow, Io};

    use super::*;

    /// Receives sockets.
    #[derive(Default)]
    struct Collect(Vec<usize>);

    impl App for Collect {
        type Chain = io::Cursor<Vec<u8>>;
        type Mail = Mail;

        fn accepted(&mut self, _: &mut Io, _: ConnId, _: ConnectionOrigin) {}
        fn received(&mut self, _: &mut Io, _: ConnId, _: &mut [u8]) -> Flow {
            Flow::Continue
        }
        fn ended(&mut self, _: &mut Io, _: ConnId) {}
        fn start_send(&mut self, _: ConnId) -> Option<Self::Chain> {
            None
        }
        fn finish_send(&mut self, _: &mut Io, _: ConnId, _: Self::Chain, _: bool) {}
        fn closed(&mut self, _: &mut Io, _: ConnId, _: CloseReason) {}
        fn mail(&mut self, _: &mut Io, mail: &mut Vec<Mail>) {
            self.0.extend(mail.drain(..).filter_map(|mail| match mail {
                Mail::DatagramSocket(index, _) => Some(index),
                _ => None,
            }));
        }
    }

    /// A bound socket of one address looks like one of another process at the other.
    #[test]
    fn addresses_that_overlap_are_bound_together() {
        let one = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
        let port = one.local_addr().unwrap().port();
        let addresses = vec![(3, ([127, 0, 0, 1], port).into()), (4, ([0, 0, 0, 0], port).into())];
        let mut engine = Engine::<Collect>::new(EngineConfig::default(), Vec::new()).unwrap();
        let posts: Arc<[Post<Mail>]> = Arc::new([engine.post()]);
        let (stop, mut collect) = (Arc::<StopLevel>::default(), Collect::default());
        let late = LateSockets {
            addresses,
            posts,
            stop: Arc::clone(&stop),
            routing: Arc::new(QuicRouting::new(1, None)),
        };
        let binds = thread::spawn(|| late.bind_all());
        engine.turn(&mut collect, Some(3 * LATE_INTERVAL)).unwrap();
        assert!(collect.0.is_empty(), "another socket has the address");
        drop(one);
        let deadline = Instant::now() + Duration::from_secs(60);
        while collect.0.len() < 2 && Instant::now() < deadline {
            engine.turn(&mut collect, Some(LATE_INTERVAL)).unwrap();
        }
        stop.raise(Stop::Now);
        binds.join().unwrap();
        assert_eq!(collect.0, [3, 4]);
    }

    /// Another process may bind an address after it was found free.
    #[test]
    fn address_that_is_taken_again_is_bound_later() {
        let [one, other] = [(); 2].map(|()| UdpSocket::bind(("127.0.0.1", 0)).unwrap());
        let addresses = [&one, &other].map(|socket| socket.local_addr().unwrap());
        let group = [(0, addresses[0]), (1, addresses[1])];
        let mut engine = Engine::<Collect>::new(EngineConfig::default(), Vec::new()).unwrap();
        let (posts, mut collect) = ([engine.post()], Collect::default());
        drop(one);
        assert_eq!(bind_group(&group, &posts).unwrap_err().0, addresses[1]);
        assert!(taken(addresses[0]).is_none(), "all of a group are bound together");
        drop(other);
        // An address that no interface has.
        let absent = (2, SocketAddr::from(([192, 0, 2, 1], addresses[0].port())));
        let (address, error) = bind_group(&[group[0], absent], &posts).unwrap_err();
        assert_eq!((address, error.kind()), (absent.1, io::ErrorKind::AddrNotAvailable));
        assert!(taken(addresses[0]).is_none(), "a retry finds all of them unbound");
        bind_group(&group, &posts).unwrap();
        engine.turn(&mut collect, Some(LATE_INTERVAL)).unwrap();
        assert_eq!(collect.0, [0, 1]);
    }
}
