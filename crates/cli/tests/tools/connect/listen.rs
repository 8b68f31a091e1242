//! Server mode.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use super::support::{Server, connect, echoed, run};

#[test]
fn pipe_may_act_as_server() {
    // Input is queued for the first client.
    let mut server = Server::start(&["--once"]);
    let mut stdin = server.stdin.take().unwrap();
    stdin.write_all(b"from the server\n").unwrap();
    let client = run(&[&server.url], "from the client\n");
    assert_eq!(client.fine(), "from the server\n");
    let mut line = String::new();
    BufReader::new(server.child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "from the client\n");
    assert_eq!(server.child.wait().unwrap().code(), Some(0), "the only client has disconnected");
}

#[test]
fn input_is_sent_to_all_clients() {
    let mut server = Server::start(&["--jsonl"]);
    let mut stdin = server.stdin.take().unwrap();
    let mut stdout = BufReader::new(server.child.stdout.take().unwrap()).lines();
    let mut clients: Vec<_> = (0..3)
        .map(|_| {
            let mut command = connect(&["--count", "1", "--wait", "1h", &server.url]);
            command.stdin(Stdio::null()).spawn().unwrap()
        })
        .collect();
    let opened = stdout.by_ref().map(Result::unwrap).filter(|line| line.contains("\"open\"")).take(3);
    assert_eq!(opened.count(), 3);
    stdin.write_all(b"news\n").unwrap();
    for client in clients.drain(..) {
        let output = client.wait_with_output().unwrap();
        assert_eq!((output.status.code(), &*output.stdout), (Some(0), &b"news\n"[..]));
    }
}

#[test]
fn clients_above_max_clients_are_rejected() {
    let mut server = Server::start(&["--max-clients", "1", "--jsonl"]);
    let mut stdout = BufReader::new(server.child.stdout.take().unwrap()).lines();
    let mut first = connect(&["--count", "1", "--wait", "1h", &server.url]).spawn().unwrap();
    assert!(stdout.next().unwrap().unwrap().contains("\"open\""));
    let second = run(&[&server.url], "hi\n");
    assert!(second.code == 3 && second.stderr.contains("503"), "{second:?}");
    first.kill().unwrap();
    first.wait().unwrap();
}

#[test]
fn server_uses_configured_subprotocol_and_headers() {
    let server = Server::start(&["--echo", "--subprotocol", "v1", "-H", "X-Who: me"]);
    let ran = echoed(&["--inspect", "--subprotocol", "v2,v1", &server.url]);
    assert!(ran.fine().contains("< Sec-WebSocket-Protocol: v1"), "{ran:?}");
    assert!(ran.text().contains("< X-Who: me"), "{ran:?}");
}
