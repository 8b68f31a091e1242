//! Durable streams, as docs/book/src/server/streams.md describes them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::{Value, json};
use sinews_stream::record::{self, RecordBuilder, ValueKind};
use sinews_testkit::{Frame, Reply, assert_fields};

use crate::protocol::Client;
use crate::support::{Running, Socket, TIMEOUT, body};

mod crash;
mod damage;
mod deletion;
mod directory;
mod groups;
mod renewal;
mod report;
#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
pub(crate) mod store;
mod topics;

/// A server with streams in its directory, also over plain TCP.
fn serve(arguments: &[&str]) -> Running {
    let streams = ["--streams", "$DIR/streams", "--streams-listen", "127.0.0.1:0"];
    Running::serve(&[&streams, arguments].concat())
}

impl Running {
    /// The address of the plain TCP protocol.
    fn plain(&self) -> SocketAddr {
        let address = self.table.lines().find_map(|line| line.split_once("tcp://")).expect("an address").1;
        address.parse().unwrap()
    }
}

impl Client {
    /// The next `count` records, in any number of messages: partition, offset and data.
    fn records(&mut self, count: usize) -> Vec<(u64, u64, Value)> {
        let mut records = Vec::new();
        while records.len() < count {
            let reply = self.receive_message();
            assert_eq!(reply["op"], "records", "{reply}");
            for record in reply["records"].as_array().unwrap() {
                records.push((
                    reply["partition"].as_u64().unwrap(),
                    record["offset"].as_u64().unwrap(),
                    record["data"].clone(),
                ));
            }
        }
        assert_eq!(records.len(), count);
        records
    }
}

/// A client in binary messages, over either transport.
enum Binary {
    WebSocket(Box<Socket>),
    Plain(TcpStream),
}

#[derive(Debug, PartialEq)]
struct BinaryMessage {
    op: u8,
    partition: u16,
    id: u32,
    body: Vec<u8>,
}

impl BinaryMessage {
    fn number(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.body[at..at + 8].try_into().unwrap())
    }

    /// Offsets and values of batches.
    fn records(&self) -> Vec<(u64, Vec<u8>)> {
        assert_eq!(self.op, 131, "{self:?}");
        let from = self.number(0);
        let records = record::iter(&self.body[24..]).flat_map(|batch| batch.unwrap().records());
        records
            .map(|record| record.unwrap())
            .filter(|record| record.offset >= from)
            .map(|record| (record.offset, record.value.to_vec()))
            .collect()
    }
}

const ANY: u16 = u16::MAX;

impl Binary {
    fn websocket(server: &Running, stream: &str) -> Self {
        let offer = "Sec-WebSocket-Protocol: sinews.stream.v1\r\n";
        let socket = server.try_websocket(&format!("/streams/{stream}"), offer).expect("a socket");
        assert!(socket.head.contains("Sec-WebSocket-Protocol: sinews.stream.v1\r\n"));
        let mut client = Self::WebSocket(Box::new(socket));
        assert_eq!(client.receive_message().op, 128);
        client
    }

    fn plain(server: &Running, stream: &str) -> Self {
        Self::plain_at(server.plain(), stream)
    }

    fn plain_at(address: SocketAddr, stream: &str) -> Self {
        let socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        socket.set_nodelay(true).unwrap();
        let mut client = Self::Plain(socket);
        let hello = [&[1, stream.len() as u8][..], stream.as_bytes()].concat();
        client.send_message(0, 0, ANY, 7, &hello);
        let welcome = client.receive_message();
        assert_eq!((welcome.op, welcome.id), (128, 7));
        client
    }

    /// One client of each transport.
    fn both(server: &Running, stream: &str) -> [Self; 2] {
        [Self::websocket(server, stream), Self::plain(server, stream)]
    }

    fn send_message(&mut self, op: u8, flags: u8, partition: u16, id: u32, body: &[u8]) {
        assert!(self.try_send_message(op, flags, partition, id, body), "the connection is open");
    }

