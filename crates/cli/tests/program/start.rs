//! Start of the program: table, signals and limits.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use sinews_testkit::{Frame, Reply};

use crate::support::{PROGRAM, Running, Socket, fails, program, program_at, program_with_descriptors};

#[test]
fn default_start_serves_all_routes_of_the_table() {
    let server = Running::start(program().env("SINEWS_LISTEN", "127.0.0.1:0"));
    for line in ["/echo", "/topics/{name}", "curl -d hello", "/healthz", "deflate shared", "descriptors"] {
        assert!(server.table.contains(line), "{line} in {}", server.table);
    }
    for path in ["/", "/chat", "/console", "/dashboard"] {
        let page = server.get(path);
        assert!(page.starts_with("HTTP/1.1 200 OK\r\n") && page.contains("\r\nContent-Security-Policy: "));
        assert!(page.contains(" connect-src 'self';"), "connections to the own origin only");
        assert!(page.contains("<!doctype html>"), "{page}");
        assert!(!page.contains("'unsafe-inline'"), "script and style of {path} are files");
    }
    for path in ["/", "/chat", "/console.js", "/sinews.js", "/pages.css"] {
        pages_are_compressed_and_revalidated(&server, path);
    }
    for path in [
        "/start.js",
        "/chat.js",
        "/chat.css",
        "/console.js",
        "/calls.js",
        "/dashboard.js",
        "/clients.js",
        "/pages.css",
    ] {
        assert!(server.get(path).contains("\r\nX-Content-Type-Options: nosniff\r\n"), "{path}");
    }
    let client = server.get("/sinews.js");
    assert!(client.contains("\r\nContent-Type: text/javascript; charset=utf-8\r\n"), "{client}");
    assert!(client.contains("export function connect(") && server.get("/sinews.d.ts").contains("connect("));
    assert!(server.get("/healthz").ends_with("\r\n\r\nok\n"));
    assert!(server.get("/readyz").starts_with("HTTP/1.1 200 "));
    assert!(server.get("/metrics").contains("\nsinews_connections_accepted_total "));
    assert!(server.get("/nowhere").starts_with("HTTP/1.1 404 "));
    assert!(server.request("POST /healthz HTTP/1.1", "").contains("\r\nAllow: GET, HEAD, OPTIONS\r\n"));
    let mut echo = server.websocket("/echo");
    echo.send(&Frame::text("hello"));
    assert_eq!(echo.next(), Some(Reply::text("hello")));
}

fn pages_are_compressed_and_revalidated(server: &Running, path: &str) {
    let whole = server.get(path);
    let etag = whole.lines().find_map(|line| line.strip_prefix("ETag: ")).expect("an ETag").to_owned();
    assert!(whole.contains("\r\nVary: Accept-Encoding\r\n"), "{path}");
    let unchanged = server.request(&format!("GET {path} HTTP/1.1\r\nIf-None-Match: {etag}"), "");
    assert!(unchanged.starts_with("HTTP/1.1 304 ") && unchanged.ends_with("\r\n\r\n"), "{unchanged}");
    let changed = server.request(&format!("GET {path} HTTP/1.1\r\nIf-None-Match: \"other\""), "");
    assert!(changed.starts_with("HTTP/1.1 200 "), "{path}");
    let head = server.request(&format!("HEAD {path} HTTP/1.1\r\nAccept-Encoding: gzip"), "");
    assert!(head.contains("\r\nContent-Encoding: gzip\r\n") && !head.contains(&etag), "{head}");
    let length = |answer: &str| {
        let line = answer.lines().find_map(|line| line.strip_prefix("Content-Length: "));
        line.expect("a length").parse::<usize>().unwrap()
    };
    assert!(length(&head) * 10 < length(&whole) * 7, "{path}: {} of {}", length(&head), length(&whole));
}

