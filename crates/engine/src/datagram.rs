mod sockets;

use std::io::{self, ErrorKind, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::{array, fmt};

use quinn_udp::{EcnCodepoint, RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use socket2::{Domain, Protocol, Socket, Type};

pub(crate) use self::sockets::DatagramSockets;

/// A UDP socket of one worker, which never blocks. One call receives several datagrams (`recvmmsg`, generic receive offload)
/// or sends several (generic segmentation offload), where the kernel can.
///
/// A loop waits until the socket is readable, and then calls [`receive`](Self::receive) until it returns `false`.
pub struct DatagramSocket {
    socket: UdpSocket,
    state: UdpSocketState,
    buffer: Box<[u8]>,
}

/// A received datagram.
#[derive(Debug)]
#[non_exhaustive]
pub struct ReceivedDatagram<'a> {
    /// The payload.
    pub payload: &'a [u8],
    /// The peer.
    pub from: SocketAddr,
    /// The local address to which the peer sent it, if the system tells.
    pub local: Option<IpAddr>,
    /// Bits of explicit congestion notification (RFC 3168).
    pub ecn: u8,
}

/// Datagrams in one send: `segment` is the size of each but the last, if there are several.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct DatagramBatch<'a> {
    destination: SocketAddr,
    payload: &'a [u8],
    segment: Option<usize>,
    source: Option<IpAddr>,
    ecn: u8,
}

impl<'a> DatagramBatch<'a> {
    /// Creates a batch of one datagram.
    #[must_use]
    pub const fn new(destination: SocketAddr, payload: &'a [u8]) -> Self {
        Self { destination, payload, segment: None, source: None, ecn: 0 }
    }

    /// Sets the size of each datagram but the last.
    #[must_use]
    pub const fn with_segment(mut self, segment: Option<usize>) -> Self {
        self.segment = segment;
        self
    }

    /// Sets the local address to send from. Default: the system chooses.
    #[must_use]
    pub const fn with_source(mut self, source: Option<IpAddr>) -> Self {
        self.source = source;
        self
    }

    /// Sets the bits of explicit congestion notification. Default: 0.
    #[must_use]
    pub const fn with_ecn(mut self, ecn: u8) -> Self {
        self.ecn = ecn;
        self
    }
}

impl DatagramSocket {
    /// Messages from one receive. A message holds up to 64 datagrams from one peer.
    const MESSAGES: usize = 8;

    /// Bytes of a message: the largest that UDP permits.
    const MESSAGE_LEN: usize = 1 << 16;

