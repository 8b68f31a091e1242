//! The client of the crate `h2` exchanges random requests, content, trailers and tunnels with the machine.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use h2::client::{self, SendRequest};
use h2::ext::Protocol;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Request, Uri};
use sinews_http::h2::{Config, ErrorCode, Event, FieldBuffer, H2Connection, StreamId};
use sinews_testkit::Rng;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::runtime::Builder;
use tokio::task::JoinSet;

use super::support::text;

/// Content of an echoed stream that waits for a window.
#[derive(Debug, Default)]
struct Echo {
    pending: Vec<u8>,
    trailers: Vec<(String, String)>,
    ended: bool,
}

/// Answers each request with its own fields, content and trailers.
struct EchoServer {
    connection: H2Connection,
    fields: FieldBuffer,
    streams: HashMap<StreamId, Echo>,
    out: Vec<u8>,
    requests: usize,
    /// Bytes of content that the server has sent.
    sent: usize,
}

impl EchoServer {
    fn new(config: Config) -> Self {
        Self {
            connection: H2Connection::server(config),
            fields: FieldBuffer::new(),
            streams: HashMap::new(),
            out: Vec::new(),
            requests: 0,
            sent: 0,
        }
    }

    /// Handles a piece of input of any size.
    fn receive(&mut self, mut input: &[u8]) {
        loop {
            let event = self.connection.receive(&mut input, &mut self.fields, Duration::ZERO);
            let Some(event) = event.expect("the client is valid") else { break };
            match event {
                Event::Request { stream, head, ends } => {
                    let owned: Vec<_> =
                        head.fields().iter().map(|(name, value)| (name, text(value))).collect();
                    let echoed = owned.iter().map(|(name, value)| (*name, value.as_str()));
                    let path = head.target().unwrap_or_default().to_owned();
                    let echoed = echoed.chain([("path", path.as_str()), ("Method", head.method())]);
                    let echoed = echoed.filter(|(name, _)| *name != "content-length");
                    self.connection
                        .send_head(stream, 200, echoed, false, &mut self.out)
                        .expect("a new stream");
                    self.streams.insert(stream, Echo { ended: ends, ..Echo::default() });
                    self.requests += 1;
                }
                Event::Data { stream, data, ends } => {
                    let echo = self.streams.get_mut(&stream).expect("a request came before");
                    echo.pending.extend_from_slice(data);
                    echo.ended = ends;
                }
                Event::Trailers { stream, fields } => {
                    let echo = self.streams.get_mut(&stream).expect("a request came before");
                    echo.trailers =
                        fields.iter().map(|(name, value)| (name.to_owned(), text(value))).collect();
                    echo.ended = true;
                }
                Event::Reset { stream, violation, .. } => {
                    assert_eq!(violation, None);
                    self.streams.remove(&stream);
                }
                _ => {}
            }
        }
        self.answer();
    }

    /// Sends as much content as the windows permit, and returns as much of the clients' windows.
    fn answer(&mut self) {
        let Self { connection, streams, out, sent: total, .. } = self;
        streams.retain(|&stream, echo| {
            let ends = echo.ended && echo.trailers.is_empty();
            let sent = connection.send_data(stream, &echo.pending, ends, out).expect("an open stream");
            *total += sent;
            echo.pending.drain(..sent);
            connection.release(stream, sent);
            let is_complete = echo.ended && echo.pending.is_empty();
            if is_complete && !echo.trailers.is_empty() {
                let trailers = echo.trailers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
                connection.send_trailers(stream, trailers, out).expect("an open stream");
            }
            !is_complete
        });
        connection.write_control(out);
    }
}

/// Serves one connection until its end, in pieces of random size.
async fn serve(mut io: DuplexStream, config: Config, seed: u64) -> EchoServer {
    let (mut server, mut random) = (EchoServer::new(config), Rng::new(seed));
    let mut buffer = vec![0; 40_000];
    server.answer();
    loop {
        io.write_all(&std::mem::take(&mut server.out)).await.expect("the pipe is open");
        let most = if random.below(4) == 0 { 20 } else { 40_000 };
        let size = 1 + random.below(most);
        match io.read(&mut buffer[..size]).await {
            Ok(read @ 1..) => server.receive(&buffer[..read]),
            _ => return server,
        }
    }
}

fn random_fields(random: &mut Rng) -> HeaderMap {
    let mut fields = HeaderMap::new();
    for _ in 0..random.below(6) {
        let name =
            ["x-a", "x-b", "accept", "user-agent", "x-rather-long-name", "authorization"][random.below(6)];
        let most = if random.below(8) == 0 { 1500 } else { 30 };
        let len = random.below(most);
        // Few different values, so that the dynamic tables are used, and all characters.
        let value: String = match random.below(3) {
            0 => "constant".to_owned(),
            _ => (0..len).map(|_| (b'!' + random.below(94) as u8) as char).collect(),
        };
        fields.append(name, HeaderValue::from_str(&value).expect("visible characters"));
    }
    fields
}

fn same_fields(sent: &HeaderMap, received: &HeaderMap) {
    for name in sent.keys() {
        let values = |map: &HeaderMap| map.get_all(name).iter().cloned().collect::<Vec<_>>();
        assert_eq!(values(sent), values(received), "{name}");
    }
}

