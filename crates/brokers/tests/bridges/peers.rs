//! Tests of the bridges against scripted brokers, which cause rare behavior of real ones at will.

use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use sinews_stream::broker::Broker;

use crate::broker::operations::{OPERATIONS, Operation};
use crate::broker::{Node, until};

/// Accepts connections, each served by its own thread.
struct Peer {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Peer {
    fn new(serve: impl Fn(TcpStream) -> io::Result<()> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let (is_over, serve) = (Arc::new(AtomicBool::new(false)), Arc::new(serve));
        let over = is_over.clone();
        let thread = thread::spawn(move || {
            for stream in listener.incoming() {
                if over.load(Ordering::SeqCst) {
                    return;
                }
                let (serve, stream) = (serve.clone(), stream.expect("a connection"));
                // The client closes the connection.
                thread::spawn(move || drop(serve(stream)));
            }
        });
        Self { address, is_over, thread: Some(thread) }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// The next line without its end; an error when the client has closed.
fn line(reader: &mut BufReader<TcpStream>) -> io::Result<String> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end().to_owned())
}

/// Reads this many bytes, and the end of the line behind them.
fn bytes(reader: &mut BufReader<TcpStream>, count: usize) -> io::Result<String> {
    let mut bytes = vec![0; count + 2];
    reader.read_exact(&mut bytes)?;
    bytes.truncate(count);
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Commands that a scripted broker has received, and the one that it rejects.
#[derive(Default)]
struct CommandLog {
    rejected: Mutex<Option<&'static str>>,
    received: Mutex<BTreeSet<String>>,
    connections: AtomicUsize,
}

impl CommandLog {
    /// Notes a command. Returns whether it is rejected.
    fn receive(&self, command: &str) -> bool {
        self.received.lock().unwrap().insert(command.to_owned());
        *self.rejected.lock().unwrap() == Some(command)
    }
}

/// Rejects each command in turn, and compares the operations that fail with those that need it.
fn reject_each_command(
    log: &CommandLog,
    connect: impl Fn() -> Arc<dyn Broker>,
    cases: &[(&'static str, &[Operation])],
    remedy: &str,
) {
    for (command, expected) in cases {
        *log.rejected.lock().unwrap() = Some(*command);
        let before = log.connections.load(Ordering::SeqCst);
        let (store, node) = (connect(), Node::new());
        for operation in OPERATIONS {
            let failed = operation.run(&*store, &node).err();
            assert_eq!(
                failed.is_some(),
                expected.contains(&operation),
                "{command}, {operation:?}: {failed:?}"
            );
            let Some(reason) = failed else { continue };
            let name = command.split(' ').next().unwrap_or_default();
            assert!(
                name == "HPUB" || reason.to_uppercase().contains(name),
                "{command}, {operation:?}: {reason}"
            );
            assert!(reason.contains(remedy), "{command}, {operation:?}: {reason}");
        }
        until("the broker counts as reachable", || store.health().ready);
        // One each for appends, announcements and everything else.
        let connections = log.connections.load(Ordering::SeqCst) - before;
        assert!(connections <= 3, "{command}: {connections} logins");
    }
    *log.rejected.lock().unwrap() = None;
}

/// Each received command has a case.
fn check_cases(log: &CommandLog, cases: &[(&'static str, &[Operation])]) {
    let received = log.received.lock().unwrap();
    let unknown: Vec<&String> =
        received.iter().filter(|name| cases.iter().all(|(known, _)| known != name)).collect();
    assert!(unknown.is_empty(), "commands without a case: {unknown:?}");
}

#[cfg(feature = "redis")]
mod redis;

#[cfg(feature = "nats")]
mod nats;

/// The rights of the documentation, at real brokers.
mod rights {
    use std::collections::BTreeMap;

    use sinews_testkit::{RealBroker, documented};

    use crate::broker::operations::OPERATIONS;
    use crate::broker::{Node, acked, publish, publish_once, until};

    const PAGE: &str = include_str!("../../../../docs/book/src/server/brokers.md");

    /// Runs all operations twice: a second node continues behind the records of its copy.
    fn use_all(broker: &RealBroker) {
        for _ in 0..2 {
            let store = sinews_brokers::connect(&broker.url, &BTreeMap::new()).expect("a URL");
            let node = Node::new();
            for stream in ["s", "t"] {
                assert!(acked(&mut publish(&*store, stream, 0, &["a", "b", "c"])).is_ok());
            }
            publish_once(&*store, "s", "key", "x");
            for operation in OPERATIONS {
                assert_eq!(operation.run(&*store, &node), Ok(()), "{operation:?}");
            }
            until("it is ready", || store.health().ready);
            assert_eq!(store.health().error, None, "nothing is rejected");
        }
    }

    #[cfg(feature = "redis")]
    #[test]
    fn documented_rights_of_redis_suffice() {
        let acl = documented(PAGE, "ACL SETUSER").trim().replace("ACL SETUSER", "user");
        let config =
            format!("port PORT\nbind 127.0.0.1\nsave \"\"\nappendonly no\nuser default off\n{acl}\n");
        let Some(broker) = RealBroker::start("redis-server", "redis", &config) else { return };
        use_all(&broker);
    }

    #[cfg(feature = "nats")]
    #[test]
    fn documented_rights_of_nats_suffice() {
        let rights = documented(PAGE, "permissions");
        let config = format!("listen: \"127.0.0.1:PORT\"\njetstream {{ store_dir: \"js\" }}\n{rights}\n");
        let Some(broker) = RealBroker::start("nats-server", "nats", &config) else { return };
        use_all(&broker);
    }
}