    /// Binds a socket. Several workers' sockets share the address: the kernel chooses by the addresses of both sides.
    /// As with TCP, the system's setting decides whether an unspecified IPv6 address includes IPv4. With port 0, the
    /// port is one that no other socket has.
    ///
    /// # Errors
    /// The error of the system, for example that the address is in use.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        // Linux counts a port as free for a socket that would share it.
        let is_shared = address.port() != 0;
        #[cfg(unix)]
        socket.set_reuse_port(is_shared)?;
        socket.bind(&address.into())?;
        #[cfg(unix)]
        socket.set_reuse_port(true)?;
        let socket = UdpSocket::from(socket);
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, state, buffer: vec![0; Self::MESSAGES * Self::MESSAGE_LEN].into() })
    }

    /// The local address.
    ///
    /// # Errors
    /// The error of the system.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Datagrams of one send.
    #[must_use]
    pub fn segments_max(&self) -> usize {
        self.state.max_gso_segments()
    }

    /// Receives once, and passes each datagram on, except empty ones. Returns whether more may be available.
    ///
    /// # Errors
    /// The error of the system, unless a peer can cause it, such as an unreachable port.
    pub fn receive(&mut self, mut handle: impl FnMut(ReceivedDatagram<'_>)) -> io::Result<bool> {
        let mut metas = [RecvMeta::default(); Self::MESSAGES];
        let mut chunks = self.buffer.chunks_exact_mut(Self::MESSAGE_LEN);
        let mut slices: [IoSliceMut<'_>; Self::MESSAGES] =
            array::from_fn(|_| IoSliceMut::new(chunks.next().unwrap_or_default()));
        let messages = match self.state.recv(UdpSockRef::from(&self.socket), &mut slices, &mut metas) {
            Ok(messages) => messages,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            // The error came instead of a datagram. Others may be behind it.
            Err(error) if is_harmless(&error) => return Ok(true),
            Err(error) => return Err(error),
        };
        for (slice, meta) in slices.iter().zip(&metas).take(messages) {
            for payload in slice[..meta.len].chunks(meta.stride.max(1)) {
                let ecn = meta.ecn.map_or(0, |ecn| ecn as u8);
                handle(ReceivedDatagram { payload, from: meta.addr, local: meta.dst_ip, ecn });
            }
        }
        Ok(true)
    }

    /// Sends a batch. Returns `false` if the send buffer is full: try again once the socket is writable. A datagram that the
    /// network rejects is lost, as on the way. Where the network card or the kernel takes no batch, each datagram is sent alone,
    /// and those for which the buffer has no capacity are lost.
    ///
    /// # Errors
    /// The error of the system.
    pub fn send(&self, batch: &DatagramBatch<'_>) -> io::Result<bool> {
        let Some(segment) = batch.segment.filter(|segment| (1..batch.payload.len()).contains(segment)) else {
            return self.send_once(&batch.with_segment(None));
        };
        if batch.payload.len().div_ceil(segment) <= self.segments_max() {
            match self.send_once(batch) {
                // An error of segmentation offload, after which the socket uses it no more.
                Err(_) if self.segments_max() == 1 => {}
                sent => return sent,
            }
        }
        for (at, payload) in batch.payload.chunks(segment).enumerate() {
            if !self.send_once(&DatagramBatch { payload, segment: None, ..*batch })? {
                return Ok(at > 0);
            }
        }
        Ok(true)
    }

    fn send_once(&self, batch: &DatagramBatch<'_>) -> io::Result<bool> {
        let transmit = Transmit {
            destination: batch.destination,
            ecn: EcnCodepoint::from_bits(batch.ecn),
            contents: batch.payload,
            segment_size: batch.segment,
            src_ip: batch.source,
        };
        match self.state.try_send(UdpSockRef::from(&self.socket), &transmit) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) if is_harmless(&error) || error.raw_os_error() == Some(libc::EMSGSIZE) => Ok(true),
            Err(error) => Err(error),
        }
    }
}

/// Whether a peer or the network causes the error.
fn is_harmless(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock
            | ErrorKind::Interrupted
            | ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::PermissionDenied
    )
}

