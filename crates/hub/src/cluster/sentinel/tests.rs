use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::thread::{self, JoinHandle};

use super::*;

/// Returns the address of a sentinel that reads a command, writes a reply, and so on; then it closes the connection.
/// The thread returns all commands.
fn sentinel(replies: &'static [&'static str]) -> (String, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serving = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let (mut commands, mut chunk) = (String::new(), [0; 4096]);
        for reply in replies {
            let count = stream.read(&mut chunk).unwrap();
            commands.push_str(&String::from_utf8_lossy(&chunk[..count]));
            // In two parts.
            let (first, second) = reply.split_at(reply.len() / 2);
            stream.write_all(first.as_bytes()).unwrap();
            stream.flush().unwrap();
            let _ = stream.write_all(second.as_bytes());
        }
        commands
    });
    (address, serving)
}

fn find(sentinels: &[String], password: Option<&str>) -> Result<String, String> {
    let query = SentinelQuery { service: "main", user: Some("ann"), password, tls: None };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(query.find_primary(sentinels))
}

const FOUND: &str = "*2\r\n$8\r\n10.0.0.1\r\n$4\r\n6379\r\n";

#[test]
fn sentinel_is_asked_for_the_service() {
    let (address, serving) = sentinel(&[FOUND]);
    assert_eq!(find(&[address], Some("secret")), Ok("10.0.0.1:6379".to_owned()));
    let commands = serving.join().unwrap();
    assert_eq!(commands, "*3\r\n$8\r\nSENTINEL\r\n$23\r\nget-master-addr-by-name\r\n$4\r\nmain\r\n");
    let (address, _) = sentinel(&["*2\r\n$3\r\n::1\r\n$4\r\n6379\r\n"]);
    assert_eq!(find(&[address], None), Ok("[::1]:6379".to_owned()));
}

#[test]
fn sentinel_gets_the_password_only_if_it_asks_for_a_login() {
    let (address, serving) = sentinel(&["-NOAUTH Authentication required.\r\n", "+OK\r\n", FOUND]);
    assert_eq!(find(&[address], Some("secret")), Ok("10.0.0.1:6379".to_owned()));
    assert!(serving.join().unwrap().contains("*3\r\n$4\r\nAUTH\r\n$3\r\nann\r\n$6\r\nsecret\r\n"));
    let (address, _) = sentinel(&["-NOAUTH Authentication required.\r\n"]);
    assert!(find(&[address], None).unwrap_err().contains("NOAUTH"));
    let (address, _) = sentinel(&["-NOAUTH x\r\n", "-ERR AUTH secret is wrong\r\n"]);
    let error = find(&[address], Some("secret")).unwrap_err();
    assert!(error.contains("is wrong") && !error.contains("secret"), "{error}");
}

#[test]
fn sentinel_without_an_address_is_named_with_the_reason() {
    let long: &str = Box::leak(format!("+{}", "x".repeat(REPLY_MAX)).into_boxed_str());
    let long: &'static [&str] = Box::leak(vec![long].into_boxed_slice());
    let cases: [(&[&str], &str); 7] = [
        (&["*-1\r\n"], "does not know the service main"),
        (&["_\r\n"], "does not know the service main"),
        (&["*2\r\n$1\r\nh\r\n$5\r\n99999\r\n"], "does not know the service main"),
        (&["-ERR unknown command 'SENTINEL'\r\n"], "unknown command"),
        (&["HTTP/1.1 400 Bad Request\r\n"], "HTTP/1.1 400"),
        (&["*2\r\n$1\r\nh"], "has closed the connection"),
        (long, "reply exceeds"),
    ];
    for (replies, reason) in cases {
        let (address, _serving) = sentinel(replies);
        let error = find(std::slice::from_ref(&address), None).unwrap_err();
        assert!(error.contains(&format!("sentinel {address}: ")) && error.contains(reason), "{error}");
    }
}

#[test]
fn sentinels_that_are_silent_or_lack_the_service_do_not_hide_one_that_has_it() {
    // It accepts the connection by its queue, and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let (unknown, _) = sentinel(&["*-1\r\n"]);
    let (known, _) = sentinel(&[FOUND]);
    let all = [silent.local_addr().unwrap().to_string(), "name.invalid:1".to_owned(), unknown, known];
    assert_eq!(find(&all, None), Ok("10.0.0.1:6379".to_owned()));
}