#[test]
fn publications_by_post_and_socket_reach_all_subscribers() {
    let server = Running::serve(&["--threads", "2"]);
    let mut one = server.websocket("/topics/a%20room");
    let mut two = server.websocket("/topics/a%20room?self=false");
    let mut elsewhere = server.websocket("/topics/another");
    // The answer implies that the earlier subscription is active.
    for socket in [&mut one, &mut two, &mut elsewhere] {
        socket.send(&Frame::ping(""));
        assert_eq!(socket.next(), Some(Reply::Pong(Vec::new())));
    }
    let answer = server.request("POST /topics/a%20room HTTP/1.1", "posted");
    assert!(answer.contains("\r\nContent-Type: application/json\r\n"), "{answer}");
    assert!(answer.ends_with("{\"subscribers\":2,\"topic\":\"a room\"}\n"), "{answer}");
    assert_eq!((one.next(), two.next()), (Some(Reply::text("posted")), Some(Reply::text("posted"))));
    one.send(&Frame::text("from one"));
    assert_eq!((one.next(), two.next()), (Some(Reply::text("from one")), Some(Reply::text("from one"))));
    two.send(&Frame::binary("from two"));
    assert_eq!(one.next(), Some(Reply::binary("from two")));
    two.send(&Frame::ping("alone"));
    assert_eq!(two.next(), Some(Reply::Pong(b"alone".to_vec())), "?self=false spares the sender");
    elsewhere.send(&Frame::ping("alone"));
    assert_eq!(elsewhere.next(), Some(Reply::Pong(b"alone".to_vec())));

    // A pattern receives matching messages, and publishes nothing.
    let mut all = server.websocket("/topics/prices.*");
    all.send(&Frame::ping(""));
    assert_eq!(all.next(), Some(Reply::Pong(Vec::new())));
    let answer = server.request("POST /topics/prices.gold HTTP/1.1", "1");
    assert!(answer.ends_with("{\"subscribers\":1,\"topic\":\"prices.gold\"}\n"), "{answer}");
    assert_eq!(all.next(), Some(Reply::text("1")));
    all.send(&Frame::text("rejected"));
    assert_eq!(all.next().and_then(|close| close.close_code()), Some(1008));
    assert!(server.request("POST /topics/prices.* HTTP/1.1", "x").starts_with("HTTP/1.1 400 "));

    let long = format!("/topics/{}", "x".repeat(257));
    for path in ["/topics/a%0Ab", "/topics/%FF", &long] {
        assert!(server.request(&format!("POST {path} HTTP/1.1"), "x").starts_with("HTTP/1.1 400 "), "{path}");
        assert!(server.try_websocket(path, "").is_err_and(|head| head.starts_with("HTTP/1.1 400 ")));
    }
    assert!(server.try_websocket("/topics/a?self=maybe", "").is_err());
    let foreign = "http://elsewhere.example";
    assert!(server.rejects_origin("/echo", foreign));
    let posted = server.request(&format!("POST /topics/a HTTP/1.1\r\nOrigin: {foreign}"), "x");
    assert!(posted.starts_with("HTTP/1.1 403 "), "{posted}");
}

#[test]
fn signal_closes_all_clients_and_exits_with_success() {
    for signal in ["TERM", "INT"] {
        let server = Running::serve(&["--threads", "2"]);
        let mut sockets: Vec<Socket> = (0..10).map(|_| server.websocket("/echo")).collect();
        server.signal(signal);
        for socket in &mut sockets {
            assert_eq!(socket.next().and_then(|reply| reply.close_code()), Some(1001));
            socket.send(&Frame::close(1001, ""));
            assert_eq!(socket.next(), None);
        }
        drop(sockets);
        let (status, log) = server.wait();
        assert!(status.success(), "{status}");
        assert!(log.contains("a second signal stops at once") && log.contains("stopped"), "{log}");
    }
}

/// As in `sinews serve 2>&1 | head`.
#[test]
fn closed_stderr_does_not_stop_the_server() {
    let mut server = Running::serve(&["--log", "trace"]);
    drop(server.child.stderr.take());
    assert!(server.get("/healthz").starts_with("HTTP/1.1 200 "));
    server.signal("TERM");
    assert!(server.wait().0.success());
}

