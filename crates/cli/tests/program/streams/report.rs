//! Reports of streams at `/metrics` and on the dashboard.

use serde_json::{Value, json};
use sinews_testkit::Reply;

use super::{Client, serve};

/// The value of a metric with these labels, as text.
fn metric<'a>(text: &'a str, line: &str) -> &'a str {
    let found = text.lines().find_map(|known| known.strip_prefix(line)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("{line} in {text}"))
}

/// Bytes of a segment before its batches.
const SEGMENT_HEAD: u64 = 128;

#[test]
fn metrics_include_streams() {
    let server = serve(&["--streams-partitions", "2"]);
    for number in 0..5 {
        let answer = server.request("POST /streams/orders?partition=1 HTTP/1.1", &number.to_string());
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    let mut client = Client::at(&server, "/streams/orders");
    let ack =
        client.request(json!({ "op": "commit", "id": 1, "group": "billing", "partition": 1, "offset": 2 }));
    assert_eq!(ack["op"], "ack", "{ack}");
    let read = client.request(json!({ "op": "read", "id": 2, "partition": 1, "offset": 3 }));
    assert_eq!(read["records"].as_array().unwrap().len(), 2);
    let text = server.get("/metrics");
    let one =
        |name: &str| metric(&text, &format!("sinews_stream_{name}{{stream=\"orders\",partition=\"1\"}}"));
    assert_eq!((one("records_total"), one("read_records_total")), ("5", "2"));
    assert_eq!((one("earliest_offset"), one("next_offset"), one("failed")), ("0", "5", "0"));
    assert_eq!((one("segments"), one("pending_bytes")), ("1", "0"));
    let number = |name| one(name).parse::<u64>().unwrap();
    assert_eq!(number("written_bytes_total") + SEGMENT_HEAD, number("disk_bytes"));
    assert_eq!(one("syncs_total"), "5", "sequential syncs");
    assert!(one("sync_seconds_total").parse::<f64>().unwrap() > 0.0);
    assert_eq!(metric(&text, "sinews_streams"), "1");
    assert_eq!(metric(&text, "sinews_stream_group_lag{stream=\"orders\",group=\"billing\"}"), "3");
    assert_eq!(metric(&text, "sinews_stream_records_total{stream=\"orders\",partition=\"0\"}"), "0");
    assert!(text.contains("\nsinews_connections_accepted_total ") && text.ends_with("# EOF\n"));
}

#[test]
fn dashboard_feed_includes_streams() {
    let server = serve(&[]);
    let mut viewer = server.websocket("/dashboard/feed");
    assert!(server.request("POST /streams/orders HTTP/1.1", "x").starts_with("HTTP/1.1 200 "));
    let mut client = Client::at(&server, "/streams/orders");
    assert_eq!(client.request(json!({ "op": "commit", "id": 1, "group": "g", "offset": 0 }))["op"], "ack");
    let report = loop {
        let Some(Reply::Message(_, text)) = viewer.next() else { panic!("the feed has ended") };
        let mut message: Value = serde_json::from_slice(&text).unwrap();
        let report = message["streams"].take();
        if !report["shown"][0]["groups"].as_array().is_none_or(Vec::is_empty) {
            break report;
        }
    };
    assert_eq!(report["count"], 1);
    let mut orders = report["shown"][0].clone();
    let fields = orders.as_object_mut().unwrap();
    let bytes = fields.remove("bytes").unwrap();
    let (bytes, disk) = (bytes.as_u64().unwrap(), fields.remove("disk_bytes").unwrap());
    assert!(bytes > 0 && disk.as_u64() == Some(bytes + SEGMENT_HEAD));
    assert!(fields.remove("sync_us").unwrap().as_u64().unwrap() > 0);
    let expected = json!({
        "stream": "orders", "partitions": 1, "records": 1, "read_records": 0, "read_bytes": 0, "segments": 1,
        "pending_bytes": 0, "kept": 1, "earliest": 0, "next": 1, "syncs": 1, "groups": [["g", 1]], "group_count": 1,
    });
    assert_eq!(orders, expected);
}
