//! Attacks on connections with sockets: they end their connection or stream, and no other.

use sinews_server::{Cause, Config, Kind, Prepared, PublishOptions};

use super::sockets::{End, Sockets, VERSION, connect_block, serve};
use super::*;
use crate::support::{EventReceiver, HandlerEvent, post, scripted};

/// A socket that subscribes to `news`, with this configuration.
fn news(config: Config) -> (Running, EventReceiver) {
    let (route, events) = scripted(|event, cx| match event {
        HandlerEvent::Open => cx.subscribe("news").unwrap(),
        HandlerEvent::Message(_, payload) => {
            let _ = cx.send(Kind::Binary, payload);
        }
        _ => {}
    });
    let router = Router::new().websocket("/", route.with_config(config)).post("/publish", |request| {
        let message = Prepared::new(Kind::Binary, request.body().to_vec().into());
        request.topics().publish("news", &message, PublishOptions::new()).unwrap();
        Response::new(204)
    });
    (serve(router), events)
}

fn publish(running: &Running, bytes: usize) {
    let mut client = running.connect();
    client.send(post("/publish", &"x".repeat(bytes)));
    assert_eq!(client.status_line(), 204);
}

#[test]
fn rapid_resets_of_sockets_end_the_connection() {
    let (running, events) = news(Config::default());
    let mut neighbor = Sockets::new(&running);
    assert_eq!(neighbor.connect(1, "/", &[]), 200);
    assert_eq!(events.next(), HandlerEvent::Open);
    // By the client, and by the server for an error of the client.
    for (kind, payload) in [(RST_STREAM, [0, 0, 0, 8]), (WINDOW_UPDATE, [0; 4])] {
        let mut sockets = Sockets::new(&running);
        for stream in (1..1000).step_by(2) {
            let mut both = frame(HEADERS, END_HEADERS, stream, &connect_block("websocket", "/", &[VERSION]));
            both.extend(frame(kind, 0, stream, &payload));
            if std::io::Write::write_all(&mut sockets.http2.client.stream, &both).is_err() {
                break;
            }
        }
        sockets.http2.fails(11);
        // Each handler that was created has ended.
        let (mut open, mut ended) = (0, 0);
        while ended == 0 || open > ended {
            match events.next() {
                HandlerEvent::Open => open += 1,
                HandlerEvent::Close(closed) => {
                    assert_eq!(closed.cause(), Cause::Ended);
                    ended += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(open <= 201, "{open} sockets");
        neighbor.sync(1);
    }
}

#[test]
fn frames_without_content_end_the_connection_of_a_socket() {
    let (running, events) = news(Config::default());
    let floods = [
        frame(DATA, 0, 1, &[]).repeat(5000),
        // Padding alone.
        frame(DATA, 8, 1, &[3, 0, 0, 0]).repeat(5000),
        frame(PING, 0, 0, &[0; 8]).repeat(5000),
        frame(SETTINGS, 0, 0, &[]).repeat(5000),
        frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]).repeat(5000),
    ];
    for (number, flood) in floods.iter().enumerate() {
        let mut sockets = Sockets::new(&running);
        assert_eq!(sockets.connect(1, "/", &[]), 200);
        let _ = std::io::Write::write_all(&mut sockets.http2.client.stream, flood);
        sockets.http2.fails(11);
        assert_eq!(events.closed().cause(), Cause::Ended, "flood {number}");
    }
}

/// The client permits no bytes on its streams: what is queued for them is bounded.
#[test]
fn closed_windows_hold_a_bounded_queue() {
    let config = Config::default().with_max_outbound(100_000).with_high_water(50_000);
    let (running, events) = news(config);
    let mut sockets = Sockets::new(&running);
    sockets.http2.frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    for stream in [1, 3] {
        assert_eq!(sockets.connect(stream, "/", &[]), 200);
    }
    for _ in 0..20 {
        publish(&running, 10_000);
    }
    for _ in [1, 3] {
        assert_eq!(events.closed().cause(), Cause::Overflow);
    }
    // A socket that reads is served beside them.
    assert_eq!(sockets.connect(5, "/", &[]), 200);
    sockets.http2.frame(WINDOW_UPDATE, 0, 5, &[0, 0, 0x10, 0]);
    sockets.sync(5);
}

/// A window that stays closed: the write timeout ends the stream, and no other.
#[test]
fn closed_window_ends_its_stream_at_the_write_timeout() {
    let config = Config::default().with_write_timeout(Duration::from_millis(300));
    let (running, events) = news(config);
    let mut sockets = Sockets::new(&running);
    for stream in [1, 3] {
        assert_eq!(sockets.connect(stream, "/", &[]), 200);
    }
    sockets.hold(1);
    // The other stream, and the connection, need no further window, which would be late on a busy machine.
    for stream in [0, 3] {
        sockets.http2.frame(WINDOW_UPDATE, 0, stream, &1_000_000_u32.to_be_bytes());
    }
    sockets.sync(3);
    publish(&running, 70_000);
    assert_eq!(sockets.end(1), End::Reset(8), "CANCEL");
    assert!(matches!(events.closed().cause(), Cause::Expired(_)));
    assert_eq!(sockets.next(3), sinews_testkit::Reply::binary(vec![b'x'; 70_000]));
    sockets.sync(3);
}

#[test]
fn requests_of_sockets_are_checked_before_a_handler_exists() {
    let (running, events) = news(Config::default());
    let mut sockets = Sockets::new(&running);
    for (stream, field) in (1..).step_by(2).zip([
        ("connection", "upgrade"),
        ("transfer-encoding", "chunked"),
        ("sec-websocket-protocol", "a\r\nx: y"),
        ("x", "a\0"),
        ("X", "a"),
        ("host", "b"),
        ("te", "gzip"),
        (":protocol", "websocket"),
    ]) {
        sockets.request(stream, &connect_block("websocket", "/", &[VERSION, field]));
        assert_eq!(sockets.end(stream), End::Reset(1), "{field:?}");
    }
    for (stream, path) in [(21, "/\r\nx: y"), (23, "/ HTTP/1.1"), (25, ""), (27, "*")] {
        sockets.request(stream, &connect_block("websocket", path, &[VERSION]));
        assert_eq!(sockets.end(stream), End::Reset(1), "{path:?}");
    }
    assert_eq!(sockets.connect(29, "/", &[]), 200);
    // More than the window of the stream.
    for _ in 0..5 {
        sockets.http2.frame(DATA, 0, 29, &[0; 16_384]);
    }
    assert_eq!(sockets.next(29).close_code(), Some(1002), "the bytes have no mask");
    assert!(matches!(sockets.end(29), End::Reset(3) | End::Ended));
    let seen = [events.next(), events.next()];
    assert!(matches!(&seen, [HandlerEvent::Open, HandlerEvent::Close(_)]), "{seen:?}");
}

#[test]
fn sockets_of_a_connection_are_limited() {
    let (running, _events) = news(Config::default());
    let mut sockets = Sockets::new(&running);
    let streams: Vec<u32> = (0..128).map(|number| 2 * number + 1).collect();
    for &stream in &streams {
        assert_eq!(sockets.connect(stream, "/", &[]), 200);
    }
    sockets.request(257, &connect_block("websocket", "/", &[VERSION]));
    assert_eq!(sockets.end(257), End::Reset(7), "REFUSED_STREAM");
    publish(&running, 1000);
    for &stream in &streams {
        assert_eq!(sockets.next(stream), sinews_testkit::Reply::binary(vec![b'x'; 1000]));
    }
    sockets.http2.frame(RST_STREAM, 0, 3, &[0, 0, 0, 8]);
    assert_eq!(sockets.connect(259, "/", &[]), 200);
}