    fn try_send_message(&mut self, op: u8, flags: u8, partition: u16, id: u32, body: &[u8]) -> bool {
        let mut message = vec![op, flags];
        message.extend(partition.to_le_bytes());
        message.extend(id.to_le_bytes());
        message.extend(body);
        match self {
            Self::WebSocket(socket) => {
                let frame = Frame::binary(message).encode(sinews_proto::Role::Client);
                socket.stream.write_all(&frame).is_ok()
            }
            Self::Plain(stream) => {
                let len = (message.len() as u32).to_le_bytes();
                stream.write_all(&[&len[..], &message].concat()).is_ok()
            }
        }
    }

    fn receive_message(&mut self) -> BinaryMessage {
        self.try_receive_message().expect("the connection is open")
    }

    fn try_receive_message(&mut self) -> Option<BinaryMessage> {
        let message = match self {
            Self::WebSocket(socket) => match socket.next()? {
                Reply::Message(_, payload) => payload,
                Reply::Close(..) => return None,
                other => panic!("{other:?}"),
            },
            Self::Plain(stream) => {
                let mut len = [0; 4];
                stream.read_exact(&mut len).ok()?;
                let mut message = vec![0; u32::from_le_bytes(len) as usize];
                stream.read_exact(&mut message).ok()?;
                message
            }
        };
        let (head, body) = message.split_at(8);
        Some(BinaryMessage {
            op: head[0],
            partition: u16::from_le_bytes([head[2], head[3]]),
            id: u32::from_le_bytes(head[4..].try_into().unwrap()),
            body: body.to_vec(),
        })
    }

    /// Subscribes from an offset on, or with kind 4 as a member of a group.
    fn subscribe(&mut self, kind: u8, value: u64, group: &str) -> BinaryMessage {
        let body = [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &value.to_le_bytes(), group.as_bytes()].concat();
        self.send_message(2, 0, ANY, 1, &body);
        let answer = self.receive_message();
        assert_eq!((answer.op, answer.id), (130, 1), "{answer:?}");
        answer
    }

    /// The next `count` records of batches, which must end there.
    fn records(&mut self, count: usize) -> Vec<(u64, Vec<u8>)> {
        let records = self.at_least(count);
        assert_eq!(records.len(), count);
        records
    }

    /// At least `count` records, with the rest of their batch.
    fn at_least(&mut self, count: usize) -> Vec<(u64, Vec<u8>)> {
        let mut records = Vec::new();
        while records.len() < count {
            records.extend(self.receive_message().records());
        }
        records
    }
}

/// Encodes records of these values.
fn records(values: &[&[u8]]) -> Vec<u8> {
    let mut builder = RecordBuilder::new();
    for value in values {
        builder.push(1_000_000, b"key", value, ValueKind::Bytes).unwrap();
    }
    builder.finish().unwrap().into_bytes().to_vec()
}

#[test]
fn posted_records_are_read_with_get() {
    let server = serve(&[]);
    let post = |path: &str, kind: &str, text: &str| {
        server.request(&format!("POST {path} HTTP/1.1\r\nContent-Type: {kind}"), text)
    };
    let answer = post("/streams/orders?key=k%201", "text/plain", "hello");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(body(&answer), json!({"stream": "orders", "partition": 0, "offset": 0, "count": 1}));
    for (offset, ack) in [(1, "memory"), (4, "disk"), (7, "broker")] {
        let answer = post(
            &format!("/streams/orders?ack={ack}"),
            "application/x-ndjson",
            "{\"a\":1}\n\n[2]\r\n\"three\"",
        );
        assert_eq!(body(&answer), json!({"stream": "orders", "partition": 0, "offset": offset, "count": 3}));
    }
    let answer = post("/streams/orders", "application/json", " {\"b\": 2} ");
    assert_eq!(body(&answer)["offset"], 10);

    let answer = server.get("/streams/orders?from=0&max=5");
    assert!(answer.contains("Content-Type: application/x-ndjson"), "{answer}");
    let lines: Vec<Value> = answer
        .split_once("\r\n\r\n")
        .unwrap()
        .1
        .lines()
        .map(|line| {
            let mut record: Value = serde_json::from_str(line).unwrap();
            assert!(record["at"].as_u64().unwrap() > 1_700_000_000_000_000);
            record.as_object_mut().unwrap().remove("at");
            record
        })
        .collect();
    assert_eq!(
        lines,
        [
            json!({"partition": 0, "offset": 0, "key": "k 1", "data": "hello"}),
            json!({"partition": 0, "offset": 1, "data": {"a": 1}}),
            json!({"partition": 0, "offset": 2, "data": [2]}),
            json!({"partition": 0, "offset": 3, "data": "three"}),
            json!({"partition": 0, "offset": 4, "data": {"a": 1}}),
        ]
    );
    let last = server.get("/streams/orders?from=10");
    assert!(last.ends_with("\"data\":{\"b\": 2}}\n"), "{last}");
    let list = body(&server.get("/streams"));
    assert_eq!(list["streams"][0]["stream"], "orders");
    assert_eq!(list["streams"][0]["partitions"][0]["end"], 11);
}

