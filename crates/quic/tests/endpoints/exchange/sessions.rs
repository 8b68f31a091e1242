//! Sessions of WebTransport.

use std::collections::VecDeque;

use super::*;

#[test]
fn datagrams_of_a_session_are_echoed() {
    let (mut world, mut client) = connected(QuicLimits::new());
    let target = RequestTarget::connect("webtransport", "localhost", "/session");
    let session = client.ask(&target, b"", false);
    world.run(&mut client, "session", |_, client| client.responses.contains_key(&session));
    let prefix = client.http.datagram_prefix(QuicStreamId::new(session)).expect("an open session");
    client.quic.datagrams().send([prefix.as_bytes(), b"hello"].concat().into(), false).expect("datagrams");
    world.run(&mut client, "datagram", |_, client| !client.datagrams.is_empty());
    assert_eq!((&client.datagrams[..], world.app.datagrams), (&[b"hello".to_vec()][..], 1));
}

/// QUIC takes memory for each stream that the client may open: the number grows with the streams that are open.
#[test]
fn permitted_streams_of_a_session_grow_as_they_are_opened() {
    let (mut world, mut client) = connected(QuicLimits::new());
    let target = RequestTarget::connect("webtransport", "localhost", "/session");
    let session = client.ask(&target, b"", false);
    world.run(&mut client, "session", |_, client| client.responses.contains_key(&session));
    world.pass_time(&mut client);
    let memory = world.lend(|exchanges| exchanges.memory());
    let mut permitted = Vec::new();
    while permitted.last() != Some(&0) {
        let streams: Vec<StreamId> = std::iter::from_fn(|| client.quic.streams().open(Dir::Uni)).collect();
        for stream in &streams {
            // The signal, and the session.
            client.send(*stream, Bytes::from_static(b"\x40\x54\0"), false);
        }
        world.pass_time(&mut client);
        permitted.push(streams.len());
    }
    // The control stream is open, too. QUIC announces the last few of the 100 streams later.
    assert_eq!((permitted[0], permitted.iter().sum::<usize>()), (5, 95), "{permitted:?}");
    assert_eq!(world.app.session_streams.len(), 95);
    assert!(world.lend(|exchanges| exchanges.memory()) > memory + 94 * 48);
}

/// RFC 9221 section 5.3: datagrams are subject to congestion control. Few wait; the application keeps the others.
#[test]
fn datagrams_beyond_the_congestion_window_stay_with_the_application() {
    let limits = QuicLimits::new().with_datagram_send_buffer(4096);
    let (mut world, mut client) = connected(limits);
    let target = RequestTarget::connect("webtransport", "localhost", "/session");
    let session = client.ask(&target, b"", false);
    world.run(&mut client, "session", |_, client| client.responses.contains_key(&session));
    world.pass_time(&mut client);
    let session = QuicStreamId::new(session);
    let max = world.lend(|exchanges| exchanges.datagram_max(session));
    assert!((1000..1500).contains(&max), "{max}");
    let send = |world: &mut Pair, len| {
        world.lend(|exchanges| exchanges.send_datagram(session, &[b"\x02", &vec![7; len - 1]]))
    };
    assert_eq!(send(&mut world, max + 1), Ok(DatagramSend::TooLarge));
    // Without an acknowledgement of the client, the window closes.
    let mut sent = 0;
    while send(&mut world, max) == Ok(DatagramSend::Sent) {
        sent += 1;
        world.transmit();
        assert!(sent < 1000);
    }
    assert!(sent > 4, "{sent}");
    // The memory of the connection has them.
    let busy = world.lend(|exchanges| exchanges.memory());
    // The application is asked again once some have left.
    let settled = world.app.settled;
    world.pass_time(&mut client);
    assert!(world.app.settled > settled);
    let idle = world.lend(|exchanges| exchanges.memory());
    assert!(idle + 2 * max < busy, "{idle} {busy}");
    assert_eq!(send(&mut world, max), Ok(DatagramSend::Sent));
    let none = world.lend(|exchanges| exchanges.send_datagram(QuicStreamId::new(400), &[b"x"]));
    assert!(none.is_err());
}

/// Passes datagrams to the client one by one, each 10 ms: eight wait in the network, and others are lost.
fn run_slowly(world: &mut Pair, client: &mut QuicClient, done: impl Fn(&QuicClient) -> bool) -> usize {
    let mut network = VecDeque::new();
    for passed in 0..5_000 {
        if done(client) {
            return passed;
        }
        for datagram in client.transmit(world.now) {
            let datagram = BytesMut::from(&datagram[..]);
            world.server.receive(datagram, world.address, None, 0, &mut world.app, world.now);
        }
        network.extend(world.transmit());
        network.truncate(8);
        if let Some(datagram) = network.pop_front() {
            client.receive(&datagram, world.now);
        }
        world.now += Duration::from_millis(10);
        world.server.expire(&mut world.app, world.now);
        client.quic.handle_timeout(world.now);
        client.drive(world.now);
    }
    panic!("condition not met: {:?} {:?}", world.app.ends, client.lost);
}

