//! Handshakes that never continue.

use std::net::SocketAddr;

use bytes::BytesMut;
use sinews_quic::QuicLimits;
use sinews_testkit::measure;

use super::Pair;

/// Forged addresses: only the handshakes before Retry take memory.
#[test]
fn half_open_handshakes_take_bounded_memory_and_exclude_no_client() {
    let (mut world, roots) = Pair::new(QuicLimits::new());
    let mut forger = world.connect(roots.clone(), "h3");
    let firsts: Vec<Vec<Vec<u8>>> = (0..10_000).map(|_| forger.transmit_another(world.now)).collect();
    let ((), counts) = measure(|| {
        for (number, datagrams) in (0_u16..).zip(&firsts) {
            let [high, low] = number.to_be_bytes();
            for datagram in datagrams {
                let from = SocketAddr::from(([10, 1, high, low], 5000));
                let datagram = BytesMut::from(&datagram[..]);
                world.server.receive(datagram, from, None, 0, &mut world.app, world.now);
            }
            world.transmit();
        }
    });
    println!("{} bytes for 10,000 half-open handshakes", counts.live);
    assert_eq!((world.server.handshakes(), world.server.take_refused()), (100, 0));
    assert!(counts.live < 100 * (64 << 10), "{} bytes", counts.live);
    let mut client = world.connect(roots, "h3");
    world.run(&mut client, "handshake", |_, client| client.http.peer_settings().is_some());
}
