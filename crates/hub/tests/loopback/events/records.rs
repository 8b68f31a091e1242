//! Records of a stream by plain HTTP.

use super::*;

/// Appends a record to the stream `log`.
fn append(hub: &TestHub) {
    assert_eq!(of_page(hub, "POST /streams/log", None, "").status(), 200);
}

#[test]
fn records_of_a_stream_are_read_once() {
    let (_directory, hub) = hub_for_pages();
    (0..3).for_each(|_| append(&hub));
    let json = |path: &str| {
        let mut answer = of_page(&hub, &format!("GET /streams/{path}"), None, "");
        assert_eq!(answer.header("cache-control"), Some("no-store, no-transform"), "{path}");
        (answer.status(), parse(&answer.rest()))
    };
    let (status, info) = json("log/info");
    assert_eq!((status, &info["stream"], &info["groups"]), (200, &json!("log"), &json!([])));
    assert_eq!(info["partitions"][0]["end"], 3);
    for (query, offsets, next) in [
        ("", vec![0, 1, 2], 3),
        ("?offset=1&partition=0", vec![1, 2], 3),
        ("?offset=2&bytes=1", vec![2], 3),
        ("?offset=3", vec![], 3),
    ] {
        let (status, answer) = json(&format!("log/records{query}"));
        let records = answer["records"].as_array().unwrap();
        let found: Vec<u64> = records.iter().map(|record| record["offset"].as_u64().unwrap()).collect();
        assert_eq!((status, found, &answer["next"], &answer["end"]), (200, offsets, &json!(next), &json!(3)));
        assert!(records.iter().all(|record| record["data"] == "1"), "{answer}");
    }
    for (path, status) in [
        ("log/records?offset=x", 400),
        ("log/records?bytes=-1", 400),
        ("log/records?partition=7", 404),
        ("log/records?partition=99999999999", 404),
        ("a..b/records", 422),
        ("secret/records", 401),
        ("a..b/info", 422),
        ("secret/info", 401),
    ] {
        assert_eq!(json(path).0, status, "{path}");
    }
    let without = TestHub::new();
    for path in ["/streams/log/info", "/streams/log/records", "/streams/log/records?follow=true"] {
        assert_eq!(without.ask(path, "").status(), 404, "{path}");
    }
}

#[test]
fn records_of_a_stream_are_followed_as_lines() {
    let (_directory, hub) = hub_for_pages();
    (0..2).for_each(|_| append(&hub));
    let follow = |query: &str| {
        let mut lines = hub.ask(&format!("/streams/log/records?follow=true{query}"), "");
        assert_eq!(
            (lines.status(), lines.header("content-type")),
            (200, Some("application/x-ndjson")),
            "{query}"
        );
        welcomed(&mut lines);
        lines
    };
    let offset = |lines: &mut BodyReader<TcpStream>| {
        let message = parse(&lines.line().unwrap());
        assert_fields(&message, json!({"op": "records", "stream": "log"}));
        message["records"]
            .as_array()
            .unwrap()
            .iter()
            .map(|record| record["offset"].as_u64().unwrap())
            .collect::<Vec<_>>()
    };
    let begin = |lines: &mut BodyReader<TcpStream>| {
        let ack = parse(&lines.line().unwrap());
        assert_fields(&ack, json!({"op": "ack", "stream": "log"}));
        ack["partitions"][0]["offset"].as_u64().unwrap()
    };
    let mut earliest = follow("&from=earliest");
    assert_eq!(begin(&mut earliest), 0);
    let mut read = Vec::new();
    while read.len() < 2 {
        read.extend(offset(&mut earliest));
    }
    assert_eq!(read, [0, 1]);
    let mut others =
        [("", 2), ("&from=latest", 2), ("&from=1&partition=0", 1), ("&time=0", 0)].map(|(query, from)| {
            let mut lines = follow(query);
            assert_eq!(begin(&mut lines), from, "{query}");
            lines
        });
    append(&hub);
    assert_eq!(offset(&mut earliest), [2]);
    for lines in &mut others {
        while offset(lines).last() != Some(&2) {}
    }
    // A consumption that cannot begin ends its response.
    let mut missing = follow("&partition=7");
    let error = parse(&missing.line().unwrap());
    assert_fields(&error, json!({"op": "error", "code": 404}));
    assert_eq!(parse(&missing.line().unwrap())["op"], "close");
    assert_eq!((missing.line(), missing.has_ended()), (None, true));
    // A reader that is served when the server stops continues elsewhere.
    hub.stop.stop();
    let close = parse(&earliest.line().unwrap());
    assert_fields(&close, json!({"op": "close", "code": 1001}));
}

#[test]
fn bad_requests_for_the_records_of_a_stream_get_a_reason() {
    let (_directory, hub) = hub_for_pages();
    for (query, reason) in [
        ("follow=yes", "`follow` must be true or false"),
        ("follow=true&from=x", "`from` must be earliest, latest or an offset"),
        ("follow=true&time=x", "`time` must be"),
        ("follow=true&from=1&time=1", "exclude each other"),
        ("follow=true&partition=x", "`partition` must be"),
        ("follow=true&group=g", "consumer group"),
    ] {
        let mut answer = of_page(&hub, &format!("GET /streams/log/records?{query}"), None, "");
        let body = answer.rest();
        assert!(answer.status() == 400 && body.contains(reason), "{query}: {body}");
    }
    assert_eq!(of_page(&hub, "GET /streams/secret/records?follow=true", None, "").status(), 401);
    let foreign = Some("https://other.example");
    assert_eq!(of_page(&hub, "GET /streams/log/records?follow=true", foreign, "").status(), 403);
}
