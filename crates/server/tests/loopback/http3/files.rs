//! Files of a directory over HTTP/1.1, HTTP/2 and HTTP/3: the same requests have the same answers.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, UNIX_EPOCH};

use quinn_proto::{StreamId, VarInt};
use sinews_http::h2;
use sinews_http::h3::RequestTarget;
use sinews_server::{Files, Monitor, Response, Router, Server};

use super::{Http3Client, tls};
use crate::backend;
use crate::support::{Client, PATIENCE, Running, patient};

const LARGE: usize = 3 << 20;

const HUGE: usize = 20 << 20;

/// A server that has HTTP/1.1 and HTTP/2 in clear text on one address, and HTTP/3 on another.
struct FileServer {
    running: Running,
    monitor: Monitor,
    quic: std::net::SocketAddr,
    roots: rustls::RootCertStore,
    directory: tempfile::TempDir,
}

/// A response with its fields by name.
#[derive(Debug, Default)]
struct FileAnswer {
    status: u16,
    fields: HashMap<String, String>,
    content: Vec<u8>,
}

impl FileAnswer {
    fn field(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(String::as_str)
    }
}

/// A client of one version, with one connection.
enum FileClient {
    Http1(Client),
    Http2(Box<Http2Files>),
    Http3(Box<Http3Client>),
}

/// A client of HTTP/2 with one request at a time.
struct Http2Files {
    stream: TcpStream,
    machine: h2::H2Connection,
    fields: h2::FieldBuffer,
}

type RequestFields<'a> = &'a [(&'a str, &'a str)];

#[derive(Clone, Copy)]
struct FileRequest<'a> {
    method: &'a str,
    path: &'a str,
    fields: RequestFields<'a>,
}

fn content() -> Vec<u8> {
    super::content::pattern(LARGE)
}

fn text() -> String {
    "the same again, ".repeat(1000)
}

impl FileServer {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = directory.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            let file = std::fs::File::options().write(true).open(path).unwrap();
            file.set_modified(UNIX_EPOCH + Duration::from_secs(784_111_777)).unwrap();
        };
        write("plain.bin", b"0123456789");
        write("large.bin", &content());
        write("made.txt", text().as_bytes());
        write("stored.txt", text().as_bytes());
        write("stored.txt.br", b"brotli");
        let files = Files::open(directory.path()).unwrap().with_revalidation(Duration::ZERO);
        let router = Router::new().files("/static", files).fixed("/fixed", Response::text("fixed"));
        let (tls, roots) = tls();
        let http = patient().with_http2_clear_text(true).with_http3(true);
        let server = Server::new(router).threads(1).http(http).engine(backend::engine());
        let any = ([127, 0, 0, 1], 0).into();
        let bound = server.listen(any).listen_tls(any, tls).bind().unwrap();
        let (monitor, quic) = (bound.monitor(), bound.addresses()[1]);
        Self { running: Running::bound(bound), monitor, quic, roots, directory }
    }

    /// A client of each version.
    fn clients(&self) -> [(&'static str, FileClient); 3] {
        let http3 = Http3Client::connect(self.quic, self.roots.clone());
        [
            ("HTTP/1.1", FileClient::Http1(self.running.connect())),
            ("HTTP/2", FileClient::Http2(Http2Files::connect(self.running.address).into())),
            ("HTTP/3", FileClient::Http3(http3.into())),
        ]
    }
}

impl FileClient {
    /// Sends GET, and receives the answer.
    fn get(&mut self, path: &str, fields: RequestFields<'_>) -> FileAnswer {
        self.call(FileRequest { method: "GET", path, fields }, || {})
    }

