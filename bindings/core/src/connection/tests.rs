use sinews_proto::Role;
use sinews_proto::deflate::DeflateConfig;
use sinews_session::Cause;

use super::*;
use crate::batch::EventKind;
use crate::handshake::{negotiate_client, negotiate_server};

fn pair(config: Config, deflate: Option<DeflateConfig>) -> [Connection; 2] {
    let config = Arc::new(config.with_ping_interval(None));
    let offer = deflate.is_some().then_some("permessage-deflate");
    let (server, response) = negotiate_server(offer, deflate.clone()).unwrap();
    let client = negotiate_client(response.as_deref(), deflate).unwrap();
    [Connection::new(client, Arc::clone(&config)), Connection::new(server, config)]
}

/// Moves all queued bytes to the other end. Returns their events as text.
fn pass(from: &mut Connection, to: &mut Connection) -> Vec<(EventKind, Vec<u8>)> {
    let Some(pieces) = from.start_write() else { return Vec::new() };
    let mut bytes = pieces.concat();
    from.finish_write();
    let mut batch = Batch::new();
    let waits = to.receive(&mut bytes, &mut batch);
    assert!(!waits);
    batch.events().map(|event| (event.kind, batch.payload(event, &bytes).to_vec())).collect()
}

#[test]
fn burst_is_one_write_and_one_batch() {
    for deflate in [None, Some(DeflateConfig::new())] {
        let [mut client, mut server] = pair(Config::default(), deflate);
        for at in 0..16 {
            assert_eq!(client.send(Kind::Text, format!("message {at}").as_bytes()), Ok(Sent::Queued));
        }
        assert_eq!(client.send(Kind::Binary, &[7; 3_000]), Ok(Sent::Queued));
        assert_eq!(client.ping(b"p"), Ok(Sent::Queued));
        let events = pass(&mut client, &mut server);
        assert_eq!(events.len(), 18);
        assert_eq!(events[3], (EventKind::Text, b"message 3".to_vec()));
        assert_eq!(events[16], (EventKind::Binary, vec![7; 3_000]));
        assert_eq!(events[17], (EventKind::Ping, b"p".to_vec()));
        assert_eq!(pass(&mut server, &mut client), [(EventKind::Pong, b"p".to_vec())]);
        assert!(!client.wants_write() && client.buffered() == 0);
    }
}

#[test]
fn payloads_stay_in_the_chunk_unless_they_arrived_in_several() {
    let [mut client, mut server] = pair(Config::default(), None);
    let _ = client.send(Kind::Text, b"first").unwrap();
    let _ = client.send(Kind::Text, b"second").unwrap();
    let mut bytes = client.start_write().unwrap().concat();
    client.finish_write();
    // Within the second message.
    let mut rest = bytes.split_off(bytes.len() - 3);
    let mut batch = Batch::new();
    server.receive(&mut bytes, &mut batch);
    let events: Vec<_> = batch.events().collect();
    assert_eq!(events.len(), 1);
    assert!(!events[0].is_copied && batch.payload(events[0], &bytes) == b"first");
    batch.clear(0);
    server.receive(&mut rest, &mut batch);
    let events: Vec<_> = batch.events().collect();
    assert_eq!(events.len(), 1);
    assert!(events[0].is_copied && batch.bytes() == b"second");
    assert_eq!(batch.words(), [1, 1, 0, 6]);
}

#[test]
fn full_queue_asks_the_sender_to_slow_down_until_the_socket_took_it() {
    let config = Config::default().with_high_water(1_000).with_max_outbound(10_000);
    let [_, mut server] = pair(config, None);
    assert_eq!(server.send(Kind::Binary, &[0; 900]), Ok(Sent::Queued));
    assert_eq!(server.send(Kind::Binary, &[0; 900]), Ok(Sent::Backpressure));
    assert!(server.buffered() > 1_800);
    assert_eq!(server.start_write().unwrap().concat().len(), server.buffered());
    // One write is in flight, and the next one waits.
    assert_eq!(server.send(Kind::Binary, &[0; 10]), Ok(Sent::Backpressure));
    assert!(server.start_write().is_none() && !server.wants_write());
    assert!(server.finish_write());
    assert!(server.wants_write() && !server.finish_write());
}

#[test]
fn closing_handshake_ends_both_ends() {
    let [mut client, mut server] = pair(Config::default(), None);
    client.close(CloseCode::NORMAL, "done").unwrap();
    assert_eq!(client.send(Kind::Text, b"late"), Err(Misuse::Closing));
    pass(&mut client, &mut server);
    let closed = server.take_closed().unwrap();
    assert_eq!((closed.status(), closed.reason(), closed.cause()), (1000, "done", Cause::Peer));
    pass(&mut server, &mut client);
    let closed = client.take_closed().unwrap();
    assert_eq!((closed.status(), closed.cause()), (1000, Cause::Local));
    assert_eq!(server.action(), TransportAction::Finish);
    server.receive_end();
    assert_eq!((server.action(), server.take_closed()), (TransportAction::Drop, None));
}

