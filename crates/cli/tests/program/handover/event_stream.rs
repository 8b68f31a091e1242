//! A streaming response over a handover.

use std::io::Write;
use std::net::TcpStream;

use serde_json::Value;
use sinews_testkit::BodyReader;

use super::{Service, connect, post};

#[test]
fn event_stream_resumes_at_the_successor_without_a_gap() {
    let mut service = Service::start("events", "threads = 2");
    let address = service.address;
    let open = |lines: &str| -> BodyReader<TcpStream> {
        let mut stream = connect(address);
        write!(stream, "GET /topics/kept.a HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n").unwrap();
        BodyReader::new(stream)
    };
    let mut body = open("");
    for kind in ["welcome", "subscribed"] {
        assert_eq!(body.event().unwrap().kind, kind);
    }
    post(address, "kept.a", "1");
    service.restart();
    post(address, "kept.a", "2");
    let mut received = Vec::new();
    let id = loop {
        let event = body.event().expect("a close before the end");
        if event.kind == "close" {
            assert!(event.data.contains("1001"), "{event:?}");
            break event.id;
        }
        received.push(event.data);
    };
    assert!(body.event().is_none() && body.has_ended());
    post(address, "kept.a", "3");
    let mut body = open(&format!("Last-Event-ID: {id}\r\n"));
    assert_eq!(body.event().unwrap().kind, "welcome");
    let ack: Value = serde_json::from_str(&body.event().unwrap().data).unwrap();
    assert_eq!(ack["complete"], true, "{ack}");
    while received.len() < 3 {
        received.push(body.event().unwrap().data);
    }
    // The predecessor may have forwarded the second, so the successor assigns its position later.
    received.sort();
    assert_eq!(received, ["1", "2", "3"]);
}