#[test]
fn invalid_posts_and_reads_are_rejected() {
    let server = serve(&[]);
    for (request, text, status, reply) in [
        ("POST /streams/a?ack=tape", "x", 400, "ack must be"),
        ("POST /streams/a?partition=x", "x", 400, "partition must be a number"),
        ("POST /streams/a?partition=1", "x", 404, "no partition 1"),
        ("POST /streams/a?key=%4", "x", 400, "hexadecimal"),
        ("POST /streams/a.%3E", "x", 422, "wildcards"),
        ("POST /streams/a HTTP/1.1\r\nContent-Type: application/x-ndjson\r\nX: ", "{\n", 400, "line 1"),
        (
            "POST /streams/a HTTP/1.1\r\nContent-Type: application/x-sinews-records\r\nX: ",
            "{\n",
            400,
            "record",
        ),
        ("GET /streams/a?from=yesterday", "", 400, "from must be"),
        ("GET /streams/a?max=all", "", 400, "max must be"),
        ("GET /streams/a?partition=4294967295", "", 404, "partitions"),
    ] {
        let head =
            if request.contains("HTTP/1.1") { request.to_owned() } else { format!("{request} HTTP/1.1") };
        let answer = server.request(&head, text);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
        assert!(answer.contains(reply), "{request}: {answer}");
    }
    let none = Running::serve(&[]);
    for path in ["/streams", "/streams/a"] {
        let answer = none.get(path);
        assert!(answer.starts_with("HTTP/1.1 404 ") && answer.contains("--streams-directory"), "{answer}");
    }
    let refused = none.try_websocket("/streams/a", "").map(drop).unwrap_err();
    assert!(refused.starts_with("HTTP/1.1 404 "), "{refused}");
}