    /// Sends a request, and receives the answer after `wait`, until which the client reads nothing.
    fn call(&mut self, request: FileRequest<'_>, wait: impl FnOnce()) -> FileAnswer {
        let FileRequest { method, path, fields } = request;
        match self {
            Self::Http1(client) => {
                let lines: String =
                    fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
                client.send(format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n"));
                wait();
                let answer = client.answer_to(method).unwrap();
                let fields = answer.head.lines().skip(1).filter_map(|line| line.split_once(": "));
                let fields = fields.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()));
                FileAnswer { status: answer.status, fields: fields.collect(), content: answer.body }
            }
            Self::Http2(client) => client.call(request, wait),
            Self::Http3(client) => {
                let target = RequestTarget::new(method, "https", "localhost", path);
                let stream = client.quic.ask_with(&target, fields.iter().copied(), b"", true);
                client.quic.unread.insert(stream);
                client.run_until_quiet();
                wait();
                client.quic.unread.remove(&stream);
                client.quic.read(StreamId::from(VarInt::from_u64(stream).unwrap()));
                let (status, content) = client.answer(stream);
                let fields = client.quic.headers.remove(&stream).unwrap();
                FileAnswer { status, fields: fields.into_iter().collect(), content }
            }
        }
    }
}

impl Http2Files {
    fn connect(address: std::net::SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let machine = h2::H2Connection::client(h2::Config::new());
        Self { stream, machine, fields: h2::FieldBuffer::new() }
    }

    fn call(&mut self, request: FileRequest<'_>, wait: impl FnOnce()) -> FileAnswer {
        let FileRequest { method, path, fields } = request;
        let (mut out, mut answer, mut has_ended) = (Vec::new(), FileAnswer::default(), false);
        let target = RequestTarget::new(method, "http", "localhost", path);
        self.machine.write_control(&mut out);
        let request = self.machine.send_request(&target, fields.iter().copied(), true, &mut out).unwrap();
        self.stream.write_all(&out).unwrap();
        wait();
        while !has_ended {
            let mut chunk = [0; 16 << 10];
            let count = self.stream.read(&mut chunk).unwrap();
            assert!(count > 0, "the connection has ended");
            let mut input = &chunk[..count];
            while let Some(event) =
                self.machine.receive(&mut input, &mut self.fields, Duration::ZERO).unwrap()
            {
                match event {
                    h2::Event::Response { stream, head, ends, .. } if stream == request => {
                        (answer.status, has_ended) = (head.status(), ends);
                        let value = |value| String::from_utf8_lossy(value).into_owned();
                        let fields = head.fields();
                        let fields = fields.iter().map(|(name, bytes)| (name.to_owned(), value(bytes)));
                        answer.fields = fields.collect();
                    }
                    h2::Event::Data { stream, data, ends } => {
                        answer.content.extend_from_slice(data);
                        has_ended |= ends;
                        let len = data.len();
                        self.machine.release(stream, len);
                    }
                    h2::Event::Reset { .. } => panic!("the stream is reset"),
                    _ => {}
                }
            }
            out.clear();
            self.machine.write_control(&mut out);
            self.stream.write_all(&out).unwrap();
        }
        answer
    }
}

/// Fields of a request by the ETag of the file, the status, and the content.
type FileCase<'a> = (Vec<(&'a str, String)>, u16, &'a [u8]);

