//! Client and server exchange random messages, tunnels and sessions, in pieces of random size.

use sinews_http::h3::{Config, H3Connection, RequestTarget};
use sinews_testkit::Rng;

use super::support::*;

/// Passes bytes in pieces, and collects the events with joined content.
fn pass(to: &mut Side, stream: u64, bytes: &[u8], ends: bool, random: &mut Rng) -> Vec<SeenEvent> {
    let (mut seen, mut rest) = (Vec::new(), bytes);
    loop {
        let (piece, behind) = rest.split_at((1 + random.below(3000)).min(rest.len()));
        rest = behind;
        let left = to.receive_into(stream, piece, ends && rest.is_empty(), &mut seen);
        assert_eq!(left, Ok(0));
        if rest.is_empty() {
            return seen;
        }
    }
}

fn content(seen: &[SeenEvent]) -> Vec<u8> {
    seen.iter()
        .filter_map(|seen| if let SeenEvent::Data(_, data) = seen { Some(&data[..]) } else { None })
        .collect::<Vec<_>>()
        .concat()
}

#[test]
fn random_exchanges_of_both_sides_are_complete() {
    let config = Config::new().with_max_sessions(4);
    let mut random = Rng::new(7);
    let mut server = Side::of(H3Connection::server(config));
    let mut client = Side::of(H3Connection::client(config));
    let mut bytes = Vec::new();
    server.connection.write_control(&mut bytes);
    assert_eq!(pass(&mut client, 3, &bytes, false, &mut random), [SeenEvent::Settings]);
    bytes.clear();
    client.connection.write_control(&mut bytes);
    assert_eq!(pass(&mut server, 2, &bytes, false, &mut random), [SeenEvent::Settings]);
    for number in 0..300_u64 {
        let stream = 4 * number;
        let body: Vec<u8> = (0..random.below(5000)).map(|_| random.next_u64() as u8).collect();
        let value: String = (0..random.below(200)).map(|_| (b'!' + random.below(94) as u8) as char).collect();
        let fields = [("x-value", value.as_str()), ("Accept", "*/*"), ("authorization", "secret")];
        let is_tunnel = random.below(3) == 0;
        let path = format!("/{number}");
        let target = if is_tunnel {
            RequestTarget::connect("websocket", "example.com", &path)
        } else {
            RequestTarget::new("POST", "https", "example.com", &path)
        };
        let out = &mut client.out;
        client.connection.send_request(id(stream), &target, fields, false, out).expect("a new stream");
        client.connection.send_data(id(stream), &body, is_tunnel, out).expect("an open stream");
        if !is_tunnel {
            client.connection.send_trailers(id(stream), [("x-end", "1")], out).expect("an open stream");
        }
        let seen = pass(&mut server, stream, &client.sent(), true, &mut random);
        let method = if is_tunnel { "CONNECT" } else { "POST" };
        assert_eq!(seen.first(), Some(&SeenEvent::Request(stream, method.into(), path)));
        assert_eq!((content(&seen) == body, seen.last()), (true, Some(&SeenEvent::End(stream))));
        server.head(stream, 103, false);
        server.connection.send_head(id(stream), 200, fields, false, &mut server.out).expect("an open stream");
        server.connection.send_data(id(stream), &body, true, &mut server.out).expect("an open stream");
        let seen = pass(&mut client, stream, &server.sent(), true, &mut random);
        assert_eq!(seen[..2], [SeenEvent::Response(stream, 103), SeenEvent::Response(stream, 200)]);
        assert_eq!((content(&seen) == body, seen.last()), (true, Some(&SeenEvent::End(stream))));
        assert_eq!((server.connection.requests(), client.connection.requests()), (0, 0));
    }
    assert_eq!((server.signals(), client.signals()), (Vec::new(), Vec::new()));
    assert!(server.connection.memory() < 2000, "{}", server.connection.memory());
}
