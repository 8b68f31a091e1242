//! Connecting to scripted servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::servers::{answer, assert_echoes, echo, header, nobody, read_head, recording_echo, serve};
use crate::spawn::spawn;
use sinews::client::{ClientError, ConnectPhase, HandshakeMisuse, HeadLimits, RedirectError, UrlError};
use sinews::{CloseCode, Config, ConnectError, Message, connect};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;

#[tokio::test]
async fn connection_splits_and_its_halves_move_to_other_tasks() {
    let address = serve(|stream| async move { drop(echo(stream).await) }).await;
    let (mut write, mut read) = connect(format!("ws://{address}/")).await.expect("connected").split();
    let reading = spawn(async move { read.next().await.expect("open").expect("sound") });
    spawn(async move { write.send("in halves").await }).await.expect("no panic").expect("open");
    assert_eq!(reading.await.expect("no panic"), Message::text("in halves"));
}

#[tokio::test]
async fn request_contains_the_configured_headers() {
    let (address, mut seen) = recording_echo().await;

    let (mut ws, response) = connect(format!("ws://user:pa%20ss@{address}/a/b?c=d"))
        .header("Cookie", "a=b")
        .header("x-twice", "1")
        .header("x-twice", "2")
        .subprotocols(["v3", "v1"])
        .subprotocol("v2")
        .open()
        .await
        .expect("connected");
    assert_eq!(response.status(), 101);
    assert_eq!(response.headers()["set-cookie"], "seen=1");
    assert_eq!((response.subprotocol(), ws.subprotocol()), (Some("v2"), Some("v2")));
    assert!(ws.get_ref().tcp().nodelay().expect("a socket") && !ws.get_ref().is_tls());
    assert_echoes(&mut ws).await;
    ws.close(CloseCode::NORMAL, "").await.expect("in order");

    let head = seen.recv().await.expect("served");
    assert!(head.starts_with("GET /a/b?c=d HTTP/1.1\r\n"), "{head}");
    assert_eq!(header(&head, "host"), Some(address.to_string().as_str()));
    assert_eq!(header(&head, "cookie"), Some("a=b"));
    assert_eq!(header(&head, "authorization"), Some("Basic dXNlcjpwYSBzcw=="));
    assert_eq!(header(&head, "sec-websocket-protocol"), Some("v3, v1, v2"));
    assert_eq!(head.matches("x-twice: ").count(), 2);
    assert_eq!(header(&head, "sec-websocket-extensions"), None);

    let own = connect(format!("ws://u:p@{address}")).header("authorization", "Bearer x").nodelay(false);
    let mut ws = own.await.expect("connected");
    assert!(!ws.get_ref().tcp().nodelay().expect("a socket"));
    assert_eq!(ws.subprotocol(), None);
    ws.close(CloseCode::NORMAL, "").await.expect("in order");
    let head = seen.recv().await.expect("served");
    assert_eq!(head.matches("uthorization: ").count(), 1);
    assert_eq!(header(&head, "authorization"), Some("Bearer x"));
}

#[cfg(feature = "deflate")]
#[tokio::test]
async fn deflate_is_offered_and_used() {
    let address = serve(|stream| async { drop(echo(stream).await) }).await;
    let offering = connect(format!("ws://{address}")).deflate(sinews::DeflateConfig::new());
    let (mut ws, response) = offering.open().await.expect("connected");
    assert!(
        response.headers()["sec-websocket-extensions"].to_str().expect("text").contains("permessage-deflate")
    );
    assert_echoes(&mut ws).await;
}

#[tokio::test]
async fn frames_behind_the_response_are_not_lost() {
    let address = serve(|mut stream| async move {
        let (mut response, _) = answer(&read_head(&mut stream).await, &[]);
        response.extend_from_slice(b"\x81\x05hello\x82\x01");
        stream.write_all(&response).await.expect("the client reads");
        stream.write_all(b"!\x88\x02\x03\xe8").await.expect("the client reads");
        // The client's Close, masked.
        stream.read_exact(&mut [0; 8]).await.expect("the client answers");
    })
    .await;
    let mut ws = connect(format!("ws://{address}")).await.expect("connected");
    assert_eq!(ws.next().await.expect("open").expect("sound"), Message::text("hello"));
    assert_eq!(ws.next().await.expect("open").expect("sound"), Message::binary("!"));
    while let Some(message) = ws.next().await {
        assert!(matches!(message.expect("in order"), Message::Close(_)));
    }
}

