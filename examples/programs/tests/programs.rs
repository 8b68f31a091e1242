//! Starts the programs and exchanges messages with them.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sinews::{CloseCode, Message, accept, connect};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// Time limit of one test; it needs a second or two.
const LIMIT: Duration = Duration::from_secs(60);

/// A running server, stopped on drop.
struct Running {
    child: Child,
    url: String,
}

impl Running {
    fn start(program: &str) -> Self {
        let mut command = Command::new(program);
        let mut child = command.arg("127.0.0.1:0").stdout(Stdio::piped()).spawn().expect("it was built");
        let mut line = String::new();
        let output = child.stdout.as_mut().expect("it was asked for");
        BufReader::new(output).read_line(&mut line).expect("it speaks");
        let address = line.trim().strip_prefix("listening on ").expect("it says where it listens");
        Self { url: format!("ws://{address}/"), child }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only if it has exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn assert_echoes(program: &str) {
    let server = Running::start(program);
    let work = async {
        let mut ws = connect(&server.url).await.expect("connected");
        for message in [Message::text("hello"), Message::binary(vec![7; 100_000])] {
            ws.send(message.clone()).await.expect("open");
            assert_eq!(ws.next().await.expect("open").expect("sound"), message);
        }
        let closed = ws.close(CloseCode::NORMAL, "done").await.expect("in order");
        assert_eq!(closed.code(), Some(CloseCode::NORMAL));
    };
    timeout(LIMIT, work).await.expect("in time");
}

#[tokio::test]
async fn the_echo_server_echoes() {
    assert_echoes(env!("CARGO_BIN_EXE_echo-server")).await;
}

#[tokio::test]
async fn the_route_of_axum_echoes() {
    assert_echoes(env!("CARGO_BIN_EXE_echo-axum")).await;
}

/// Skipped where the machine denies io_uring.
#[tokio::test]
async fn the_echo_on_compio_echoes() {
    if compio::runtime::Runtime::new().is_ok() {
        assert_echoes(env!("CARGO_BIN_EXE_echo-compio")).await;
    }
}

#[tokio::test]
async fn the_interval_server_ticks_while_it_echoes() {
    let server = Running::start(env!("CARGO_BIN_EXE_interval-server"));
    let work = async {
        let mut ws = connect(&server.url).await.expect("connected");
        let (mut ticks, mut echoes) = (0, 0);
        ws.send("hello").await.expect("open");
        while ticks < 2 || echoes < 100 {
            match ws.next().await.expect("open").expect("sound").as_text() {
                Some("tick") => ticks += 1,
                Some("hello") => {
                    echoes += 1;
                    ws.send("hello").await.expect("open");
                }
                other => panic!("{other:?}"),
            }
        }
        ws.close(CloseCode::NORMAL, "").await.expect("in order");
    };
    timeout(LIMIT, work).await.expect("in time");
}

/// A fuzzing server with two cases: an echo, and a message over the limit.
async fn suite(stream: TcpStream, seen: Arc<Mutex<Vec<String>>>) {
    let (mut ws, request) = accept(stream).open().await.expect("a handshake");
    let target = format!("{}?{}", request.path(), request.query().unwrap_or_default());
    let mut outcome = String::new();
    match &*target {
        "/getCaseCount?" => ws.send("2").await.expect("open"),
        "/runCase?case=1&agent=sinews" => {
            ws.send("an echo").await.expect("open");
            outcome = format!(" {:?}", ws.next().await.expect("open").expect("sound"));
        }
        "/runCase?case=2&agent=sinews" => {
            ws.send("over the limit ".repeat(1 << 21)).await.expect("open");
            let end = ws.next().await.expect("open").expect("sound");
            outcome = format!(" {end:?}");
        }
        _ => {}
    }
    seen.lock().unwrap_or_else(PoisonError::into_inner).push(target + &outcome);
    let _ = ws.close(CloseCode::NORMAL, "").await;
}

async fn assert_goes_through_all_cases(program: &str) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let url = format!("ws://{}", listener.local_addr().expect("bound"));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let served = seen.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            suite(stream, served.clone()).await;
        }
    });
    let mut command = tokio::process::Command::new(program);
    let client = command.arg(url).kill_on_drop(true).status();
    let status = timeout(LIMIT, client).await.expect("in time").expect("it was built");
    assert!(status.success(), "{status}");
    let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(seen.len(), 4, "{seen:?}");
    assert_eq!(seen[0], "/getCaseCount?");
    assert_eq!(seen[1], "/runCase?case=1&agent=sinews Text(\"an echo\")");
    assert!(
        seen[2].starts_with("/runCase?case=2&agent=sinews Close(") && seen[2].contains("1009"),
        "{}",
        seen[2]
    );
    assert_eq!(seen[3], "/updateReports?agent=sinews");
}

#[tokio::test]
async fn the_autobahn_client_runs_all_cases() {
    assert_goes_through_all_cases(env!("CARGO_BIN_EXE_autobahn-client")).await;
}

/// Skipped where the machine denies io_uring.
#[tokio::test]
async fn the_autobahn_client_on_compio_does_the_same() {
    if compio::runtime::Runtime::new().is_ok() {
        assert_goes_through_all_cases(env!("CARGO_BIN_EXE_autobahn-client-compio")).await;
    }
}
