//! What an operator does to a store's streams.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::broker::real::url;

/// Sends one request to the API of JetStream, and returns the answer; empty if there is none, as without a leader.
pub(super) fn request(subject: &str, body: &str) -> String {
    let url = url("");
    let hosts = url.split_once("://").expect("a URL").1.trim_end_matches('?');
    let connected = hosts.split(',').find_map(|host| TcpStream::connect(host).ok());
    let mut server = connected.expect("a server runs");
    server.set_read_timeout(Some(Duration::from_secs(2))).expect("it is not zero");
    let mut lines = BufReader::new(server.try_clone().expect("a descriptor"));
    let commands = format!(
        "CONNECT {{\"verbose\":false}}\r\nSUB answer 1\r\nPUB $JS.API.{subject} answer {}\r\n{body}\r\n",
        body.len()
    );
    server.write_all(commands.as_bytes()).expect("it is open");
    loop {
        let mut line = String::new();
        if lines.read_line(&mut line).unwrap_or(0) == 0 {
            return line;
        }
        match line.trim_end() {
            "PING" => server.write_all(b"PONG\r\n").expect("it is open"),
            line if line.starts_with("MSG ") => {
                let mut answer = String::new();
                lines.read_line(&mut answer).expect("it answers");
                return answer;
            }
            line => assert!(!line.starts_with("-ERR"), "{line}"),
        }
    }
}