#[tokio::test]
async fn each_address_of_a_name_is_tried() {
    // Where the name resolves to an address of each family, the first may have no listener.
    let address = serve(|stream| async { drop(echo(stream).await) }).await;
    let mut ws = connect(format!("ws://localhost:{}", address.port())).await.expect("connected");
    assert_echoes(&mut ws).await;
}

#[tokio::test]
async fn ipv6_host_is_in_brackets() {
    let Ok(listener) = tokio::net::TcpListener::bind("[::1]:0").await else {
        return println!("this machine has no IPv6");
    };
    let port = listener.local_addr().expect("bound").port();
    let serving = spawn(async move { echo(listener.accept().await.expect("a client").0).await });
    let mut ws = connect(format!("ws://[::1]:{port}/")).await.expect("connected");
    assert_echoes(&mut ws).await;
    ws.close(CloseCode::NORMAL, "").await.expect("in order");
    let head = serving.await.expect("no panic");
    assert_eq!(header(&head, "host"), Some(format!("[::1]:{port}").as_str()));
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn local_address_is_the_source_address() {
    let (peers, mut seen) = mpsc::unbounded_channel();
    let address = serve(move |stream| {
        peers.send(stream.peer_addr().expect("connected").ip()).expect("the test waits");
        async { drop(echo(stream).await) }
    })
    .await;
    let local: std::net::IpAddr = [127, 0, 0, 9].into();
    let ws = connect(format!("ws://{address}")).local_address(local).await.expect("connected");
    assert_eq!(seen.recv().await, Some(local));
    drop(ws);

    let error = connect("ws://[::1]:1").local_address(local).await.expect_err("another family");
    assert!(error.to_string().contains("local_address"), "{error}");
}

#[tokio::test]
async fn rejection_contains_status_headers_and_body() {
    let address = serve(|mut stream| async move {
        read_head(&mut stream).await;
        let response = b"HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic\r\nContent-Length: 20\r\n\r\n";
        stream.write_all(response).await.expect("the client reads");
        stream.write_all(b"\n no such user\nsorry").await.expect("the client reads");
        // The server stays open: the length determines the end.
        let _ = stream.read_to_end(&mut Vec::new()).await;
    })
    .await;
    let error = connect(format!("ws://{address}")).await.expect_err("refused");
    assert_eq!(error.status().map(|status| status.as_u16()), Some(401));
    assert_eq!(error.to_string(), "the server answered 401 Unauthorized instead of 101: no such user");
    let ConnectError::Rejected(response) = error else { panic!("{error:?}") };
    assert_eq!(response.headers()["www-authenticate"], "Basic");
    assert_eq!(response.body(), b"\n no such user\nsorry");

    let short = connect(format!("ws://{address}")).rejection_body_max(5).await.expect_err("refused");
    assert!(matches!(&short, ConnectError::Rejected(response) if response.body() == b"\n no "), "{short:?}");
}

#[cfg(target_os = "linux")]
#[tokio::test(start_paused = true)]
async fn unaccepted_connection_times_out() {
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.bind(([127, 0, 0, 1], 0).into()).expect("loopback");
    let listener = socket.listen(1).expect("bound");
    let address = listener.local_addr().expect("bound");
    // Once its queue is full, the kernel accepts no connection.
    let mut waiting: Vec<_> = (0..8).map(|_| Box::pin(tokio::net::TcpStream::connect(address))).collect();
    for connecting in &mut waiting {
        // As far as it gets.
        let _ = futures_util::FutureExt::now_or_never(connecting.as_mut());
    }
    let error = connect(format!("ws://{address}")).await.expect_err("no capacity");
    assert!(matches!(&error, ConnectError::TimedOut { phase: ConnectPhase::Connect, .. }), "{error:?}");
    assert!(error.to_string().starts_with(&format!("TCP to {address} exceeded the timeout")), "{error}");
}

#[tokio::test]
async fn timeout_accepts_the_maximum_duration() {
    let address = serve(|stream| async { drop(echo(stream).await) }).await;
    let connect = connect(format!("ws://{address}"));
    for timeout in [None, Some(Duration::MAX)] {
        connect.clone().timeout(timeout).await.expect("connected");
    }
}

#[tokio::test]
async fn invalid_requests_fail_before_connecting() {
    let fault =
        |connect: sinews::Connect<sinews::tokio::Tokio>| async { connect.await.expect_err("not valid") };
    let error = fault(connect("ws://u:secret@example.com/#x")).await;
    assert!(matches!(&error, ConnectError::Url { error: UrlError::Fragment, .. }), "{error:?}");
    assert!(!format!("{error} {error:?}").contains("secret"));
    let error = fault(connect("ws://a/").header("x", "a\r\ny: b")).await;
    assert!(matches!(error, ConnectError::Request(HandshakeMisuse::HeaderValue)), "{error:?}");
    let error = fault(connect("ws://a/").header("sec-websocket-key", "x")).await;
    assert!(matches!(error, ConnectError::Request(HandshakeMisuse::ReservedHeader)), "{error:?}");
    let error = fault(connect("ws://a/").subprotocol("a b")).await;
    assert!(matches!(error, ConnectError::Request(HandshakeMisuse::Subprotocol)), "{error:?}");
    let error = fault(connect("ws://a/").config(Config::default().with_max_frame(0))).await;
    assert!(matches!(error, ConnectError::Config(_)), "{error:?}");
    let shown = format!("{:?}", connect("ws://u:secret@a/").header("cookie", "secret"));
    assert!(!shown.contains("secret"), "{shown}");
}

#[tokio::test]
async fn errors_name_the_failed_phase() {
    let address = nobody().await;
    let error = connect(format!("ws://{address}/")).await.expect_err("no listener");
    assert!(
        matches!(&error, ConnectError::Tcp { error, .. } if error.kind() == std::io::ErrorKind::ConnectionRefused)
    );
    assert!(error.to_string().starts_with(&format!("cannot connect to {address}: ")), "{error}");

    // Longer than a name can be, so that no name server is queried.
    let name = "x".repeat(300);
    let error = connect(format!("ws://{name}/")).no_proxy().await.expect_err("no such name");
    assert!(matches!(&error, ConnectError::Resolve { host, .. } if *host == name), "{error:?}");

    let address = serve(|mut stream| async move { drop(read_head(&mut stream).await) }).await;
    let error = connect(format!("ws://{address}/")).await.expect_err("no answer");
    assert!(matches!(&error, ConnectError::Transport { phase: ConnectPhase::Handshake, .. }), "{error:?}");
    assert!(error.to_string().contains(&address.to_string()), "{error}");

    let address = serve(|mut stream| async move {
        read_head(&mut stream).await;
        let forged = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
            Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
        stream.write_all(forged).await.expect("the client reads");
    })
    .await;
    let error = connect(format!("ws://{address}/")).await.expect_err("another key");
    assert!(matches!(error, ConnectError::Handshake(ClientError::Accept)), "{error:?}");
    let limits = HeadLimits::new().with_max_bytes(40);
    let error = connect(format!("ws://{address}/")).response_limits(limits).await.expect_err("too large");
    assert!(matches!(error, ConnectError::Handshake(ClientError::Head(_))), "{error:?}");
}

#[tokio::test]
async fn redirects_are_followed_if_enabled() {
    let (heads, mut seen) = mpsc::unbounded_channel();
    let last = heads.clone();
    let goal = serve(move |stream| {
        let last = last.clone();
        async move { last.send(echo(stream).await).expect("the test waits") }
    })
    .await;
    // From the first path to another on the same server, then to the other server.
    let first = serve(move |mut stream| {
        let heads = heads.clone();
        async move {
            let head = read_head(&mut stream).await;
            let location =
                if head.starts_with("GET /a/b?") { "../c".to_owned() } else { format!("http://{goal}/d#e") };
            let response =
                format!("HTTP/1.1 307 Elsewhere\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n");
            stream.write_all(response.as_bytes()).await.expect("the client reads");
            heads.send(head).expect("the test waits");
        }
    })
    .await;
    let asking = || connect(format!("ws://u:p@{first}/a/b?x")).header("Cookie", "a=b").header("x-kept", "1");

    let mut ws = asking().redirects(2).await.expect("connected");
    assert_echoes(&mut ws).await;
    drop(ws);
    let heads = [seen.recv().await, seen.recv().await, seen.recv().await].map(|head| head.expect("served"));
    let paths = heads.each_ref().map(|head| head.split(' ').nth(1).expect("a path"));
    assert_eq!(paths, ["/a/b?x", "/c", "/d"]);
    let private = heads
        .each_ref()
        .map(|head| (header(head, "cookie").is_some(), header(head, "authorization").is_some()));
    assert_eq!(private, [(true, true), (true, true), (false, false)]);
    assert!(heads.iter().all(|head| header(head, "x-kept") == Some("1")));

    let error = asking().redirects(1).await.expect_err("one more");
    let ConnectError::Redirect { location, error: RedirectError::TooMany(1) } = &error else {
        panic!("{error:?}")
    };
    assert_eq!(location, &format!("ws://{goal}/d"));

    let error = asking().await.expect_err("not asked for");
    let ConnectError::Rejected(response) = &error else { panic!("{error:?}") };
    assert_eq!(
        (response.status().as_u16(), &response.headers()["location"]),
        (307, &"../c".parse().expect("text"))
    );
}

#[tokio::test]
async fn redirect_loop_ends_at_the_limit() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let address = serve(move |mut stream| {
        counted.fetch_add(1, Ordering::Relaxed);
        async move {
            read_head(&mut stream).await;
            let response = b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n";
            stream.write_all(response).await.expect("the client reads");
        }
    })
    .await;
    let error = connect(format!("ws://{address}")).redirects(5).await.expect_err("a circle");
    assert!(matches!(error, ConnectError::Redirect { error: RedirectError::TooMany(5), .. }), "{error:?}");
    assert_eq!(asked.load(Ordering::Relaxed), 6);
}

