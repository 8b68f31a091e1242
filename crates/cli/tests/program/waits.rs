//! Limits and timeouts of each connection.

use std::io::{Read, Write};

use sinews_testkit::{Frame, Reply};

use crate::support::{Running, fails, program};

#[test]
fn requests_have_limits_and_timeouts() {
    let server = Running::serve(&["--http-max-body", "1k"]);
    let post = |len: usize| server.request("POST /topics/a HTTP/1.1", &"x".repeat(len));
    assert!(post(1024).starts_with("HTTP/1.1 200 ") && post(1025).starts_with("HTTP/1.1 413 "));
    let mut socket = server.websocket("/echo");
    socket.send(&Frame::binary(vec![0; 1025]));
    assert_eq!(socket.next(), Some(Reply::binary(vec![0; 1025])), "a message may be larger");
    let server = Running::serve(&["--http-head-timeout", "200ms"]);
    let mut slow = server.connect();
    slow.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    let mut answer = String::new();
    slow.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
}

#[test]
fn silent_connection_is_pinged_and_then_closed() {
    let server = Running::serve(&["--websocket-ping-interval", "100ms", "--websocket-pong-timeout", "200ms"]);
    let mut silent = server.websocket("/echo");
    assert!(matches!(silent.next(), Some(Reply::Ping(_))));
    assert_eq!(silent.next().and_then(|reply| reply.close_code()), Some(1011));
    let server = Running::serve(&["--websocket-ping-interval", "off", "--websocket-idle-timeout", "200ms"]);
    let mut silent = server.websocket("/echo");
    assert_eq!(silent.next().and_then(|reply| reply.close_code()), Some(1001));
    let message = fails(program().args(["--websocket-pong-timeout", "0s"]));
    assert!(message.starts_with("error: ") && message.contains("must be longer than zero"), "{message}");
}
