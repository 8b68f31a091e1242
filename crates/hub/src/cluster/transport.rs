//! The connection to a broker: TCP, TLS on it, or a Unix socket. Nonblocking.

use std::io::{self, Read, Write};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use futures_util::future::join_all;
use mio::event::Source;
use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::options::{BrokerAddress, ClusterOptions};
use super::sentinel::SentinelQuery;
use super::times::CONNECT_TIMEOUT;
use crate::background::Background;
use crate::outgoing::dial;

/// An established connection, and its host.
type Dialed = Result<(BrokerSocket, String), String>;

/// The socket of an established connection.
pub(super) enum BrokerSocket {
    Tcp(std::net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
}

/// A connection that a background task opens.
pub(super) struct BrokerDial(Receiver<Dialed>);

impl BrokerDial {
    /// Starts to connect, beginning with the next host in each attempt. `tls` is for sentinels. `wake` is called at the
    /// end.
    ///
    /// # Errors
    /// The task thread cannot be started.
    pub(super) fn start(
        background: &Background,
        options: &ClusterOptions,
        tls: Option<Arc<ClientConfig>>,
        attempt: usize,
        wake: impl FnOnce() + Send + 'static,
    ) -> Result<Self, String> {
        let options = options.clone();
        let (sender, receiver) = channel();
        let dial = async move {
            let late = format!("no connection to {options} within {} s", CONNECT_TIMEOUT.as_secs());
            let dialed = timeout(CONNECT_TIMEOUT, open(options, tls, attempt)).await;
            // The link may have given up.
            let _ = sender.send(dialed.unwrap_or(Err(late)));
            wake();
        };
        let spawned = background.spawn("cluster-dial", dial);
        spawned.map_err(|error| format!("task that connects to the broker: {error}"))?;
        Ok(Self(receiver))
    }

    /// The result, once there is one.
    pub(super) fn take(&self) -> Option<Dialed> {
        match self.0.try_recv() {
            Ok(dialed) => Some(dialed),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err("the task that connects has ended".to_owned())),
        }
    }
}

async fn open(options: ClusterOptions, tls: Option<Arc<ClientConfig>>, attempt: usize) -> Dialed {
    match &options.address {
        BrokerAddress::Hosts(hosts) | BrokerAddress::Cluster(hosts) => connect(rotated(hosts, attempt)).await,
        BrokerAddress::Unix(path) => {
            let stream = UnixStream::connect(path).await.and_then(UnixStream::into_std);
            let host = path.display().to_string();
            match stream {
                Ok(stream) => Ok((BrokerSocket::Unix(stream), host)),
                Err(error) => Err(format!("{host}: {error}")),
            }
        }
        BrokerAddress::Sentinels { hosts, service } => {
            let (user, password) = (options.user.as_deref(), options.password.as_deref());
            let query = SentinelQuery { service, user, password, tls };
            let primary = query.find_primary(&rotated(hosts, attempt)).await?;
            connect(vec![primary]).await
        }
    }
}

/// Returns the hosts, beginning with another one in each attempt.
fn rotated(hosts: &[String], attempt: usize) -> Vec<String> {
    let mut hosts = hosts.to_vec();
    let first = attempt.checked_rem(hosts.len()).unwrap_or(0);
    hosts.rotate_left(first);
    hosts
}

/// Connects to the first host address that answers.
async fn connect(hosts: Vec<String>) -> Dialed {
    let found = join_all(hosts.iter().map(|host| dial::resolve(host))).await;
    let (mut targets, mut problem) = (Vec::new(), "no host has an address".to_owned());
    for (host, addresses) in hosts.iter().zip(found) {
        match addresses {
            Ok(addresses) => {
                targets.extend(addresses.into_iter().map(|address| (host, address)));
            }
            Err(error) => problem = format!("{host}: {error}"),
        }
    }
    if targets.is_empty() {
        return Err(problem);
    }
    let (host, stream) = dial::connect(targets).await.map_err(|error| error.to_string())?;
    // Without it, only the latency is larger.
    let _ = stream.set_nodelay(true);
    let stream = stream.into_std().map_err(|error| format!("{host}: {error}"))?;
    Ok((BrokerSocket::Tcp(stream), host.clone()))
}

/// Returns the name in `host:port` for TLS.
///
/// # Errors
/// The host is no name for TLS.
pub(super) fn server_name(host: &str) -> Result<ServerName<'static>, String> {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let name = name.trim_start_matches('[').trim_end_matches(']').to_owned();
    ServerName::try_from(name).map_err(|error| format!("{host}: {error}"))
}