#[test]
fn streams_are_served_in_json() {
    let server = serve(&[]);
    let mut here = Client::at(&server, "/streams/news");
    let mut anywhere = Client::at(&server, "/ws");
    let ack = here.request(json!({"op": "append", "id": 1, "data": "one"}));
    assert_eq!(ack, json!({"op": "ack", "id": 1, "stream": "news", "partition": 0, "offset": 0, "count": 1}));
    let many = json!({"op": "append", "id": 2, "stream": "news", "ack": "memory",
        "records": [{"data": {"n": 2}, "key": "k"}, {"b64": "AP8="}]});
    assert_eq!(anywhere.request(many)["offset"], 1);
    let ack = anywhere.request(json!({"op": "consume", "id": 3, "stream": "news", "from": {"offset": 1}}));
    let places = json!([{"partition": 0, "offset": 1}]);
    assert_eq!(ack, json!({"op": "ack", "id": 3, "stream": "news", "partitions": places}));
    let received = anywhere.receive_message();
    assert_eq!(received["records"][0]["data"], json!({"n": 2}));
    assert_eq!(
        (&received["records"][0]["key"], &received["records"][1]["b64"]),
        (&json!("k"), &json!("AP8="))
    );
    assert_fields(&received, json!({"next": 3, "end": 3, "stream": "news"}));
    // Later records follow, without an acknowledgement, since no id was sent.
    here.send_message(&json!({"op": "append", "data": "four"}));
    assert_eq!(anywhere.records(1), [(0, 3, json!("four"))]);

    let read = here.request(json!({"op": "read", "id": 4, "offset": 3}));
    assert_eq!(
        (&read["op"], &read["id"], &read["records"][0]["data"]),
        (&json!("records"), &json!(4), &json!("four"))
    );
    let ack = here.request(json!({"op": "commit", "id": 5, "group": "g", "offset": 2}));
    assert_eq!(ack, json!({"op": "ack", "id": 5, "stream": "news", "partition": 0}));
    let told = here.request(json!({"op": "stream", "id": 6}));
    assert_eq!(told["groups"], json!([{"group": "g", "partitions": [{"partition": 0, "offset": 2}]}]));
    assert_eq!(anywhere.request(json!({"op": "stop", "id": 7, "stream": "news"}))["op"], "ack");
    for (reply, code) in [
        (json!({"op": "stop", "stream": "news"}), 409),
        (json!({"op": "append", "stream": "news"}), 400),
        (json!({"op": "append", "stream": "news", "data": 1, "b64": ""}), 400),
        (json!({"op": "append", "stream": "news", "data": 1, "partition": 9}), 404),
        (json!({"op": "append", "data": 1}), 400),
        (json!({"op": "append", "stream": "news", "topic": "a", "data": 1}), 400),
        (json!({"op": "publish", "topic": "a", "stream": "news", "data": 1}), 400),
        (json!({"op": "consume", "stream": "a>.>", "from": "earliest"}), 422),
        (json!({"op": "consume", "stream": "news", "from": "sometime"}), 400),
        (json!({"op": "consume", "stream": "news", "from": {"epoch": 1, "seq": 1}}), 400),
        (json!({"op": "consume", "stream": "news", "group": ""}), 400),
        (json!({"op": "commit", "stream": "news", "group": "g"}), 400),
    ] {
        let error = anywhere.request(reply.clone());
        assert_eq!((&error["op"], &error["code"]), (&json!("error"), &json!(code)), "{reply}: {error}");
    }
}

#[test]
fn unacknowledged_producer_receives_rejections() {
    let server = serve(&["--streams-segment-bytes", "64k"]);
    let mut json = Client::at(&server, "/streams/s");
    let mut binary = Binary::plain(&server, "s");
    let large = "x".repeat(40_000);
    let taken = json.request(json!({"op": "append", "id": 1, "ack": "none", "data": large}));
    assert_eq!(taken, json!({"op": "ack", "id": 1, "stream": "s", "count": 1}), "no offset yet");
    // The next segment cannot be created when the first one is full.
    std::fs::remove_dir_all(server.directory.path("streams/streams/s/0")).unwrap();
    let failed = |received: &Value, id: Value| {
        assert_fields(received, json!({"op": "error", "code": 503, "id": id}));
    };
    // Without an id only failures are answered, including failures after acceptance.
    failed(&json.request(json!({"op": "append", "data": large})), Value::Null);
    failed(&json.request(json!({"op": "append", "id": 2, "ack": "none", "data": "x"})), json!(2));
    binary.send_message(1, 0, ANY, 3, &records(&[b"x"]));
    assert_error(&binary.receive_message(), 3, 503);
}

#[test]
fn damage_on_disk_is_reported_as_a_gap() {
    let server = serve(&[]);
    let mut json = Client::at(&server, "/streams/s");
    for batch in [json!([{"data": "a"}, {"data": "harmed"}, {"data": "c"}]), json!([{"data": "d"}])] {
        assert_eq!(json.request(json!({"op": "append", "id": 1, "records": batch}))["op"], "ack");
    }
    let path = server.directory.path("streams/streams/s/0");
    let mut files = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    let path = files.find(|path| path.extension().is_some_and(|name| name == "log")).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(6).position(|bytes| bytes == b"harmed").unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"H", at as u64).unwrap();

    assert_eq!(json.request(json!({"op": "consume", "id": 2, "from": "earliest"}))["op"], "ack");
    let received = json.receive_message();
    assert_eq!((&received["records"][0]["data"], &received["next"]), (&json!("a"), &json!(1)), "{received}");
    let gap = json!({"op": "gap", "stream": "s", "partition": 0, "from": 1, "to": 3});
    assert_eq!(json.receive_message(), gap);
    assert_eq!(json.records(1), [(0, 3, json!("d"))]);
    // A single read shows by its offsets which records are missing.
    let read = Client::at(&server, "/streams/s").request(json!({"op": "read", "id": 3, "offset": 0}));
    let offsets: Vec<_> = read["records"].as_array().unwrap().iter().map(|it| &it["offset"]).collect();
    assert_eq!((offsets, &read["next"]), (vec![&json!(0), &json!(3)], &json!(4)));
    let lines = server.get("/streams/s");
    assert!(lines.contains("\"offset\":0") && !lines.contains("\"offset\":1"), "{lines}");
    assert!(lines.contains("\"offset\":3"), "{lines}");
}