#[test]
fn second_signal_stops_without_waiting_for_clients() {
    let server = Running::serve(&[]);
    let mut silent = server.websocket("/echo");
    server.signal("TERM");
    // Wait for the first signal, so that the second one is separate.
    assert_eq!(silent.next().and_then(|reply| reply.close_code()), Some(1001));
    server.signal("TERM");
    assert_eq!(silent.next(), None);
    assert!(server.wait().0.success());
}

#[test]
fn settings_come_from_flags_and_from_the_environment() {
    let offer = "Sec-WebSocket-Extensions: permessage-deflate\r\n";
    let compresses = |server: &Running| {
        let socket = server.try_websocket("/echo", offer).unwrap();
        socket.head.contains("permessage-deflate")
    };
    let takes = |server: &Running, size: usize| {
        let mut socket = server.websocket("/echo");
        socket.send(&Frame::binary(vec![0; size]));
        matches!(socket.next(), Some(Reply::Message(..)))
    };
    let server =
        Running::serve(&["--deflate", "off", "--max-message", "1k", "--threads", "1", "--backend", "poll"]);
    assert!(!compresses(&server) && takes(&server, 1024) && !takes(&server, 1025));
    assert!(server.table.contains("1 thread ") && server.table.contains("deflate off"), "{}", server.table);
    let body = "x".repeat(1025);
    assert!(server.request("POST /topics/a HTTP/1.1", &body).starts_with("HTTP/1.1 413 "));
    // The environment, with and without the subcommand; a flag overrides it.
    for subcommand in [&[][..], &["serve"]] {
        let server = Running::start(
            program()
                .args(subcommand)
                .args(["--threads", "3"])
                .env("SINEWS_LISTEN", "127.0.0.1:0,127.0.0.1:0")
                .env("SINEWS_THREADS", "1")
                .env("SINEWS_DEFLATE", "dedicated")
                .env("SINEWS_MAX_MESSAGE", "2k")
                .env("SINEWS_BACKEND", "auto")
                .env("SINEWS_ORIGIN", "https://example.com")
                .env("SINEWS_LOG", "error"),
        );
        assert!(server.table.contains("3 threads") && server.table.contains("deflate dedicated"));
        assert_eq!(server.table.matches("/healthz").count(), 2, "{}", server.table);
        assert!(compresses(&server) && takes(&server, 2048) && !takes(&server, 2049));
        assert!(!server.rejects_origin("/echo", "https://example.com"));
        assert!(server.rejects_origin("/echo", "http://localhost"));
        server.signal("TERM");
        assert_eq!(server.wait().1, "", "nothing is logged below the level");
    }
}

#[test]
fn startup_error_is_one_line_that_names_the_setting() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let one_line = |message: String, parts: &[&str]| {
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(parts.iter().all(|part| message.contains(part)), "{parts:?} in {message}");
    };
    one_line(fails(program().args(["--listen", &address])), &[&address, "in use", "--listen"]);
    one_line(fails(program().args(["--listen", "192.0.2.1:80"])), &["192.0.2.1:80", "--listen"]);
    one_line(fails(program().args(["--origin", "example.com"])), &["--origin example.com"]);
    one_line(fails(program().args(["--log", "a=b=c"])), &["--log a=b=c"]);
    // Errors of the command-line parser: the first line has the error, then the usage.
    for (setting, value) in [
        ("--listen", "nowhere"),
        ("--threads", "0"),
        ("--max-message", "1x"),
        ("--deflate", "on"),
        ("--backend", "x"),
    ] {
        let message = fails(program().args([setting, value]));
        let first = message.lines().next().unwrap();
        assert!(
            first.starts_with("error: ") && first.contains(setting) && first.contains(value),
            "{message}"
        );
        let name = format!("SINEWS_{}", setting[2..].to_uppercase().replace('-', "_"));
        let message = fails(program().env(&name, value));
        let first = message.lines().next().unwrap();
        assert!(first.contains(&name) && first.contains(value), "{message}");
    }
    assert!(fails(program().arg("--lissten")).lines().next().unwrap().contains("--lissten"));
    assert!(fails(program().args(["serve", "now"])).contains("now"));
}

