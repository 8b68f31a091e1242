//! Blocking connects and handshakes.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use sinews_proto::handshake::{ClientRequest, ClientStep};
use socket2::{Domain, SockRef, Socket, Type};

use crate::Error;

/// Connects to a server on this machine.
pub(crate) fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    connect_with(address, None)
}

/// Connects with a receive buffer of this size, in bytes. After the connect, the kernel has offered a larger one.
pub(crate) fn connect_with(address: SocketAddr, receive_buffer: Option<usize>) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if let Some(bytes) = receive_buffer {
        socket.set_recv_buffer_size(bytes)?;
    }
    socket.set_tcp_nodelay(true)?;
    set_congestion(&socket)?;
    socket.connect(&address.into())?;
    Ok(socket.into())
}

/// Begins to connect to a server on this machine. Once the socket is writable, it is connected or has failed.
pub(crate) fn begin_to_connect(address: SocketAddr) -> io::Result<mio::net::TcpStream> {
    let stream = mio::net::TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    set_congestion(&SockRef::from(&stream))?;
    Ok(stream)
}

/// The system's default may pace (BBR does, even over loopback), and the measurement would include the
/// pacing.
fn set_congestion(socket: &Socket) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    return socket.set_tcp_congestion(CONGESTION.as_bytes());
    #[cfg(not(target_os = "linux"))]
    {
        let _ = socket;
        Ok(())
    }
}

/// Opens a WebSocket. The number determines the key.
pub(crate) fn shake_hands(stream: &mut TcpStream, path: &str, number: u64) -> Result<(), Error> {
    stream.set_read_timeout(Some(STALL_LIMIT))?;
    let mut key = [0; 16];
    // A predictable key is safe here: no proxy is between client and server.
    key[..8].copy_from_slice(&number.to_be_bytes());
    let request = ClientRequest::new("localhost", path)?;
    let mut handshake = request.start(key);
    let mut head = Vec::new();
    handshake.write_request(&mut head);
    stream.write_all(&head)?;
    let (mut answer, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        match stream.read(&mut chunk)? {
            0 => return Err("the target closed a connection during the handshake".into()),
            bytes => answer.extend_from_slice(&chunk[..bytes]),
        }
        if let ClientStep::Done(done) = handshake.read_response(&answer)? {
            if done.consumed() == answer.len() {
                return Ok(());
            }
            return Err("the target sent frames before the first request".into());
        }
    }
}

/// Congestion control of the load's sockets.
pub(crate) const CONGESTION: &str = "cubic";

/// Maximum silence of a target; a longer silence indicates lost data.
pub(crate) const STALL_LIMIT: Duration = Duration::from_secs(10);