#[test]
fn catching_up_continues_into_following_without_a_gap() {
    let server = serve(&["--threads", "2"]);
    const COUNT: usize = 3_000;
    let mut producer = Binary::plain(&server, "s");
    let mut early = Client::at(&server, "/streams/s");
    assert_eq!(early.request(json!({"op": "consume", "id": 1, "from": "earliest"}))["op"], "ack");
    for number in 0..COUNT as u64 {
        let large = vec![b'x'; (number as usize * 37) % 2_000];
        let value = [&number.to_le_bytes()[..], &large].concat();
        producer.send_message(1, 0, ANY, 0, &records(&[&value]));
        if number == COUNT as u64 / 2 {
            // Readers join in the middle, while records are appended.
            for mut late in Binary::both(&server, "s") {
                late.subscribe(0, 0, "");
                let received = late.at_least(number as usize / 2);
                let offsets: Vec<u64> = received.iter().map(|record| record.0).collect();
                assert_eq!(offsets, (0..offsets.len() as u64).collect::<Vec<_>>());
            }
        }
    }
    for mut client in Binary::both(&server, "s") {
        client.subscribe(2, 5, "");
        let received = client.records(COUNT - 5);
        for (expected, (offset, value)) in (5_u64..).zip(received) {
            assert_eq!((offset, &value[..8]), (expected, &expected.to_le_bytes()[..]));
        }
    }
    let offsets: Vec<u64> = {
        let mut offsets = Vec::new();
        while offsets.len() < COUNT {
            let reply = early.receive_message();
            offsets
                .extend(reply["records"].as_array().unwrap().iter().map(|it| it["offset"].as_u64().unwrap()));
        }
        offsets
    };
    assert_eq!(offsets, (0..COUNT as u64).collect::<Vec<_>>());
}