#[cfg(not(any(feature = "rustls-native-roots", feature = "rustls-webpki-roots", feature = "native-tls")))]
#[tokio::test]
async fn wss_without_tls_names_the_features() {
    let error = connect(format!("wss://{}", nobody().await)).await.expect_err("no TLS");
    assert!(error.to_string().contains("rustls-native-roots"), "{error}");
}

#[tokio::test]
async fn connect_to_replaces_the_host_and_port() {
    let (address, mut seen) = recording_echo().await;
    let host = address.ip().to_string();
    let detour = |url| connect(url).connect_to("Chat.Example", 8080, &host, address.port()).no_proxy();
    let mut ws = detour("ws://chat.example:8080/a").await.expect("connected");
    ws.close(CloseCode::NORMAL, "").await.expect("in order");
    assert_eq!(header(&seen.recv().await.expect("served"), "host"), Some("chat.example:8080"));

    // Another port is another server.
    let error = detour("ws://chat.example.invalid:8080/").await.expect_err("no such name");
    assert!(matches!(error, ConnectError::Resolve { .. }), "{error:?}");
}

#[tokio::test]
async fn connect_to_rejects_hosts_that_are_none() {
    for host in ["", "10.0.0.1:25 HTTP/1.1\r\nX-Injected: 1\r\n\r\nGET /", "a b", "m\u{fc}nchen.example"] {
        let way = connect("ws://chat.example/").connect_to("chat.example", 80, host, 80);
        // The proxy is not there: nothing may be sent to one.
        let error = way.proxy(format!("http://{}", nobody().await)).await.expect_err("no host");
        assert!(matches!(error, ConnectError::Url { error: UrlError::Host, .. }), "{error:?}");
    }
}

#[tokio::test]
async fn dial_connects_without_a_handshake() {
    let address = serve(|mut stream| async move {
        let mut line = [0; 5];
        stream.read_exact(&mut line).await.expect("the client writes");
        stream.write_all(&line).await.expect("the client reads");
    })
    .await;
    let mut stream = connect(format!("ws://{address}")).dial().await.expect("connected");
    stream.write_all(b"hello").await.expect("it reads");
    let mut heard = [0; 5];
    stream.read_exact(&mut heard).await.expect("it writes");
    assert_eq!(&heard, b"hello");
}