#[test]
fn server_warns_of_few_descriptors_and_survives_their_exhaustion() {
    let server =
        Running::start(program_with_descriptors(40).args(["--listen", "127.0.0.1:0", "--threads", "1"]));
    // Well above the limit: the kernel accepts these connections, the server cannot.
    let mut waiting: Vec<TcpStream> = (0..60).map(|_| server.connect()).collect();
    let ask = |stream: &mut TcpStream| {
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200");
    };
    ask(&mut waiting[0]);
    // Closed connections make room for all waiting connections.
    let mut last = waiting.pop().unwrap();
    waiting.truncate(1);
    ask(&mut last);
    assert!(server.get("/healthz").starts_with("HTTP/1.1 200 "));
    server.signal("TERM");
    drop((waiting, last));
    let (status, log) = server.wait();
    assert!(status.success());
    assert!(log.contains("few file descriptors") && log.contains("ulimit -Hn"), "{log}");

    let message = fails(program_with_descriptors(10).args(["--listen", "127.0.0.1:0", "--threads", "16"]));
    let last = message.lines().last().unwrap();
    assert!(last.contains("ulimit -n") && last.contains("--threads"), "{message}");
}

#[test]
fn descriptor_limit_is_raised_to_the_hard_limit() {
    let mut shell = program_at("sh", None);
    shell.args(["-c", "ulimit -Sn 100 && ulimit -Hn 3000 && exec \"$@\"", "sh", PROGRAM]);
    let server = Running::start(shell.args(["--listen", "127.0.0.1:0", "--threads", "1"]));
    assert!(server.table.contains(" 3000 descriptors"), "{}", server.table);
    let many: Vec<TcpStream> = (0..200).map(|_| server.connect()).collect();
    assert!(server.get("/healthz").starts_with("HTTP/1.1 200 "));
    drop(many);
    let log = {
        server.signal("TERM");
        server.wait().1
    };
    assert!(!log.contains("few"), "{log}");
}

#[test]
#[cfg(target_os = "linux")]
fn rejected_io_uring_is_explained_and_auto_falls_back() {
    // The filter applies to this thread and its children only.
    let refused = std::thread::spawn(|| {
        refuse_io_uring();
        let message = fails(program().args(["serve", "--backend", "uring", "--listen", "127.0.0.1:0"]));
        assert_eq!(message.lines().count(), 1, "{message}");
        for part in ["--backend uring: ", "io_uring_setup", "seccomp", "Remedy", "or use auto or poll"] {
            assert!(message.contains(part), "{part} in {message}");
        }
        let mut server = Running::serve(&["--backend", "auto", "--threads", "2"]);
        assert!(server.table.contains("readiness"), "{}", server.table);
        assert!(server.get("/healthz").starts_with("HTTP/1.1 200"));
        server.signal("TERM");
        let mut log = String::new();
        server.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        assert!(server.child.wait().unwrap().success());
        let matching: Vec<&str> =
            log.lines().filter(|line| line.contains("io_uring cannot be used")).collect();
        assert!(
            matches!(matching[..], [line] if line.contains("seccomp") && line.contains("Remedy")),
            "{log}"
        );
    });
    refused.join().unwrap();
}

/// Filters io_uring for the calling thread and its children, as the default profile of container runtimes does.
#[cfg(target_os = "linux")]
fn refuse_io_uring() {
    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
    let rules = [(libc::SYS_io_uring_setup, Vec::new())].into_iter().collect();
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch).unwrap();
    let program: BpfProgram = filter.try_into().unwrap();
    seccompiler::apply_filter(&program).unwrap();
}