/// A connection.
pub(super) enum BrokerTransport {
    Dialing(BrokerDial),
    Plain(TcpStream),
    Unix(mio::net::UnixStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
    /// While TLS starts.
    Closed,
}

impl BrokerTransport {
    /// Registers an established connection's socket.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn register(socket: BrokerSocket, registry: &Registry, token: Token) -> io::Result<Self> {
        let both = Interest::READABLE | Interest::WRITABLE;
        Ok(match socket {
            BrokerSocket::Tcp(stream) => {
                let mut stream = TcpStream::from_std(stream);
                registry.register(&mut stream, token, both)?;
                Self::Plain(stream)
            }
            BrokerSocket::Unix(stream) => {
                let mut stream = mio::net::UnixStream::from_std(stream);
                registry.register(&mut stream, token, both)?;
                Self::Unix(stream)
            }
        })
    }

    /// Starts TLS with a host.
    ///
    /// # Errors
    /// The host is no name for TLS.
    pub(super) fn start_tls(&mut self, host: &str, config: Arc<ClientConfig>) -> Result<(), String> {
        let Self::Plain(stream) = std::mem::replace(self, Self::Closed) else {
            return Err("TLS has started already".to_owned());
        };
        let session = ClientConnection::new(config, server_name(host)?).map_err(|error| error.to_string())?;
        *self = Self::Tls(Box::new(StreamOwned::new(session, stream)));
        Ok(())
    }

    pub(super) fn has_tls(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// Returns whether bytes that were written wait in the TLS buffer for the socket.
    pub(super) fn has_output(&self) -> bool {
        matches!(self, Self::Tls(stream) if stream.conn.wants_write())
    }

    /// Returns a second handle for the socket, on which whole commands can be written: only for TCP without TLS.
    pub(super) fn second_handle(&self) -> Option<std::net::TcpStream> {
        let Self::Plain(stream) = self else { return None };
        // Without it, all commands take the way through the link's thread.
        stream.as_fd().try_clone_to_owned().ok().map(std::net::TcpStream::from)
    }

    /// The socket, to wait for it.
    pub(super) fn socket(&mut self) -> Option<&mut dyn Source> {
        match self {
            Self::Plain(stream) => Some(stream),
            Self::Unix(stream) => Some(stream),
            Self::Tls(stream) => Some(&mut stream.sock),
            Self::Dialing(_) | Self::Closed => None,
        }
    }
}

impl Read for BrokerTransport {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
            Self::Dialing(_) | Self::Closed => Ok(0),
        }
    }
}

impl Write for BrokerTransport {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
            // Its buffer is full: more is written when the socket accepts it.
            Self::Tls(stream) => match stream.write(bytes) {
                Ok(0) => Err(io::ErrorKind::WouldBlock.into()),
                written => written,
            },
            Self::Dialing(_) | Self::Closed => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Dialing(_) | Self::Plain(_) | Self::Unix(_) | Self::Closed => Ok(()),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::outgoing::dial::SilentAddress;

    fn opened(host: &str) -> Result<(SocketAddr, String), String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let dialed =
            runtime.block_on(async { timeout(CONNECT_TIMEOUT, connect(vec![host.to_owned()])).await });
        peer(dialed.unwrap())
    }

    fn peer(dialed: Dialed) -> Result<(SocketAddr, String), String> {
        match dialed? {
            (BrokerSocket::Tcp(stream), host) => Ok((stream.peer_addr().unwrap(), host)),
            (BrokerSocket::Unix(_), host) => panic!("{host}"),
        }
    }

    #[test]
    fn silent_address_of_a_name_does_not_delay_an_attempt_to_its_timeout() {
        let (silent, live) = (SilentAddress::new(), TcpListener::bind("127.0.0.1:0").unwrap());
        let name = "broker.invalid:1";
        dial::name_addresses(name, &[silent.address, live.local_addr().unwrap()]);
        assert_eq!(opened(name), Ok((live.local_addr().unwrap(), name.to_owned())));
    }

    #[test]
    fn silent_hosts_do_not_delay_an_attempt_to_its_timeout() {
        let (silent, live) = (SilentAddress::new(), TcpListener::bind("127.0.0.1:0").unwrap());
        let live = live.local_addr().unwrap().to_string();
        let hosts = [silent.address.to_string(), "name.invalid:1".to_owned(), live.clone()];
        let options = ClusterOptions::parse(&format!("nats://{}", hosts.join(","))).unwrap();
        let background = Background::default();
        for attempt in 0..hosts.len() {
            let dial = BrokerDial::start(&background, &options, None, attempt, || {}).unwrap();
            let end = Instant::now() + Duration::from_secs(60);
            let dialed = loop {
                if let Some(dialed) = dial.take() {
                    break dialed;
                }
                assert!(Instant::now() < end);
                std::thread::sleep(Duration::from_millis(1));
            };
            assert_eq!(peer(dialed).map(|(_, host)| host), Ok(live.clone()), "attempt {attempt}");
        }
        let text = opened("name.invalid:1").unwrap_err();
        assert!(text.starts_with("name.invalid:1: "), "{text}");
    }
}
