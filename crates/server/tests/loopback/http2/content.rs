//! Features of HTTP that are the same over HTTP/2, and rules of the requests themselves.

use sinews_server::{Compression, Files};

use super::*;

/// A running server of a router, with a client of it.
fn client_of(router: Router) -> (Running, Http2Client) {
    let http = patient().with_http2_clear_text(true);
    let running = Running::server(Server::new(router).threads(1).http(http).engine(backend::engine()));
    let client = Http2Client::connect(&running, &[]);
    (running, client)
}

#[test]
fn hooks_see_requests_and_answers() {
    let seen = Arc::<Mutex<Vec<String>>>::default();
    let log = Arc::clone(&seen);
    let router = Router::new()
        .before("/secret", |_| Some(Response::text("no\n").with_status(403)))
        .after("/", move |request, response| {
            let head = request.head();
            let line = format!("{} {} {}", head.method(), head.target(), response.status());
            log.lock().unwrap().push(line);
        })
        .get("/secret", |_| Response::text("secret"))
        .get("/host", |request| {
            let host = request.head().header("host").next().unwrap_or_default();
            Response::text([host, &b"!"[..]].concat())
        })
        .post("/len", |request| Response::text(request.body().len().to_string()));
    let (_running, mut client) = client_of(router);
    client.get(1, "/secret");
    assert_eq!(client.answers(&[1])[&1].1, b"no\n");
    client.get(3, "/host");
    assert_eq!(client.answers(&[3])[&3].1, b"a!", "`:authority` is the host");
    client.frame(HEADERS, END_HEADERS, 5, &block(METHOD_POST, "/len", &[]));
    client.frame(DATA, END_STREAM, 5, b"abc");
    assert_eq!(client.answers(&[5])[&5].1, b"3");
    client.get(7, "/nowhere");
    client.answers(&[7]);
    let expected = ["GET /secret 403", "GET /host 200", "POST /len 200", "GET /nowhere 404"];
    assert_eq!(*seen.lock().unwrap(), expected);
}

#[test]
fn files_and_compressed_answers_are_sent() {
    let directory = tempfile::tempdir().unwrap();
    let content: Vec<u8> = (0..1_000_000_u32).map(|at| (at / 7) as u8).collect();
    std::fs::write(directory.path().join("large.bin"), &content).unwrap();
    let text = "the same again, ".repeat(1000);
    let answered = text.clone();
    let router = Router::new()
        .files("/static", Files::open(directory.path()).unwrap())
        .compress("/", Compression::default())
        .get("/text", move |_| Response::text(answered.clone()));
    let (_running, mut client) = client_of(router);
    client.get(1, "/static/large.bin");
    client.frame(HEADERS, 5, 3, &block(METHOD_GET, "/text", &[("accept-encoding", "gzip")]));
    let answers = client.answers(&[1, 3]);
    assert!(answers[&1] == (OK, content, true), "a file beyond all windows");
    let mut plain = String::new();
    flate2::read::GzDecoder::new(&*answers[&3].1).read_to_string(&mut plain).unwrap();
    assert_eq!((answers[&3].0, plain), (OK, text));
    // HEAD has no DATA: HEADERS ends the stream.
    let mut head = b"\x42\x04HEAD".to_vec();
    head.extend_from_slice(&block(METHOD_GET, "/static/large.bin", &[])[1..]);
    client.frame(HEADERS, 5, 5, &head);
    assert_eq!(client.answers(&[5])[&5], (OK, Vec::new(), true));
}

#[test]
fn scheme_fits_the_connection() {
    let (_running, mut client) = client_of(Router::new().get("/", |_| Response::text("hello\n")));
    // A proxy that terminates TLS passes `https`.
    for (stream, scheme, is_accepted) in
        [(1, &b"\x87"[..], true), (3, b"\x86", true), (5, b"\x06\x03ftp", false)]
    {
        let head = [b"\x82", scheme, b"\x84\x01\x01a"].concat();
        client.frame(HEADERS, 5, stream, &head);
        let answer = client.answers(&[stream]).remove(&stream).unwrap();
        assert_eq!((answer.0 == OK, answer.1 == b"hello\n"), (is_accepted, is_accepted), "{scheme:?}");
    }
}

#[test]
fn acknowledgement_of_settings_precedes_the_data_that_they_permit() {
    let (_running, mut client) = client_of(Router::new().get("/", |_| Response::text("hello\n")));
    let initial_window = |bytes: u8| [0, 4, 0, 0, 0, bytes];
    client.frame(SETTINGS, 0, 0, &initial_window(0));
    client.get(1, "/");
    client.until(HEADERS);
    client.frame(SETTINGS, 0, 0, &initial_window(1));
    let order: Vec<(u8, usize)> = std::iter::from_fn(|| client.read())
        .filter(|frame| matches!(frame.kind, DATA | SETTINGS))
        .map(|frame| (frame.kind, frame.payload.len()))
        .take(2)
        .collect();
    assert_eq!(order, [(SETTINGS, 0), (DATA, 1)]);
    client.frame(SETTINGS, 0, 0, &initial_window(100));
    assert_eq!(client.until(DATA).payload, b"ello\n");
}

#[test]
fn goaway_of_the_client_lets_open_streams_finish() {
    let (server, mut client) = Http2Server::connected(patient());
    client.get(1, "/later");
    client.frame(GOAWAY, 0, 0, &[0; 8]);
    client.frame(PING, 0, 0, &[7; 8]);
    while client.until(PING).payload != [7; 8] {}
    server.wake();
    assert_eq!(client.answers(&[1])[&1], (OK, b"late".to_vec(), true));
    while client.read().is_some() {}
}
