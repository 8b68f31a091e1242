//! Datagrams between two processes of a hot restart.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use rustix::net::{SendFlags, sockopt};
use sinews_quic::ConnectionRoutes;

use crate::topics::mail::MailedDatagram;

/// One end of a pair of Unix sockets. The kernel's send buffer bounds the datagrams in transit; further ones are lost,
/// and QUIC repeats them. Such a pair does not report its end to a receiver, only to a sender.
#[derive(Debug)]
pub(crate) struct ProcessLink {
    socket: UnixDatagram,
    /// The other process has ended, or takes no datagrams.
    is_gone: AtomicBool,
}

/// First message, to the successor: the version of the messages. The number of the process and the key of the
/// identifiers follow.
const GREETING: &[u8] = b"sinews-quic 1 ";

/// Wait for a message before the next look whether this server or the other process has ended.
const RECEIVE_WAIT: Duration = Duration::from_millis(100);

/// Bytes of the largest head of a message: two addresses of IPv6, an optional address, and the bits of the IP header.
const HEAD_MAX: usize = 2 * 23 + 17 + 1;

/// Send buffer of each end: some hundred datagrams in transit. Linux grants at most twice `net.core.wmem_max`.
const SEND_BUFFER: usize = 2 << 20;

impl ProcessLink {
    /// Bytes of the largest message: a datagram of UDP, and its head.
    pub(crate) const MESSAGE_MAX: usize = HEAD_MAX + (1 << 16);

    /// Creates a link: this end, and that of the successor.
    pub(crate) fn pair() -> io::Result<(Self, OwnedFd)> {
        let (own, other) = UnixDatagram::pair()?;
        for end in [&own, &other] {
            sockopt::set_socket_send_buffer_size(end, SEND_BUFFER)?;
        }
        Ok((Self::from_socket(own)?, other.into()))
    }

    /// The end that the predecessor has passed.
    pub(crate) fn from_fd(socket: OwnedFd) -> io::Result<Self> {
        Self::from_socket(socket.into())
    }

    fn from_socket(socket: UnixDatagram) -> io::Result<Self> {
        socket.set_read_timeout(Some(RECEIVE_WAIT))?;
        Ok(Self { socket, is_gone: AtomicBool::new(false) })
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Relaxed)
    }

    pub(super) fn send_greeting(
        &self,
        key: [u8; ConnectionRoutes::KEY_LEN],
        generation: u8,
    ) -> io::Result<()> {
        self.socket.send(&[GREETING, &[generation], &key].concat()).map(drop)
    }

    /// Returns the key and the generation of the predecessor. `None`: it has another version, and gets no datagrams.
    pub(super) fn receive_greeting(&self) -> Option<([u8; ConnectionRoutes::KEY_LEN], u8)> {
        let mut buffer = [0; GREETING.len() + 1 + ConnectionRoutes::KEY_LEN];
        let greeting = self.socket.recv(&mut buffer).ok().and_then(|len| {
            let [generation, key @ ..] = buffer[..len].strip_prefix(GREETING)? else { return None };
            Some((key.try_into().ok()?, *generation))
        });
        if greeting.is_none() {
            self.is_gone.store(true, Ordering::Relaxed);
        }
        greeting
    }

    /// Sends a datagram that a listener of this address has received. Returns `false` if it is lost.
    pub(super) fn send(&self, to: SocketAddr, datagram: &MailedDatagram) -> bool {
        let mut message = Vec::with_capacity(HEAD_MAX + datagram.payload.len());
        write_address(&mut message, to);
        write_address(&mut message, datagram.from);
        match datagram.local {
            Some(ip) => write_ip(&mut message, ip),
            None => message.push(0),
        }
        message.push(datagram.ecn);
        message.extend_from_slice(&datagram.payload);
        self.send_message(&message)
    }

    /// Notices that the other process takes no datagrams. It ignores the empty message.
    pub(super) fn probe(&self) {
        self.send_message(&[]);
    }

    fn send_message(&self, message: &[u8]) -> bool {
        let sent = rustix::net::send(&self.socket, message, SendFlags::DONTWAIT).map_err(io::Error::from);
        if sent.as_ref().is_err_and(|error| is_end(error.kind())) {
            self.is_gone.store(true, Ordering::Relaxed);
        }
        sent.is_ok()
    }

    /// Receives a datagram, and the address of its listener. `None`: none has arrived for a while, or the other process
    /// has ended.
    pub(super) fn receive(&self, buffer: &mut [u8]) -> Option<(SocketAddr, MailedDatagram)> {
        match self.socket.recv(buffer) {
            Ok(len) => read_message(&buffer[..len]),
            Err(error) => {
                let is_silence = matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                );
                if is_silence {
                    self.probe();
                } else {
                    self.is_gone.store(true, Ordering::Relaxed);
                }
                None
            }
        }
    }
}

/// Whether a send fails since the other process has closed its end. Other errors pass: a full buffer, a lack of memory,
/// or a message that exceeds the buffer.
const fn is_end(error: ErrorKind) -> bool {
    matches!(
        error,
        ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::BrokenPipe
            | ErrorKind::NotConnected
    )
}

fn write_ip(out: &mut Vec<u8>, ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => {
            out.push(4);
            out.extend_from_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            out.push(6);
            out.extend_from_slice(&ip.octets());
        }
    }
}