impl AsFd for DatagramSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for DatagramSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl fmt::Debug for DatagramSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatagramSocket").field("socket", &self.socket).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn loopback() -> DatagramSocket {
        DatagramSocket::bind("127.0.0.1:0".parse().unwrap()).expect("a socket on loopback")
    }

    /// Receives until a number of datagrams has arrived.
    fn collect(socket: &mut DatagramSocket, count: usize) -> Vec<(Vec<u8>, SocketAddr, Option<IpAddr>, u8)> {
        let (mut seen, deadline) = (Vec::new(), Instant::now() + Duration::from_secs(60));
        while seen.len() < count && Instant::now() < deadline {
            let received = socket.receive(|datagram| {
                seen.push((datagram.payload.to_vec(), datagram.from, datagram.local, datagram.ecn));
            });
            received.expect("the socket is open");
        }
        seen
    }

    #[test]
    fn batches_arrive_as_datagrams() {
        let (mut to, from) = (loopback(), loopback());
        let (destination, source) = (to.local_address().unwrap(), from.local_address().unwrap());
        assert!(!to.receive(|_| panic!("nothing was sent")).unwrap());
        let segments = from.segments_max().min(10);
        let mut payload: Vec<u8> = (0..segments * 1000).map(|at| (at / 1000) as u8).collect();
        payload.truncate(payload.len() - 300);
        let batch = DatagramBatch::new(destination, &payload);
        let batch = batch.with_segment((segments > 1).then_some(1000)).with_ecn(2);
        assert!(from.send(&batch).expect("loopback takes it"));
        let seen = collect(&mut to, segments);
        assert_eq!(seen.iter().map(|(payload, ..)| &payload[..]).collect::<Vec<_>>().concat(), payload);
        assert_eq!(seen.len(), segments);
        for (_, peer, local, ecn) in seen {
            assert_eq!((peer, local.unwrap_or_else(|| destination.ip()), ecn), (source, destination.ip(), 2));
        }
    }

    #[test]
    fn errors_of_peers_are_no_errors_of_the_socket() {
        let mut socket = loopback();
        let closed = loopback().local_address().unwrap();
        for _ in 0..3 {
            assert!(socket.send(&DatagramBatch::new(closed, b"x")).expect("a closed port is no error"));
            socket.receive(|_| panic!("nothing was sent")).expect("a closed port is no error");
        }
        let long = vec![0; 65_530];
        assert!(socket.send(&DatagramBatch::new(closed, &long)).expect("a long datagram is lost"));
    }

    /// The kernel takes at most 64 or 128 datagrams in a batch.
    #[test]
    fn batches_that_the_kernel_rejects_are_sent_as_datagrams() {
        let (mut to, from) = (loopback(), loopback());
        let payload: Vec<u8> = (0..13_000).map(|at| (at / 100) as u8).collect();
        let batch = DatagramBatch::new(to.local_address().unwrap(), &payload).with_segment(Some(100));
        from.state
            .try_send(
                UdpSockRef::from(&from.socket),
                &Transmit {
                    destination: batch.destination,
                    ecn: None,
                    contents: &payload,
                    segment_size: Some(100),
                    src_ip: None,
                },
            )
            .expect_err("the kernel rejects the batch");
        for _ in 0..2 {
            assert!(from.send(&batch).expect("each datagram is sent alone"));
            let seen = collect(&mut to, 130);
            assert_eq!(seen.len(), 130);
            assert_eq!(seen.iter().map(|(payload, ..)| &payload[..]).collect::<Vec<_>>().concat(), payload);
        }
    }

    #[test]
    fn empty_datagrams_hide_no_others() {
        let (mut to, from) = (loopback(), loopback());
        let destination = to.local_address().unwrap();
        for _ in 0..20 {
            assert!(from.send(&DatagramBatch::new(destination, b"")).unwrap());
        }
        assert!(from.send(&DatagramBatch::new(destination, b"x")).unwrap());
        let mut seen = Vec::new();
        // Loopback delivers at once.
        while to.receive(|datagram| seen.push(datagram.payload.to_vec())).unwrap() {}
        assert_eq!(seen, [b"x"]);
    }

    #[test]
    fn unspecified_ipv6_address_includes_ipv4_as_with_tcp() {
        let any = "[::]:0".parse().unwrap();
        let Ok(tcp) = std::net::TcpListener::bind(any) else { return };
        let mut to = DatagramSocket::bind(any).expect("a socket");
        let port = to.local_address().unwrap().port();
        let tcp_port = tcp.local_addr().unwrap().port();
        if std::net::TcpStream::connect(("127.0.0.1", tcp_port)).is_err() {
            return;
        }
        let from = loopback();
        assert!(from.send(&DatagramBatch::new(([127, 0, 0, 1], port).into(), b"x")).unwrap());
        let seen = collect(&mut to, 1);
        assert_eq!(seen.len(), 1);
        // The answer leaves from the address to which the peer has sent.
        let answer = DatagramBatch::new(seen[0].1, b"y").with_source(seen[0].2);
        assert!(to.send(&answer).expect("an answer"));
        let mut from = from;
        assert_eq!(collect(&mut from, 1)[0].0, b"y");
    }

    /// Two sockets with one port would get each other's datagrams. With ports drawn independently, some of these are
    /// equal in 998 of 1,000 runs.
    #[test]
    fn free_ports_are_not_shared() {
        let sockets: Vec<_> = (0..600).map(|_| loopback()).collect();
        let ports = sockets.iter().map(|socket| socket.local_address().unwrap().port());
        let different: std::collections::HashSet<u16> = ports.collect();
        assert_eq!(different.len(), sockets.len());
    }

    #[test]
    fn workers_share_an_address() {
        let first = loopback();
        let second = DatagramSocket::bind(first.local_address().unwrap()).expect("the address is shared");
        assert_eq!(first.local_address().unwrap(), second.local_address().unwrap());
    }
}