#[test]
fn binary_messages_work_as_documented_over_both_transports() {
    let server = serve(&["--streams-partitions", "3"]);
    for (at, mut client) in Binary::both(&server, "t").into_iter().enumerate() {
        let first = at as u64 * 8;
        for (id, ack) in [(10, 1), (11, 2), (12, 3)] {
            client.send_message(1, ack, 2, id, &records(&[b"a", b"b"]));
            let answer = client.receive_message();
            assert_eq!((answer.op, answer.partition, answer.id), (129, 2, id));
            assert_eq!(answer.number(0), first + u64::from(id - 10) * 2);
            assert_eq!(answer.body[8..], 2_u32.to_le_bytes());
        }
        // Publications without acknowledgement.
        client.send_message(1, 0, 2, 13, &records(&[b"c", b"d"]));
        client.send_message(6, 0, ANY, 14, b"");
        assert_eq!(
            client.receive_message(),
            BinaryMessage { op: 134, partition: ANY, id: 14, body: Vec::new() }
        );
        let key = client_partition(&mut client);
        assert!(key < 3);

        let mut fetch = Vec::from((first + 1).to_le_bytes());
        fetch.extend(1_000_000_u32.to_le_bytes());
        client.send_message(3, 0, 2, 15, &fetch);
        let fetched = client.receive_message();
        assert_eq!((fetched.id, fetched.partition, fetched.number(0)), (15, 2, first + 1));
        assert_eq!(fetched.records()[0], (first + 1, b"b".to_vec()));

        client.send_message(4, 0, 2, 16, &[&(first + 3).to_le_bytes()[..], b"group"].concat());
        assert_eq!(
            client.receive_message(),
            BinaryMessage { op: 132, partition: 2, id: 16, body: Vec::new() }
        );
        client.send_message(5, 0, ANY, 17, &99_u32.to_le_bytes());
        assert_error(&client.receive_message(), 17, 409);
        client.subscribe(1, 0, "");
        client.send_message(2, 0, ANY, 1, &[0; 16]);
        assert_error(&client.receive_message(), 1, 409);
        client.send_message(5, 0, ANY, 18, &1_u32.to_le_bytes());
        // Records that were not readable at the subscription may arrive before the answer.
        let mut answer = client.receive_message();
        while (answer.op, answer.id) == (131, 1) {
            answer = client.receive_message();
        }
        assert_eq!((answer.op, answer.id), (133, 18));
        for (op, flags, partition, body, code) in [
            (1, 2, 2, &b"no records"[..], 400),
            (1, 2, 9, &records(&[b"a"]), 404),
            (1, 7, 2, &records(&[b"a"]), 400),
            (2, 0, 1, b"", 400),
            (3, 0, 9, &[0; 12], 404),
            (4, 0, 9, b"\0\0\0\0\0\0\0\0g", 404),
            (99, 0, 0, b"", 404),
        ] {
            client.send_message(op, flags, partition, 20, body);
            assert_error(&client.receive_message(), 20, code);
        }
    }
}

/// The partition of records of one key.
fn client_partition(client: &mut Binary) -> u16 {
    client.send_message(1, 2, ANY, 1, &records(&[b"x"]));
    let first = client.receive_message();
    client.send_message(1, 2, ANY, 1, &records(&[b"x"]));
    assert_eq!(client.receive_message().partition, first.partition, "a key has one partition");
    first.partition
}

fn assert_error(received: &BinaryMessage, id: u32, code: u16) {
    assert_eq!((received.op, received.id), (255, id), "{received:?}");
    let reply = String::from_utf8_lossy(&received.body[2..]);
    assert_eq!(received.body[..2], code.to_le_bytes(), "{reply}");
}

#[test]
fn client_without_hello_is_rejected() {
    let server = serve(&[]);
    let mut stream = TcpStream::connect(server.plain()).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(&[8, 0, 0, 0, 6, 0, 0, 0, 1, 0, 0, 0]).unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert!(rest[4] == 255 && rest.ends_with(b"hello must be the first message"), "{rest:?}");
    let mut stream = TcpStream::connect(server.plain()).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(&[1, 0, 0, 0, 6]).unwrap();
    rest.clear();
    stream.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty());
}

#[test]
fn stalled_reader_uses_no_memory_and_loses_no_record() {
    let server = serve(&["--threads", "1"]);
    for (mut reader, name) in Binary::both(&server, "slow").into_iter().zip(["websocket", "plain"]) {
        let mut producer = Binary::plain(&server, name);
        reader = match reader {
            Binary::WebSocket(_) => Binary::websocket(&server, name),
            Binary::Plain(_) => Binary::plain(&server, name),
        };
        reader.subscribe(0, 0, "");
        // Few are large: the reader must read within 30 seconds.
        const COUNT: usize = 40;
        for number in 0..COUNT as u64 {
            let value = [&number.to_le_bytes()[..], &[b'x'; 1_000_000]].concat();
            producer.send_message(1, 2, ANY, 1, &records(&[&value]));
            assert_eq!(producer.receive_message().op, 129, "acknowledged without readers");
        }
        let metrics = server.get("/metrics");
        let queued = metrics.lines().find_map(|line| line.strip_prefix("sinews_queued_bytes ")).unwrap();
        assert!(queued.parse::<u64>().unwrap() < 2 << 20, "{queued} bytes queued");
        for (expected, (offset, value)) in (0_u64..).zip(reader.records(COUNT)) {
            assert_eq!(
                (offset, &value[..8], value.len()),
                (expected, &expected.to_le_bytes()[..], 1_000_008)
            );
        }
    }
}