#[test]
fn faults_of_the_peer_close_the_connection_with_their_code() {
    let [_, mut server] = pair(Config::default(), None);
    let mut batch = Batch::new();
    server.receive(&mut [0x81, 0x01, b'a'], &mut batch);
    assert_eq!(batch.words(), [] as [u32; 0]);
    let closed = server.take_closed().unwrap();
    assert!(matches!(closed.cause(), Cause::Fault(_)), "{closed}");
    assert_eq!(closed.status(), 1002);
    assert_eq!(server.start_write().unwrap().concat()[..4], [0x88, 27, 3, 0xea]);
}

#[test]
fn end_without_a_close_is_1006() {
    let [mut client, _] = pair(Config::default(), None);
    client.receive_end();
    assert_eq!(client.take_closed().unwrap().status(), 1006);
    assert_eq!(client.action(), TransportAction::Drop);
}

#[test]
fn timeouts_are_due_after_their_time_only() {
    let config = Arc::new(Config::default().with_ping_interval(Some(Duration::from_secs(3_600))));
    let mut server = Connection::new(Negotiated::websocket(Role::Server), config);
    let timeout = server.timeout().unwrap();
    assert!(timeout > Duration::from_secs(60), "{timeout:?}");
    server.handle_timeout();
    assert!(!server.wants_write() && server.is_open());
}

#[test]
fn partial_writes_stay_in_flight() {
    let [mut client, mut server] = pair(Config::default(), None);
    let large = vec![7; 100_000];
    for payload in [&b"first"[..], &large, b"last"] {
        assert!(server.send(Kind::Binary, payload).is_ok());
    }
    let mut received = Vec::new();
    while server.wants_write() || server.is_writing() {
        let mut permits = 1;
        let drained = server.write_with(|slices| {
            let accepted = slices[0].len().min(permits * 30_000);
            permits = 0;
            received.extend_from_slice(&slices[0][..accepted]);
            Ok::<_, ()>(accepted)
        });
        assert_eq!(drained, Ok(!server.is_writing() && !server.wants_write()));
    }
    let mut batch = Batch::new();
    client.receive(&mut received, &mut batch);
    assert_eq!(batch.events().map(|event| event.len).collect::<Vec<_>>(), [5, 100_000, 4]);
    assert_eq!(server.send(Kind::Binary, b"lost"), Ok(Sent::Queued));
    assert_eq!(server.write_with(|_| Err("reset")), Err("reset"));
    assert!(server.is_writing());
}

#[test]
fn application_answers_pings_closes_and_faults_itself() {
    let [mut client, mut server] = pair(Config::default().with_answers(false).with_pongs(false), None);
    assert_eq!(client.ping(b"p"), Ok(Sent::Queued));
    client.close(CloseCode::NORMAL, "done").unwrap();
    assert_eq!(pass(&mut client, &mut server), [(EventKind::Ping, b"p".to_vec())]);
    assert!(!server.wants_write() && server.has_closed());
    assert_eq!(server.take_closed().unwrap().reason(), "done");
    // Messages before the Close are still answered.
    assert_eq!(server.pong(b"p"), Ok(Sent::Queued));
    assert_eq!(server.send(Kind::Text, b"answer"), Ok(Sent::Queued));
    server.close_with(Some(CloseCode::NORMAL), "done").unwrap();
    let answers = [(EventKind::Pong, b"p".to_vec()), (EventKind::Text, b"answer".to_vec())];
    assert_eq!(pass(&mut server, &mut client), answers);
    assert_eq!(client.take_closed().unwrap().cause(), Cause::Local);

    let [mut client, mut server] = pair(Config::default().with_answers(false), None);
    assert_eq!(client.ping(b"p"), Ok(Sent::Queued));
    pass(&mut client, &mut server);
    assert_eq!(server.start_write().unwrap().concat(), [0x8a, 1, b'p']);
    server.finish_write();
    server.receive(&mut [0x81, 0x01, b'a'], &mut Batch::new());
    assert!(!server.wants_write() && server.is_open());
    assert_eq!(server.take_closed().unwrap().status(), 1002);
    server.close_with(None, "").unwrap();
    assert_eq!(server.start_write().unwrap().concat(), [0x88, 0]);
}

#[test]
fn compression_may_be_disabled_for_a_message() {
    let deflate = DeflateConfig::new().with_threshold(0);
    let [mut client, mut server] = pair(Config::default(), Some(deflate));
    for (enabled, first) in [(true, 0xc1), (false, 0x81), (true, 0xc1)] {
        server.set_compression(enabled);
        assert_eq!(server.send(Kind::Text, &[b'a'; 100]), Ok(Sent::Queued));
        let mut bytes = server.start_write().unwrap().concat();
        server.finish_write();
        assert_eq!(bytes[0], first);
        let mut batch = Batch::new();
        client.receive(&mut bytes, &mut batch);
        let event = batch.events().next().unwrap();
        assert_eq!(batch.payload(event, &bytes), [b'a'; 100]);
    }
}

#[test]
fn connections_without_timeouts_read_no_clock() {
    let config = Arc::new(Config::default());
    let mut server = Connection::without_timeouts(Negotiated::websocket(Role::Server), config);
    let timeout = server.timeout();
    assert_eq!(server.send(Kind::Text, b"a"), Ok(Sent::Queued));
    assert!(server.start_write().is_some() && !server.finish_write());
    assert_eq!(server.timeout(), timeout);
}