fn write_address(out: &mut Vec<u8>, address: SocketAddr) {
    write_ip(out, address.ip());
    out.extend_from_slice(&address.port().to_be_bytes());
    if let SocketAddr::V6(address) = address {
        out.extend_from_slice(&address.scope_id().to_be_bytes());
    }
}

fn take<const N: usize>(input: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = input.split_first_chunk::<N>()?;
    *input = rest;
    Some(*taken)
}

/// Reads an optional address.
fn read_ip(input: &mut &[u8]) -> Option<Option<IpAddr>> {
    match take::<1>(input)? {
        [0] => Some(None),
        [4] => Some(Some(Ipv4Addr::from(take::<4>(input)?).into())),
        [6] => Some(Some(Ipv6Addr::from(take::<16>(input)?).into())),
        _ => None,
    }
}

fn read_address(input: &mut &[u8]) -> Option<SocketAddr> {
    let ip = read_ip(input)??;
    let port = u16::from_be_bytes(take(input)?);
    Some(match ip {
        IpAddr::V4(_) => (ip, port).into(),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, u32::from_be_bytes(take(input)?)).into(),
    })
}

fn read_message(mut input: &[u8]) -> Option<(SocketAddr, MailedDatagram)> {
    let (to, from) = (read_address(&mut input)?, read_address(&mut input)?);
    let local = read_ip(&mut input)?;
    let [ecn] = take(&mut input)?;
    let payload = Bytes::copy_from_slice(input);
    Some((to, MailedDatagram { listener: 0, payload, from, local, ecn }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_keep_their_addresses() {
        let (own, other) = ProcessLink::pair().unwrap();
        let other = ProcessLink::from_fd(other).unwrap();
        own.send_greeting([7; 16], 255).unwrap();
        assert_eq!(other.receive_greeting(), Some(([7; 16], 255)));
        let scoped = SocketAddrV6::new("fe80::1".parse().unwrap(), 443, 0, 3).into();
        let mut buffer = vec![0; ProcessLink::MESSAGE_MAX];
        for (to, from, local, len) in [
            ("0.0.0.0:443", "192.0.2.1:5".parse().unwrap(), Some("192.0.2.2".parse().unwrap()), 1),
            ("[::]:443", scoped, Some("2001:db8::1".parse().unwrap()), 65_507),
            ("127.0.0.1:1", "192.0.2.1:65535".parse().unwrap(), None, 0),
        ] {
            let to = to.parse().unwrap();
            let sent = MailedDatagram { listener: 3, payload: vec![9; len].into(), from, local, ecn: 2 };
            assert!(own.send(to, &sent));
            let (listener, received) = other.receive(&mut buffer).unwrap();
            assert_eq!((listener, received.from, received.local, received.ecn), (to, from, local, 2));
            assert_eq!(received.payload, sent.payload);
        }
        for invalid in [&b""[..], &[4, 1, 2, 3, 4, 0], &[9; 30], &[6; 20]] {
            assert!(read_message(invalid).is_none());
        }
    }

    #[test]
    fn full_link_loses_datagrams_and_ended_process_is_noticed() {
        let (own, other) = ProcessLink::pair().unwrap();
        let address = "127.0.0.1:1".parse().unwrap();
        let datagram =
            MailedDatagram { listener: 0, payload: vec![0; 1200].into(), from: address, local: None, ecn: 0 };
        while own.send(address, &datagram) {}
        assert!(!own.is_gone(), "the other process is slow");
        drop(other);
        own.probe();
        assert!(own.is_gone() && !own.send(address, &datagram));
    }

    /// The system reports a message that exceeds the send buffer as an error of this message.
    #[test]
    fn datagram_that_cannot_be_sent_leaves_the_link() {
        let (own, other) = ProcessLink::pair().unwrap();
        let other = ProcessLink::from_fd(other).unwrap();
        let mut buffer = vec![0; ProcessLink::MESSAGE_MAX];
        let send = |len| {
            let from = "192.0.2.1:5".parse().unwrap();
            let payload = vec![0; len].into();
            own.send(from, &MailedDatagram { listener: 0, payload, from, local: None, ecn: 0 })
        };
        assert!(!send(8 * SEND_BUFFER) && !own.is_gone());
        assert!(send(1200));
        assert_eq!(other.receive(&mut buffer).unwrap().1.payload.len(), 1200);
    }

    #[test]
    fn receiver_notices_the_end_of_a_silent_process() {
        let (own, other) = ProcessLink::pair().unwrap();
        let mut buffer = vec![0; ProcessLink::MESSAGE_MAX];
        assert!(own.receive(&mut buffer).is_none() && !own.is_gone(), "the other process is silent");
        let other = ProcessLink::from_fd(other).unwrap();
        assert!(other.receive(&mut buffer).is_none() && !other.is_gone(), "an empty message is none");
        drop(other);
        assert!(own.receive(&mut buffer).is_none() && own.is_gone());
    }

    #[test]
    fn predecessor_of_another_version_gets_no_datagrams() {
        let (own, other) = ProcessLink::pair().unwrap();
        let other = ProcessLink::from_fd(other).unwrap();
        own.socket.send(b"sinews-quic 2 and more").unwrap();
        assert_eq!(other.receive_greeting(), None);
        assert!(other.is_gone());
    }
}
