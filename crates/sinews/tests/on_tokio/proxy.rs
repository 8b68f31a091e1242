//! Proxies: HTTP CONNECT and SOCKS5, over small proxies of this test.

use std::net::SocketAddr;
use std::time::Duration;

use crate::servers::{assert_echoes, echo, header, nobody, read_head, serve};
use sinews::client::{ConnectPhase, ProxyError};
use sinews::{Connect, ConnectError, connect};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

/// An HTTP proxy that requires this `Proxy-Authorization`, and connects every client to one server.
async fn http_proxy(
    to: SocketAddr,
    authorization: Option<&'static str>,
) -> (SocketAddr, mpsc::UnboundedReceiver<String>) {
    let (heads, seen) = mpsc::unbounded_channel();
    let proxy = serve(move |mut stream| {
        let heads = heads.clone();
        async move {
            let head = read_head(&mut stream).await;
            let welcome = header(&head, "proxy-authorization") == authorization;
            heads.send(head).expect("the test waits");
            if !welcome {
                let response =
                    b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 8\r\n\r\nwho, me?";
                return stream.write_all(response).await.expect("the client reads");
            }
            stream.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").await.expect("the client reads");
            relay(stream, to).await;
        }
    })
    .await;
    (proxy, seen)
}

/// A SOCKS5 proxy that requires this name and password, and connects every client to one server. Returns the request.
async fn socks5_proxy(
    to: SocketAddr,
    login: Option<&'static [u8]>,
) -> (SocketAddr, mpsc::UnboundedReceiver<Vec<u8>>) {
    let (requests, seen) = mpsc::unbounded_channel();
    let proxy = serve(move |mut stream| {
        let requests = requests.clone();
        async move {
            let count = read(&mut stream, 2).await[1];
            let methods = read(&mut stream, count.into()).await;
            let method = if login.is_some() { 2 } else { 0 };
            if !methods.contains(&method) {
                return stream.write_all(&[5, 0xff]).await.expect("the client reads");
            }
            stream.write_all(&[5, method]).await.expect("the client reads");
            if let Some(login) = login {
                let right = read(&mut stream, login.len()).await == login;
                stream.write_all(&[1, u8::from(!right)]).await.expect("the client reads");
                if !right {
                    return;
                }
            }
            let mut request = read(&mut stream, 5).await;
            let rest = match request[3] {
                1 => 3 + 2,
                3 => usize::from(request[4]) + 2,
                _ => 15 + 2,
            };
            request.extend(read(&mut stream, rest).await);
            requests.send(request).expect("the test waits");
            stream.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await.expect("the client reads");
            relay(stream, to).await;
        }
    })
    .await;
    (proxy, seen)
}

async fn read(stream: &mut TcpStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    stream.read_exact(&mut bytes).await.expect("the client writes");
    bytes
}

async fn relay(mut stream: TcpStream, to: SocketAddr) {
    let mut server = TcpStream::connect(to).await.expect("a listener");
    // Regardless of its end: the client reports errors.
    let _ = copy_bidirectional(&mut stream, &mut server).await;
}

async fn echo_server() -> SocketAddr {
    serve(|stream| async { drop(echo(stream).await) }).await
}

async fn refusal(connect: Connect<sinews::tokio::Tokio>) -> (ProxyError, String) {
    match connect.await.expect_err("refused") {
        ConnectError::Proxy { proxy, error } => (error, proxy),
        error => panic!("{error:?}"),
    }
}

#[tokio::test]
async fn http_proxy_resolves_the_server_name() {
    let (proxy, mut seen) = http_proxy(echo_server().await, Some("Basic bWU6cHcg")).await;
    let way = connect("ws://inside.invalid/chat").proxy(format!("http://me:pw%20@{proxy}"));
    let mut ws = way.await.expect("connected");
    assert_echoes(&mut ws).await;
    let head = seen.recv().await.expect("served");
    assert!(head.starts_with("CONNECT inside.invalid:80 HTTP/1.1\r\nHost: inside.invalid:80\r\n"), "{head}");
}

#[tokio::test]
async fn http_proxy_rejection_contains_status_and_body() {
    let (proxy, _seen) = http_proxy(nobody().await, Some("Basic x")).await;
    let (error, name) =
        refusal(connect("ws://inside.invalid/").proxy(format!("http://me:wrong@{proxy}"))).await;
    assert_eq!(name, format!("http://{proxy}"));
    assert_eq!(error.to_string(), "responded to CONNECT with 407 Proxy Authentication Required: who, me?");
    let ProxyError::Rejected(response) = error else { panic!("{error:?}") };
    assert_eq!((response.status().as_u16(), response.body()), (407, b"who, me?".as_slice()));
}

