//! Servers for tests, and a proxy before them.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::thread;

use redis::{Client, FromRedisValue, RedisResult};
use sinews_testkit::until;
use tempfile::TempDir;

/// A Redis server on a port of its own, which ends with this value.
pub(super) struct TestRedis {
    child: Child,
    pub(super) port: u16,
    pub(super) directory: TempDir,
    arguments: Vec<String>,
}

impl TestRedis {
    /// Starts a server with further arguments; `None` if none is installed.
    pub(super) fn start(arguments: &[&str]) -> Option<Self> {
        let (directory, port) = (tempfile::tempdir().expect("a directory"), free_port());
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let Ok(child) = spawn(port, &directory, &arguments) else {
            println!("skipped: redis-server is not installed (apt install redis-server)");
            return None;
        };
        let server = Self { child, port, directory, arguments };
        server.wait_until_up();
        Some(server)
    }

    fn wait_until_up(&self) {
        until("the server listens", || TcpStream::connect(("127.0.0.1", self.port)).is_ok());
    }

    pub(super) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Kills the server, and starts it again without its data.
    pub(super) fn restart(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.child = spawn(self.port, &self.directory, &self.arguments).expect("it is installed");
        self.wait_until_up();
    }

    /// Sends a signal, such as `STOP`.
    pub(super) fn signal(&self, name: &str) {
        let status = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status();
        assert!(status.expect("kill runs").success());
    }

    /// Runs a command whose words are separated by spaces.
    pub(super) fn try_run<T: FromRedisValue>(&self, command: &str) -> RedisResult<T> {
        self.try_run_words(&command.split(' ').collect::<Vec<_>>())
    }

    pub(super) fn try_run_words<T: FromRedisValue>(&self, words: &[&str]) -> RedisResult<T> {
        let mut connection = Client::open(self.url())?.get_connection()?;
        redis::cmd(words[0]).arg(&words[1..]).query(&mut connection)
    }

    pub(super) fn run<T: FromRedisValue>(&self, command: &str) -> T {
        self.try_run(command).unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    /// A field of `INFO`.
    pub(super) fn info(&self, field: &str) -> String {
        let text: String = self.run("INFO everything");
        let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value.unwrap_or_default().to_owned()
    }
}

impl Drop for TestRedis {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(port: u16, directory: &TempDir, arguments: &[String]) -> io::Result<Child> {
    let mut command = Command::new("redis-server");
    let port = port.to_string();
    command.args(["--bind", "127.0.0.1", "--port", &port, "--save", "", "--appendonly", "no"]);
    command.args(arguments).current_dir(directory).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

pub(super) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    listener.local_addr().expect("it is bound").port()
}

/// Passes connections on to a server.
pub(super) struct TestProxy {
    address: SocketAddr,
    state: Arc<ProxyState>,
}

#[derive(Default)]
struct ProxyState {
    /// The server's port.
    target: AtomicU16,
    /// Answers are dropped.
    is_silent: AtomicBool,
    /// Connections are closed, and further ones.
    is_cut: AtomicBool,
    /// Directions of connections.
    open: AtomicUsize,
}

impl TestProxy {
    pub(super) fn start(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let state = Arc::new(ProxyState { target: AtomicU16::new(port), ..ProxyState::default() });
        let shared = state.clone();
        // Until the process ends.
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let target = shared.target.load(Ordering::SeqCst);
                let Ok(server) = TcpStream::connect(("127.0.0.1", target)) else { continue };
                if shared.is_cut.load(Ordering::SeqCst) {
                    continue;
                }
                let (Ok(from), Ok(to)) = (client.try_clone(), server.try_clone()) else { continue };
                shared.open.fetch_add(2, Ordering::SeqCst);
                for (from, to, is_answer) in [(from, to, false), (server, client, true)] {
                    let state = shared.clone();
                    thread::spawn(move || {
                        let _ = copy(from, to, &state, is_answer);
                        state.open.fetch_sub(1, Ordering::SeqCst);
                    });
                }
            }
        });
        Self { address, state }
    }

    pub(super) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    pub(super) fn port(&self) -> u16 {
        self.address.port()
    }

    pub(super) fn set_silent(&self, is_silent: bool) {
        self.state.is_silent.store(is_silent, Ordering::SeqCst);
    }

    /// Closes all connections, and passes further ones to another server.
    pub(super) fn switch(&self, port: u16) {
        self.set_cut(true);
        until("all connections are closed", || self.state.open.load(Ordering::SeqCst) == 0);
        self.state.target.store(port, Ordering::SeqCst);
        self.set_cut(false);
    }

    pub(super) fn set_cut(&self, is_cut: bool) {
        self.state.is_cut.store(is_cut, Ordering::SeqCst);
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream, state: &ProxyState, is_answer: bool) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    from.set_read_timeout(Some(std::time::Duration::from_millis(20)))?;
    loop {
        if state.is_cut.load(Ordering::SeqCst) {
            let _ = from.shutdown(std::net::Shutdown::Both);
            return to.shutdown(std::net::Shutdown::Both);
        }
        match from.read(&mut buffer) {
            Ok(0) => return to.shutdown(std::net::Shutdown::Both),
            Ok(_) if is_answer && state.is_silent.load(Ordering::SeqCst) => {}
            Ok(count) => to.write_all(&buffer[..count])?,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}
