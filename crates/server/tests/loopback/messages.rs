//! Messages over plain TCP, with the handlers of WebSockets.

use std::io::{Read, Write};

use bytes::Bytes;
use sinews_server::{
    Config, Context, Handler, Kind, Limits, Listen, MessageRoute, Misuse, Payload, Prepared, PublishOptions,
    Router, Server,
};

use crate::backend;
use crate::support::{Client, Running};

/// Echoes messages, reports callbacks, and executes some commands.
struct MessageHandler;

impl Handler for MessageHandler {
    fn open(&mut self, cx: &mut Context<'_>) {
        cx.subscribe("all").unwrap();
    }

    fn message(&mut self, payload: Payload<'_>, cx: &mut Context<'_>) {
        assert_eq!(payload.kind(), Kind::Binary);
        match &*payload {
            b"publish" => {
                assert_eq!(cx.publish("all", &Prepared::text("news"), PublishOptions::new()), Ok(1))
            }
            b"close" => cx.close(sinews_server::CloseCode::NORMAL, "enough").unwrap(),
            b"fragment" => {
                assert_eq!(cx.send_fragment(Kind::Binary, b"a", false), Err(Misuse::Prefixed));
                let _ = cx.send_ping(b"nothing leaves").unwrap();
                let _ = cx.send_text("refused").unwrap();
            }
            b"pieces" => {
                let large = Bytes::from(vec![b'x'; 100_000]);
                let pieces = [Bytes::from_static(b"head"), large.clone(), Bytes::from_static(b"-"), large];
                let _ = cx.send_pieces(Kind::Binary, &pieces).unwrap();
            }
            // After a Close the send fails.
            _ => drop(cx.send_payload(payload)),
        }
    }
}

fn serve(config: Config, limits: Limits) -> Running {
    let route = MessageRoute::new(|_| MessageHandler).with_config(config);
    let listen = Listen::tcp(([127, 0, 0, 1], 0).into()).with_messages(route);
    let server = Server::new(Router::new()).threads(1).engine(backend::engine()).limits(limits);
    Running::bound(server.listen_on(listen).bind().unwrap())
}

fn plain() -> Running {
    serve(Config::default(), Limits::default())
}

fn message(payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).unwrap();
    [&len.to_le_bytes()[..], payload].concat()
}

/// Returns the next message; `None` at the end of the stream.
fn next(client: &mut Client) -> Option<Vec<u8>> {
    let mut len = [0; 4];
    if client.stream.read(&mut len[..1]).unwrap() == 0 {
        return None;
    }
    client.stream.read_exact(&mut len[1..]).unwrap();
    let mut payload = vec![0; u32::from_le_bytes(len) as usize];
    client.stream.read_exact(&mut payload).unwrap();
    Some(payload)
}

#[test]
fn messages_of_every_size_are_echoed_however_they_are_split() {
    let server = plain();
    let mut client = server.connect();
    let payloads: Vec<Vec<u8>> = [0, 1, 3, 4, 125, 126, 65_535, 65_536, 70_000, 1_000_000]
        .map(|len| (0..len).map(|at| (at % 251) as u8).collect())
        .to_vec();
    let wire: Vec<u8> = payloads.iter().flat_map(|payload| message(payload)).collect();
    for step in [1_usize, 3, 7, 1_000, 100_000, wire.len()] {
        // Byte by byte only around headers.
        let wire = if step < 1_000 { &wire[..1_000] } else { &wire };
        let whole: Vec<&Vec<u8>> =
            payloads.iter().take(if step < 1_000 { 6 } else { payloads.len() }).collect();
        let mut writer = client.stream.try_clone().unwrap();
        std::thread::scope(|scope| {
            let end: usize = whole.iter().map(|payload| 4 + payload.len()).sum();
            scope.spawn(move || wire[..end].chunks(step).for_each(|piece| writer.write_all(piece).unwrap()));
            for payload in whole {
                assert_eq!(next(&mut client).as_ref(), Some(payload), "in pieces of {step}");
            }
        });
    }
}

#[test]
fn handler_behaves_as_with_a_websocket() {
    let server = plain();
    let mut client = server.connect();
    client.send(message(b"publish"));
    assert_eq!(next(&mut client).unwrap(), b"news");
    client.send(message(b"fragment"));
    assert_eq!(next(&mut client).unwrap(), b"refused");
    client.send(message(b"pieces"));
    let pieces = next(&mut client).unwrap();
    assert_eq!(pieces.len(), 200_005);
    assert!(pieces.starts_with(b"headxx") && pieces[100_004] == b'-');
    client.send(message(b"close")).send(message(b"too late"));
    assert_eq!(next(&mut client), None);
}

#[test]
fn message_beyond_the_limit_ends_the_stream() {
    let server = serve(Config::default().with_max_message(1_000), Limits::default());
    let mut client = server.connect();
    client.send(message(&[1; 1_000]));
    assert_eq!(next(&mut client).unwrap().len(), 1_000);
    client.send([0xff; 4]);
    assert_eq!(next(&mut client), None);
}

#[test]
fn client_that_closes_its_side_gets_pending_answers() {
    let server = plain();
    let mut client = server.connect();
    for _ in 0..100 {
        client.send(message(&[7; 10_000]));
    }
    client.half_close();
    for _ in 0..100 {
        assert_eq!(next(&mut client).unwrap().len(), 10_000);
    }
    assert_eq!(next(&mut client), None);
}

#[test]
fn stream_ends_on_stop_and_is_rejected_at_a_limit() {
    let server = serve(Config::default(), Limits::default().with_max_connections(1));
    let mut client = server.connect();
    client.send(message(b"here"));
    assert_eq!(next(&mut client).unwrap(), b"here");
    let mut beyond = server.connect();
    assert!(beyond.closes_without_response());
    server.stop.stop();
    assert_eq!(next(&mut client), None);
    drop(client);
    server.join();
}