#[tokio::test]
async fn socks5_proxy_gets_the_name_or_the_address() {
    let server = echo_server().await;
    let (proxy, mut seen) = socks5_proxy(server, None).await;
    let mut ws =
        connect("ws://inside.invalid/").proxy(format!("socks5h://{proxy}")).await.expect("connected");
    assert_echoes(&mut ws).await;
    drop(ws);
    assert_eq!(seen.recv().await.expect("served"), b"\x05\x01\x00\x03\x0einside.invalid\x00\x50");

    let mut ws = connect("ws://localhost:7/").proxy(format!("socks5://{proxy}")).await.expect("connected");
    assert_echoes(&mut ws).await;
    drop(ws);
    let request = seen.recv().await.expect("served");
    assert!(request.starts_with(&[5, 1, 0, 1, 127]) || request.starts_with(&[5, 1, 0, 4, 0]), "{request:?}");
    assert!(request.ends_with(&[0, 7]));
}

#[tokio::test]
async fn socks5_proxy_can_require_a_password() {
    let (proxy, _seen) = socks5_proxy(echo_server().await, Some(b"\x01\x02me\x02pw")).await;
    let mut ws =
        connect("ws://inside.invalid/").proxy(format!("socks5h://me:pw@{proxy}")).await.expect("connected");
    assert_echoes(&mut ws).await;
    drop(ws);
    for wrong in ["", "me:no@"] {
        let (error, _) =
            refusal(connect("ws://inside.invalid/").proxy(format!("socks5h://{wrong}{proxy}"))).await;
        assert!(matches!(error, ProxyError::Authentication), "{error:?}");
    }
}

#[tokio::test]
async fn socks5_proxy_rejection_contains_the_reply() {
    let proxy = serve(|mut stream| async move {
        read(&mut stream, 3).await;
        stream.write_all(&[5, 0]).await.expect("the client reads");
        read(&mut stream, 10).await;
        stream.write_all(&[5, 4]).await.expect("the client reads");
    })
    .await;
    let (error, _) = refusal(connect("ws://192.0.2.1/").proxy(format!("socks5://{proxy}"))).await;
    assert!(matches!(error, ProxyError::Socks(reply) if reply.code() == 4), "{error:?}");
    assert_eq!(error.to_string(), "connection rejected: host unreachable (SOCKS reply 4)");
}

#[tokio::test]
async fn unsolicited_bytes_from_a_proxy_are_rejected() {
    let proxy = serve(|mut stream| async move {
        read_head(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 101 ").await.expect("the client reads");
        let _ = stream.read_to_end(&mut Vec::new()).await;
    })
    .await;
    let (error, _) = refusal(connect("ws://inside.invalid/").proxy(proxy.to_string())).await;
    assert!(matches!(error, ProxyError::EarlyBytes), "{error:?}");
}

#[tokio::test]
async fn unusable_proxy_is_named_in_the_error() {
    let (error, name) = refusal(connect("ws://a/").proxy("https://me:secret@proxy")).await;
    assert!(matches!(error, ProxyError::Scheme), "{error:?}");
    assert_eq!(name, "https://proxy");
    let proxy = nobody().await;
    let error = connect("ws://a/").proxy(format!("http://{proxy}")).await.expect_err("no listener");
    assert!(
        matches!(&error, ConnectError::Tcp { address, .. } if *address == proxy.to_string()),
        "{error:?}"
    );
}

#[tokio::test]
async fn no_proxy_connects_directly() {
    let server = echo_server().await;
    let way = connect(format!("ws://{server}")).proxy(format!("http://{}", nobody().await)).no_proxy();
    assert_echoes(&mut way.await.expect("connected")).await;
}

/// Starts itself as a child, since the environment of a process must not change while it runs.
#[tokio::test]
async fn environment_selects_a_proxy() {
    const NAME: &str = "proxy::environment_selects_a_proxy";
    if let Ok(proxy) = std::env::var("SINEWS_TEST_PROXY") {
        for way in [connect("ws://inside.invalid/"), connect("ws://a/").no_proxy().proxy_from_environment()] {
            let error = way.await.expect_err("no listener");
            assert!(matches!(&error, ConnectError::Tcp { address, .. } if *address == proxy), "{error:?}");
        }
        return;
    }
    let proxy = nobody().await.to_string();
    let mut child = std::process::Command::new(std::env::current_exe().expect("this program"));
    child
        .args(["--exact", NAME])
        .env("SINEWS_TEST_PROXY", &proxy)
        .env("http_proxy", format!("http://{proxy}"));
    let output = child.env_remove("no_proxy").env_remove("NO_PROXY").output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// A simulated clock would pass the timeout whenever the kernel is not done with the connection at once.
#[tokio::test]
async fn silent_proxy_times_out() {
    let proxy = serve(|stream| async move {
        let (_stream, forever) = (stream, std::future::pending::<()>());
        forever.await;
    })
    .await;
    let way = connect("ws://inside.invalid/")
        .proxy(format!("socks5h://{proxy}"))
        .timeout(Duration::from_millis(500));
    let error = way.await.expect_err("no answer");
    assert!(matches!(&error, ConnectError::TimedOut { phase: ConnectPhase::Proxy, .. }), "{error:?}");
    assert!(error.to_string().contains(&format!("tunnel through proxy {proxy}")), "{error}");
}
