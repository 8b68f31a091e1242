//! A connection in steady state allocates nothing: for requests, for their answers, and for bytes of tunnels.

use std::time::Duration;

use sinews_http::h2::{Config, Event, FieldBuffer, H2Connection, PREFACE, StreamId};
use sinews_testkit::measure;

/// Handles input and answers each request. Returns the last stream.
fn exchange(
    connection: &mut H2Connection,
    fields: &mut FieldBuffer,
    input: &[u8],
    out: &mut Vec<u8>,
) -> Option<StreamId> {
    let (mut rest, mut last) = (input, None);
    while let Some(event) = connection.receive(&mut rest, fields, Duration::ZERO).expect("valid input") {
        match event {
            Event::Request { stream, head, ends } => {
                assert_eq!(head.authority(), Some("a"));
                let fields = [("Content-Type", "text/plain"), ("date", "Mon, 23 Nov 2026 12:00:00 GMT")];
                connection.send_head(stream, 200, fields, false, out).expect("an open stream");
                if ends {
                    assert_eq!(connection.send_data(stream, b"hello", true, out), Ok(5));
                }
                last = Some(stream);
            }
            Event::Data { stream, data, .. } => {
                assert_eq!(connection.send_data(stream, data, false, out), Ok(data.len()));
                connection.release(stream, data.len());
            }
            _ => {}
        }
    }
    connection.write_control(out);
    last
}

fn frame(frame_type: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_be_bytes();
    [&len[1..], &[frame_type, flags], &stream.to_be_bytes(), payload].concat()
}

#[test]
fn requests_and_tunnels_allocate_nothing_in_steady_state() {
    let mut connection = H2Connection::server(Config::new());
    let (mut fields, mut out) = (FieldBuffer::new(), Vec::with_capacity(1 << 20));
    let greeting = [&PREFACE[..], &frame(4, 0, 0, &[]), &frame(4, 1, 0, &[])].concat();
    exchange(&mut connection, &mut fields, &greeting, &mut out);
    let head = [0x83, 0x84, 0x87, 0x41, 1, b'a'];
    exchange(&mut connection, &mut fields, &frame(1, 4, 1, &head), &mut out).expect("the tunnel");
    for number in 1..1_000 {
        // Each request adds a field to the table, and each WINDOW_UPDATE returns the bytes of the answers.
        let head = [0x82, 0x84, 0x87, 0x01, 1, b'a', 0x40, 1, b'x', 1, b'y'];
        let input = [
            frame(1, 5, 2 * number + 1, &head),
            frame(0, 0, 1, b"0123456789"),
            frame(8, 0, 1, &[0, 0, 0, 10]),
            frame(8, 0, 0, &[0, 0, 0, 15]),
        ]
        .concat();
        out.clear();
        let (last, counts) = measure(|| exchange(&mut connection, &mut fields, &input, &mut out));
        assert!(last.is_some());
        // Until then tables and buffers grow to their size.
        assert!(number < 500 || counts.allocations == 0, "request {number}: {counts:?}");
    }
    assert_eq!(connection.streams(), 1);
    assert!(connection.memory() < 24 << 10, "{}", connection.memory());
}
