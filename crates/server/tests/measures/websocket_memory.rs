//! Memory of a connection.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use sinews_server::{Router, Server, WebSocketRoute};
use sinews_testkit::{idle_live_bytes, live_bytes, measure_alone};

use crate::{Echo, HANDSHAKE, Serving, backend};

/// Opens a WebSocket without heap memory on the client side.
fn open(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.write_all(HANDSHAKE).unwrap();
    let mut last = [0; 4];
    while &last != b"\r\n\r\n" {
        last.rotate_left(1);
        stream.read_exact(&mut last[3..]).unwrap();
    }
    exchange(&mut stream, 1);
    stream
}

/// Sends a binary message of zeros, at most [`LARGE`], in two fragments, and reads its echo.
fn exchange(stream: &mut TcpStream, size: usize) {
    let mut buffer = [0; LARGE + 32];
    let (first, second) = (size / 2, size - size / 2);
    // With a mask of zero the payload is unchanged.
    let head = |opcode: u8, len: usize| {
        let len = u16::try_from(len).unwrap().to_be_bytes();
        if len[0] == 0 && len[1] < 126 {
            ([opcode, 0x80 | len[1], 0, 0, 0, 0, 0, 0], 6)
        } else {
            ([opcode, 0x80 | 126, len[0], len[1], 0, 0, 0, 0], 8)
        }
    };
    for (opcode, len) in [(0x02, first), (0x80, second)] {
        let (bytes, used) = head(opcode, len);
        stream.write_all(&bytes[..used]).unwrap();
        stream.write_all(&[0; LARGE][..len]).unwrap();
    }
    let head = if size < 126 { 2 } else { 4 };
    stream.read_exact(&mut buffer[..head + size]).unwrap();
    assert_eq!(buffer[0], 0x82);
}

const LARGE: usize = 60_000;

#[test]
fn idle_websocket_takes_at_most_384_bytes() {
    let _alone = measure_alone();
    let router = Router::new().websocket("/", WebSocketRoute::new(|_| Ok(Echo)));
    let server = Server::new(router).engine(backend::engine()).threads(1);
    let server = server.listen(([127, 0, 0, 1], 0).into()).bind().unwrap();
    let serving = Serving::new(server);
    let address = serving.address;

    // Tables double, so the count goes from one power of two to another.
    let mut streams = Vec::with_capacity(MANY);
    streams.extend((0..FEW).map(|_| open(address)));
    let few = idle_live_bytes();
    streams.extend((FEW..MANY).map(|_| open(address)));
    let many = idle_live_bytes();
    let each = (many - few) / (MANY - FEW) as isize;
    assert!(each <= 384, "{each} bytes for a connection");
    assert!(each >= 100, "{each} bytes: too few, the measurement is broken");

    // A large message costs memory only while it exists.
    streams.iter_mut().for_each(|stream| exchange(stream, LARGE));
    let after = idle_live_bytes();
    assert!(after - many <= 256 << 10, "{} bytes of finished messages remain", after - many);
    println!("{each} bytes for an idle WebSocket; {} stay of {MANY} messages of {LARGE}", after - many);

    drop(streams);
    joins_and_leaves(address);
}

/// Connections that open, exchange messages and end in every way leave no memory behind.
fn joins_and_leaves(address: SocketAddr) {
    let mut steady = open(address);
    let mut base = None;
    for round in 0..10 {
        for number in 0..GUESTS {
            let mut guest = open(address);
            exchange(&mut guest, [2, 500, LARGE][number % 3]);
            match number % 5 {
                0 => drop(guest),
                1 => socket2::SockRef::from(&guest).set_linger(Some(Duration::ZERO)).unwrap(),
                2 => guest.write_all(&[0x82, 0xFE, 1, 0, 0, 0]).unwrap(),
                3 => guest.write_all(&[0x88, 0x80, 0, 0, 0, 0]).unwrap(),
                _ => guest.shutdown(std::net::Shutdown::Write).unwrap(),
            }
            let mut stranger = TcpStream::connect(address).unwrap();
            stranger.write_all(&HANDSHAKE[..number % HANDSHAKE.len()]).unwrap();
        }
        // The loop notices the ends one after the other; poll until all have ended.
        let most = base.map_or(isize::MAX, |base: isize| base + REMAINS);
        let mut turns = 0;
        while {
            exchange(&mut steady, 2);
            live_bytes()
        } > most
        {
            turns += 1;
            assert!(turns < 100_000, "round {round}: {} bytes, of {most}", live_bytes());
        }
        // In the first round tables grow; by the end of these turns its connections have ended.
        base.get_or_insert_with(|| {
            (0..2000).for_each(|_| exchange(&mut steady, 2));
            idle_live_bytes()
        });
    }
}

const GUESTS: usize = 100;

/// Allowed difference by spare buffers and tables.
const REMAINS: isize = 16 << 10;

const FEW: usize = 64;
const MANY: usize = 256;
