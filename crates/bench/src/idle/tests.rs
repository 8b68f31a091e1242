use std::thread::JoinHandle;

use sinews_server::{Context, Handler, Payload, Router, Server, StopHandle, WebSocketRoute};

use super::*;

struct Silent;

impl Handler for Silent {
    fn message(&mut self, _: Payload<'_>, _: &mut Context<'_>) {}
}

/// A server in this process, so that both ends share its memory.
struct TestServer {
    url: String,
    stop: StopHandle,
    running: Option<JoinHandle<()>>,
}

impl TestServer {
    fn start() -> Self {
        let router = Router::new().websocket("/", WebSocketRoute::new(|_| Ok(Silent)));
        let server = Server::new(router).threads(1).listen(([127, 0, 0, 1], 0).into()).bind().unwrap();
        let (url, stop) = (format!("ws://{}/", server.addresses()[0]), server.stop_handle());
        let running = Some(thread::spawn(|| server.run().unwrap()));
        Self { url, stop, running }
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.stop.stop_now();
        self.running.take().unwrap().join().unwrap();
    }
}

fn parse(arguments: &[&str]) -> IdleArgs {
    let pid = std::process::id().to_string();
    let arguments = [&["idle", "--settle", "0s", "--quiet", "--pid", &pid], arguments].concat();
    match BenchArgs::parse(arguments).unwrap().command {
        Some(crate::args::BenchCommand::Idle(args)) => *args,
        other => panic!("{other:?}"),
    }
}

fn open_count(loads: &[IdleLoad]) -> Vec<u64> {
    loads.iter().map(|load| load.threads.sum(|live| live.open.get())).collect()
}

#[test]
fn steps_open_exactly_their_connections_on_all_urls() {
    let (first, second) = (TestServer::start(), TestServer::start());
    let args = parse(&[&first.url, &second.url, "-c", "5,9", "--rate", "100000", "--handshakes", "2"]);
    let (epoch, interrupt) = (Instant::now(), Interrupt::default());
    let steps = steps(&args).unwrap();
    let loads = start(&args, &steps, epoch).unwrap();
    let before = MemoryReading::take(&args.pid).unwrap();
    for (connections, shares) in [(5, [3, 2]), (9, [5, 4])] {
        let step = run_step(&args, &loads, connections, epoch, &before, &interrupt).unwrap().unwrap();
        assert_eq!((step.connections, open_count(&loads)), (connections, shares.to_vec()));
    }
    for load in loads {
        assert_eq!(load.threads.end().unwrap().0.failures(), 0);
    }
}

#[test]
fn loopback_server_gets_connections_from_several_addresses() {
    let args = parse(&["ws://127.0.0.1:1/"]);
    let remote = Remote::Tcp(([127, 0, 0, 1], 1).into());
    let some = source_addresses(&args, &remote, 100_000).unwrap();
    assert!(some.len() >= 2 && some.iter().all(IpAddr::is_loopback), "{some:?}");
    assert!(!some.contains(&[127, 0, 0, 1].into()));
    let remote = Remote::Tcp(([192, 0, 2, 1], 1).into());
    let error = source_addresses(&args, &remote, 1_000_000).unwrap_err();
    assert!(error.contains("--source"), "{error}");
    assert_eq!(source_addresses(&args, &remote, 10).unwrap(), Vec::<IpAddr>::new());
}

#[test]
fn refused_connections_end_the_run_with_their_error() {
    // Another test could take a free system port.
    let args = parse(&["ws://127.0.0.1:1/", "-c", "3"]);
    let error = run(&args, &Interrupt::default()).unwrap_err();
    assert!(error.contains("connection_refused"), "{error}");
}

#[test]
fn connections_must_ascend() {
    let args = parse(&["ws://127.0.0.1:1/", "-c", "10,10"]);
    assert!(steps(&args).unwrap_err().contains("ascending"));
}