/// QUIC sends datagrams before streams.
#[test]
fn datagrams_of_a_slow_connection_leave_capacity_to_its_streams() {
    let (mut world, mut client) = connected(QuicLimits::new());
    let target = RequestTarget::connect("webtransport", "localhost", "/session");
    let session = client.ask(&target, b"", false);
    world.run(&mut client, "session", |_, client| client.responses.contains_key(&session));
    world.app.saturated = Some(QuicStreamId::new(session));
    run_slowly(&mut world, &mut client, |client| client.datagrams.len() >= 100);
    let body = [7; 50_000];
    let stream = client.ask(&RequestTarget::new("POST", "https", "localhost", "/"), &body, true);
    let before = client.datagrams.len();
    let passed = run_slowly(&mut world, &mut client, |client| {
        client.responses.get(&stream).is_some_and(|answer| answer.2)
    });
    assert_eq!(client.responses[&stream].1, body);
    assert!(passed < 2_000, "{passed}");
    // The content takes 45 packets.
    let datagrams = client.datagrams.len() - before;
    assert!(datagrams > passed / 4, "{datagrams} of {passed}");
}

/// RFC 9221 section 5.3: datagrams are outside of flow control.
#[test]
fn datagrams_of_the_client_hide_no_unread_content() {
    let (mut world, mut client) = connected(QuicLimits::new());
    let target = RequestTarget::connect("webtransport", "localhost", "/session");
    let session = client.ask(&target, b"", false);
    world.run(&mut client, "session", |_, client| client.responses.contains_key(&session));
    world.app.pauses = true;
    let post = RequestTarget::new("POST", "https", "localhost", "/");
    let paused = client.ask(&post, &[7; 60_000], false);
    world.pass_time(&mut client);
    let memory = |world: &mut Pair| world.lend(|exchanges| exchanges.memory());
    let held = memory(&mut world);
    let prefix = client.http.datagram_prefix(QuicStreamId::new(session)).expect("an open session");
    let datagram = Bytes::from([prefix.as_bytes(), &[7; 600]].concat());
    let (sent, stream) = (200, StreamId::from(VarInt::from_u64(paused).expect("an identifier")));
    for number in 0..sent {
        client.quic.datagrams().send(datagram.clone(), false).expect("datagrams");
        if number % 2 == 0 {
            // In the same packet: a byte of DATA.
            client.send(stream, Bytes::from_static(b"\0\x01x"), false);
        }
        world.exchange(&mut client);
    }
    world.pass_time(&mut client);
    assert_eq!(world.app.datagrams, sent);
    let (before, held) = (held, memory(&mut world));
    assert!((before - 500..before + 6000).contains(&held), "{before} {held}");
    world.lend(|exchanges| exchanges.resume_reads(QuicStreamId::new(paused)));
    world.pass_time(&mut client);
    assert!(memory(&mut world) + 50_000 < before, "{before} {}", memory(&mut world));
}

/// draft-ietf-webtrans-http3 section 4.6.
#[test]
fn datagram_before_its_session_is_delivered_once_it_is_open() {
    let (mut world, mut client) = connected(QuicLimits::new());
    // The next request of the client.
    client.quic.datagrams().send(Bytes::from_static(b"\0early"), false).expect("datagrams");
    world.pass_time(&mut client);
    assert_eq!(world.app.datagrams, 0);
    let target = RequestTarget::connect("webtransport", "localhost", "/session");
    assert_eq!(client.ask(&target, b"", false), 0);
    world.run(&mut client, "datagram", |_, client| !client.datagrams.is_empty());
    assert_eq!((&client.datagrams[..], world.app.datagrams), (&[b"early".to_vec()][..], 1));
}

/// draft-ietf-webtrans-http3 section 4.6: also a stream of which only the beginning has arrived.
#[test]
fn stream_before_its_session_continues_once_it_is_open() {
    let (mut world, mut client) = connected(QuicLimits::new());
    // Stream 2 carries control frames, and stream 0 is the next request.
    let early = client.quic.streams().open(Dir::Uni).expect("a permitted stream");
    client.send(early, Bytes::from_static(b"\x40\x54\0"), false);
    world.pass_time(&mut client);
    let target = RequestTarget::connect("webtransport", "localhost", "/session");
    assert_eq!(client.ask(&target, b"", false), 0);
    world.run(&mut client, "session", |_, client| client.responses.contains_key(&0));
    assert_eq!(world.app.session_streams, [u64::from(early)]);
    client.send(early, Bytes::from_static(b"late"), true);
    world.run(&mut client, "content", |world, _| world.app.session_bytes == b"late");
}