/// Sends content in pieces, as the windows permit.
async fn send(mut stream: SendStream<Bytes>, content: Vec<u8>, trailers: HeaderMap, mut random: Rng) {
    let mut content = Bytes::from(content);
    while !content.is_empty() {
        let piece = content.split_to((1 + random.below(30_000)).min(content.len()));
        stream.send_data(piece, content.is_empty() && trailers.is_empty()).expect("an open stream");
        tokio::task::yield_now().await;
    }
    if !trailers.is_empty() {
        stream.send_trailers(trailers).expect("an open stream");
    }
}

async fn receive(mut body: RecvStream) -> (Vec<u8>, HeaderMap) {
    let mut content = Vec::new();
    while let Some(piece) = body.data().await {
        let piece = piece.expect("the response is complete");
        body.flow_control().release_capacity(piece.len()).expect("received before");
        content.extend_from_slice(&piece);
    }
    let trailers = body.trailers().await.expect("the response is complete");
    (content, trailers.unwrap_or_default())
}

/// Exchanges one random request, or a tunnel.
async fn exchange(client: SendRequest<Bytes>, mut random: Rng, number: usize) -> usize {
    let mut client = client.ready().await.expect("the connection is open");
    let fields = random_fields(&mut random);
    let mut trailers = if random.below(4) == 0 { random_fields(&mut random) } else { HeaderMap::new() };
    let len = [0, 1, random.below(1000), random.below(200_000)][random.below(4)];
    let content: Vec<u8> = (0..len).map(|_| random.next_u64() as u8).collect();
    let is_tunnel = random.below(4) == 0;
    let path = format!("/{number}?{}", random.below(3));
    let uri: Uri = format!("https://example.com{path}").parse().expect("a valid address");
    let mut request = Request::new(());
    *request.uri_mut() = uri;
    *request.headers_mut() = fields.clone();
    if is_tunnel {
        // A tunnel has none (RFC 9113 section 8.5).
        trailers.clear();
        *request.method_mut() = http::Method::CONNECT;
        request.extensions_mut().insert(Protocol::from_static("websocket"));
    } else {
        *request.method_mut() = http::Method::POST;
        if random.below(2) == 0 {
            let length = HeaderValue::from_str(&len.to_string()).expect("digits");
            request.headers_mut().insert("content-length", length);
        }
    }
    if random.below(16) == 0 {
        // Cancelled at once: RST_STREAM, without an answer.
        let (_, stream) = client.send_request(request, false).expect("a valid request");
        drop(stream);
        return 0;
    }
    let ends = content.is_empty() && trailers.is_empty();
    let (response, stream) = client.send_request(request, ends).expect("a valid request");
    let sending = async {
        if !ends {
            send(stream, content.clone(), trailers.clone(), random).await;
        }
    };
    let receiving = async {
        let (head, body) = response.await.expect("a response").into_parts();
        assert_eq!(head.status, 200);
        same_fields(&fields, &head.headers);
        assert_eq!(head.headers["path"], path);
        assert_eq!(head.headers["method"], if is_tunnel { "CONNECT" } else { "POST" });
        receive(body).await
    };
    let ((), (echoed, last)) = tokio::join!(sending, receiving);
    assert!(echoed == content, "request {number}: {} bytes of {}", echoed.len(), content.len());
    same_fields(&trailers, &last);
    len
}

async fn converse(seed: u64) {
    let mut random = Rng::new(seed);
    let (near, far) = duplex(1 + random.below(100_000));
    let config = Config::new()
        .with_extended_connect(true)
        .with_max_streams(1 + random.below(20) as u32)
        .with_stream_window(1 + random.below(100_000) as u32)
        .with_connection_window(random.below(200_000) as u32)
        .with_header_table_size([0, 100, 4096, 9000][random.below(4)]);
    let server = tokio::spawn(serve(far, config, seed));
    let (client, connection) = client::Builder::new()
        .initial_window_size(1 + random.below(100_000) as u32)
        .initial_connection_window_size(65_535 + random.below(100_000) as u32)
        .max_frame_size(16_384 + random.below(100_000) as u32)
        .header_table_size([0, 50, 4096, 20_000][random.below(4)])
        .handshake(near)
        .await
        .expect("preface and SETTINGS");
    let connection = tokio::spawn(connection);
    // The client may use extended CONNECT once it has the server's SETTINGS.
    let mut ready = client.clone().ready().await.expect("the connection is open");
    let first = Request::get("https://example.com/first").body(()).expect("a valid request");
    let (response, _) = ready.send_request(first, true).expect("a valid request");
    receive(response.await.expect("a response").into_body()).await;
    assert!(ready.is_extended_connect_protocol_enabled());
    drop(ready);
    let mut tasks = JoinSet::new();
    for number in 0..40 {
        tasks.spawn(exchange(client.clone(), Rng::new(random.next_u64()), number));
    }
    drop(client);
    let mut bytes = 0;
    while let Some(echoed) = tasks.join_next().await {
        bytes += echoed.expect("the exchange succeeds");
    }
    let ended = connection.await.expect("no panic");
    assert!(ended.is_ok(), "{ended:?}");
    let server = server.await.expect("no panic");
    assert_eq!((server.connection.streams(), server.streams.len()), (0, 0));
    assert!(server.requests > 1 && server.sent >= bytes, "{} requests", server.requests);
    assert_eq!(server.connection.error().map(|error| error.code()), None::<ErrorCode>);
}

#[test]
fn random_exchanges_with_another_client_are_echoed() {
    let runtime = Builder::new_current_thread().build().expect("a runtime");
    for seed in 0..12 {
        runtime.block_on(converse(seed));
    }
}
