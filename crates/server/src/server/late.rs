//! Binds datagram sockets after a handover.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use sinews_engine::{DatagramSocket, Post};

use crate::mail::{Mail, Stop, StopLevel};

/// Sockets of a successor process, bound once its predecessor has closed its own. While both were bound, the kernel would give
/// datagrams of the predecessor's connections to this process.
pub(super) struct LateSockets {
    /// Indexes of the sockets in each loop, and their addresses.
    pub(super) addresses: Vec<(usize, SocketAddr)>,
    pub(super) posts: Arc<[Post<Mail>]>,
    pub(super) stop: Arc<StopLevel>,
}

/// Wait before the next look whether an address is free. A client repeats its first datagram later.
const LATE_INTERVAL: Duration = Duration::from_millis(10);

/// Wait before the next look after the warning.
const LATE_INTERVAL_MAX: Duration = Duration::from_secs(1);

/// Wait until a warning: a handover takes less.
const LATE_WARNING: Duration = Duration::from_secs(60);

impl LateSockets {
    /// Starts a thread that binds the sockets, if there are any.
    pub(super) fn start(self) -> io::Result<()> {
        if self.addresses.is_empty() {
            return Ok(());
        }
        thread::Builder::new().name("sinews-udp".to_owned()).spawn(|| self.bind_all()).map(drop)
    }

    /// Binds all sockets, and passes them to their threads. Waits until then, or until the server stops.
    fn bind_all(mut self) {
        let mut warns_at = Some(Instant::now() + LATE_WARNING);
        while !self.addresses.is_empty() && self.stop.read() == Stop::No {
            self.addresses.retain(|(index, address)| match bind_late(*index, *address, &self.posts) {
                Ok(()) => false,
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => true,
                Err(error) => {
                    tracing::error!(%address, %error, "cannot open the UDP address of HTTP/3");
                    false
                }
            });
            if let Some((_, address)) = self.addresses.first()
                && warns_at.take_if(|at| *at <= Instant::now()).is_some()
            {
                tracing::warn!(%address, "HTTP/3 waits for its UDP address, which another process uses");
            }
            if !self.addresses.is_empty() {
                thread::sleep(if warns_at.is_some() { LATE_INTERVAL } else { LATE_INTERVAL_MAX });
            }
        }
    }
}

/// Binds the sockets of an address for all threads. The error is [`AddrInUse`](io::ErrorKind::AddrInUse) while another
/// process has the address.
fn bind_late(index: usize, address: SocketAddr, posts: &[Post<Mail>]) -> io::Result<()> {
    // Fails as long as any other socket has the address, unlike a socket that shares it.
    drop(UdpSocket::bind(address)?);
    let sockets =
        posts.iter().map(|_| DatagramSocket::bind(address)).collect::<io::Result<Vec<DatagramSocket>>>()?;
    for (post, socket) in posts.iter().zip(sockets) {
        let mut mail = Mail::DatagramSocket(index, Box::new(socket));
        while let Err(rejected) = post.send(mail) {
            if post.is_closed() {
                break;
            }
            mail = rejected;
            thread::sleep(LATE_INTERVAL);
        }
    }
    Ok(())
}