#[test]
fn files_have_the_same_answers_over_each_version() {
    let server = FileServer::start();
    let path = "/static/plain.bin";
    for (version, mut client) in server.clients() {
        let whole = client.get(path, &[]);
        assert_eq!((whole.status, &*whole.content), (200, &b"0123456789"[..]), "{version}");
        assert_eq!(whole.field("content-type"), Some("application/octet-stream"), "{version}");
        assert_eq!(whole.field("accept-ranges"), Some("bytes"), "{version}");
        assert_eq!(whole.field("last-modified"), Some("Sun, 06 Nov 1994 08:49:37 GMT"), "{version}");
        let etag = whole.field("etag").unwrap();
        let head = client.call(FileRequest { method: "HEAD", path, fields: &[] }, || {});
        assert_eq!((head.status, head.field("content-length"), head.content.len()), (200, Some("10"), 0));
        let one = |name, value: &str| vec![(name, value.to_owned())];
        let cases: Vec<FileCase<'_>> = vec![
            (one("if-none-match", etag), 304, b""),
            (one("if-none-match", "\"other\""), 200, b"0123456789"),
            (one("if-modified-since", "Sun, 06 Nov 1994 08:49:37 GMT"), 304, b""),
            (one("if-match", "\"other\""), 412, b""),
            (one("range", "bytes=3-5"), 206, b"345"),
            (one("range", "bytes=-2"), 206, b"89"),
            ([one("range", "bytes=8-"), one("if-range", etag)].concat(), 206, b"89"),
            ([one("range", "bytes=8-"), one("if-range", "\"old\"")].concat(), 200, b"0123456789"),
            (one("range", "bytes=10-"), 416, b""),
        ];
        for (fields, status, content) in cases {
            let fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (*name, &**value)).collect();
            let answer = client.get(path, &fields);
            assert_eq!(answer.status, status, "{version}: {fields:?}");
            if matches!(status, 200 | 206) {
                assert_eq!(answer.content, content, "{version}: {fields:?}");
            }
            if status == 304 {
                assert_eq!((answer.field("etag"), answer.content.len()), (Some(etag), 0), "{version}");
            }
            let range = match status {
                206 => Some(format!("bytes {}/10", if content == b"345" { "3-5" } else { "8-9" })),
                416 => Some("bytes */10".to_owned()),
                _ => None,
            };
            assert_eq!(answer.field("content-range"), range.as_deref(), "{version}: {fields:?}");
        }
        for (path, accept, coding) in [
            ("/static/made.txt", "gzip", Some("gzip")),
            ("/static/stored.txt", "gzip, br", Some("br")),
            ("/static/stored.txt", "identity", None),
        ] {
            let answer = client.get(path, &[("accept-encoding", accept)]);
            assert_eq!((answer.status, answer.field("content-encoding")), (200, coding), "{version}: {path}");
            assert_eq!(answer.field("vary"), Some("Accept-Encoding"), "{version}: {path}");
            let mut plain = Vec::new();
            match coding {
                Some("gzip") => {
                    flate2::read::GzDecoder::new(&*answer.content).read_to_end(&mut plain).unwrap();
                    assert_eq!(plain, text().as_bytes(), "{version}: {path}");
                }
                Some(_) => assert_eq!(answer.content, b"brotli", "{version}: {path}"),
                None => assert_eq!(answer.content, text().as_bytes(), "{version}: {path}"),
            }
        }
        let missing = client.get("/static/%2e%2e/secret", &[]);
        assert_eq!(missing.status, 404, "{version}");
    }
}

/// The server reads a file as its client takes it, and serves others meanwhile.
#[test]
fn large_files_wait_for_slow_readers_of_each_version() {
    let server = FileServer::start();
    for (version, mut client) in server.clients() {
        let path = server.directory.path().join("huge.bin");
        // Beyond the buffers of sockets.
        let file = std::fs::File::create(path).unwrap();
        file.set_len(HUGE as u64).unwrap();
        let request = FileRequest { method: "GET", path: "/static/huge.bin", fields: &[] };
        let answer = client.call(request, || {
            for (_, mut other) in server.clients() {
                let answer = other.get("/static/large.bin", &[]);
                assert!(answer.status == 200 && answer.content == content(), "{version}");
            }
            let queued = server.monitor.metrics().queued_bytes;
            assert!(queued < 1 << 20, "{version}: {queued}");
            file.write_all_at(b"end", HUGE as u64 - 3).unwrap();
        });
        let len = HUGE.to_string();
        assert_eq!((answer.status, answer.field("content-length")), (200, Some(&*len)), "{version}");
        assert_eq!(answer.content.len(), HUGE, "{version}");
        assert!(answer.content.ends_with(b"\0end"), "{version}: the end was read before the client took it");
    }
}
