//! Proxies with faults.

use std::borrow::Cow;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use socket2::SockRef;

pub(super) use crate::driver::ProxyFault;

/// Maximum time until a direction notices a fault.
const TICK: Duration = Duration::from_millis(5);
/// What the rule for failovers is in a script, and a text of the same length without it.
const JUMP: (&[u8], &[u8]) = (b"local JUMP = 1048576", b"local JUMP = 1      ");

/// Passes connections on to a server.
pub(super) struct Proxy {
    port: u16,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    target: u16,
    is_closed: bool,
    /// The last fault, and its end.
    fault: Option<(ProxyFault, Instant)>,
    open: Vec<Arc<Connection>>,
    has_ended: bool,
}

struct Connection {
    client: TcpStream,
    server: TcpStream,
    is_over: AtomicBool,
    /// Answers were dropped.
    is_broken: AtomicBool,
}

impl Proxy {
    /// `stops_jumps`: scripts of Redis are changed, so that no sequence jumps.
    pub(super) fn start(target: u16, stops_jumps: bool) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let state = Arc::new(Mutex::new(State { target, ..State::default() }));
        let proxy = Self { port, state: Arc::clone(&state) };
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if lock(&state).has_ended {
                    return;
                }
                // A server that is away, or a fault, closes the connection.
                let _ = accept(&state, client, stops_jumps);
            }
        });
        Ok(proxy)
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Passes further connections on to this server.
    pub(super) fn set_target(&self, port: u16) {
        lock(&self.state).target = port;
    }

    /// Closes all connections, and rejects further ones.
    pub(super) fn set_closed(&self, is_closed: bool) {
        let mut state = lock(&self.state);
        state.is_closed = is_closed;
        if is_closed {
            state.close();
        }
    }

    /// Begins a fault in place of the last one.
    pub(super) fn fail(&self, fault: ProxyFault, time: Duration) {
        let mut state = lock(&self.state);
        state.fault = Some((fault, Instant::now() + time));
        match fault {
            ProxyFault::Cut => state.close(),
            ProxyFault::Reset => {
                for connection in state.open.drain(..) {
                    // Closing it resets it then.
                    let _ = SockRef::from(&connection.client).set_linger(Some(Duration::ZERO));
                    let _ = SockRef::from(&connection.server).set_linger(Some(Duration::ZERO));
                    connection.is_over.store(true, Ordering::SeqCst);
                }
            }
            _ => {}
        }
    }

    pub(super) fn heal(&self) {
        lock(&self.state).fault = None;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        state.has_ended = true;
        state.close();
        drop(state);
        // Wakes the listener.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

impl State {
    fn fault(&self) -> Option<ProxyFault> {
        self.fault.filter(|(_, end)| *end > Instant::now()).map(|(fault, _)| fault)
    }

    fn close(&mut self) {
        for connection in self.open.drain(..) {
            connection.end();
        }
    }
}

impl Connection {
    fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        // The peers may have closed them.
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }
}

fn accept(state: &Arc<Mutex<State>>, client: TcpStream, stops_jumps: bool) -> io::Result<()> {
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, lock(state).target))?;
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TICK))?;
    }
    let connection = Arc::new(Connection {
        client,
        server,
        is_over: AtomicBool::new(false),
        is_broken: AtomicBool::new(false),
    });
    let mut guard = lock(state);
    if guard.is_closed || guard.fault() == Some(ProxyFault::Cut) {
        return Ok(());
    }
    guard.open.retain(|other| !other.is_over.load(Ordering::SeqCst));
    guard.open.push(Arc::clone(&connection));
    drop(guard);
    for is_answer in [false, true] {
        let (connection, state) = (Arc::clone(&connection), Arc::clone(state));
        thread::spawn(move || {
            let ended = forward(&connection, &state, is_answer, stops_jumps && !is_answer);
            // A reset keeps the connection open until it is dropped.
            if ended.is_err() {
                connection.end();
            }
        });
    }
    Ok(())
}

/// Passes one direction on. An error closes both; otherwise the connection is over.
fn forward(
    connection: &Connection,
    state: &Mutex<State>,
    is_answer: bool,
    stops_jumps: bool,
) -> io::Result<()> {
    let (mut from, mut to) = (&connection.client, &connection.server);
    if is_answer {
        (from, to) = (to, from);
    }
    let mut buffer = vec![0; 256 << 10];
    loop {
        let fault = pass(connection, state, is_answer)?;
        if connection.is_over.load(Ordering::SeqCst) {
            return Ok(());
        }
        if fault != Some(ProxyFault::AnswersDropped) && connection.is_broken.load(Ordering::SeqCst) {
            return Err(ErrorKind::ConnectionAborted.into());
        }
        let count = match from.read(&mut buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => continue,
            Err(error) => return Err(error),
        };
        let bytes = change(&buffer[..count], stops_jumps);
        match pass(connection, state, is_answer)? {
            Some(ProxyFault::AnswersDropped) if is_answer => {
                connection.is_broken.store(true, Ordering::SeqCst)
            }
            Some(ProxyFault::Delay(milliseconds)) => {
                thread::sleep(Duration::from_millis(u64::from(milliseconds)));
                to.write_all(&bytes)?;
            }
            Some(ProxyFault::Bytes) => bytes.chunks(1).try_for_each(|byte| to.write_all(byte))?,
            _ => to.write_all(&bytes)?,
        }
    }
}

/// Waits while a fault holds this direction, and returns the fault that remains.
fn pass(connection: &Connection, state: &Mutex<State>, is_answer: bool) -> io::Result<Option<ProxyFault>> {
    loop {
        let fault = lock(state).fault();
        let is_held = match fault {
            Some(ProxyFault::Silent) => true,
            Some(ProxyFault::RequestsHeld) => !is_answer,
            Some(ProxyFault::AnswersHeld) => is_answer,
            _ => false,
        };
        if !is_held || connection.is_over.load(Ordering::SeqCst) {
            return Ok(fault);
        }
        thread::sleep(TICK);
    }
}

fn change(bytes: &[u8], stops_jumps: bool) -> Cow<'_, [u8]> {
    let (rule, other) = JUMP;
    let place = bytes.windows(rule.len()).position(|window| stops_jumps && window == rule);
    let Some(place) = place else { return Cow::Borrowed(bytes) };
    let rest = change(&bytes[place + rule.len()..], stops_jumps);
    Cow::Owned([&bytes[..place], other, &rest].concat())
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than a test.
    const ALWAYS: Duration = Duration::from_secs(600);
    const LIMIT: Duration = Duration::from_secs(30);

    /// A server that sends back what it receives.
    fn echo() -> u16 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        let port = listener.local_addr().expect("it is bound").port();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                thread::spawn(move || {
                    let (mut from, mut to) = (&stream, &stream);
                    let _ = io::copy(&mut from, &mut to);
                });
            }
        });
        port
    }

    fn connect(proxy: &Proxy) -> TcpStream {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).expect("it listens");
        stream.set_read_timeout(Some(LIMIT)).expect("it is not zero");
        stream
    }

    fn ask(stream: &mut TcpStream, text: &[u8]) -> io::Result<Vec<u8>> {
        stream.write_all(text)?;
        let mut answer = vec![0; text.len()];
        stream.read_exact(&mut answer)?;
        Ok(answer)
    }

    fn start(stops_jumps: bool) -> Proxy {
        Proxy::start(echo(), stops_jumps).expect("a port is free")
    }

    #[test]
    fn bytes_arrive_late_or_one_by_one_unchanged() {
        let proxy = start(false);
        let mut stream = connect(&proxy);
        for fault in [None, Some(ProxyFault::Delay(1)), Some(ProxyFault::Bytes)] {
            if let Some(fault) = fault {
                proxy.fail(fault, ALWAYS);
            }
            assert_eq!(ask(&mut stream, b"some text").expect("it answers"), b"some text", "{fault:?}");
        }
    }

    #[test]
    fn connections_are_closed_and_rejected_until_the_end_of_the_fault() {
        let proxy = start(false);
        for is_closed in [false, true] {
            let mut stream = connect(&proxy);
            assert!(ask(&mut stream, b"a").is_ok());
            if is_closed {
                proxy.set_closed(true)
            } else {
                proxy.fail(ProxyFault::Cut, ALWAYS)
            }
            assert!(ask(&mut stream, b"b").is_err());
            assert!(ask(&mut connect(&proxy), b"c").is_err());
            proxy.heal();
            proxy.set_closed(false);
            assert!(ask(&mut connect(&proxy), b"d").is_ok());
        }
    }

    #[test]
    fn connections_are_reset_once() {
        let proxy = start(false);
        let mut stream = connect(&proxy);
        assert!(ask(&mut stream, b"a").is_ok());
        proxy.fail(ProxyFault::Reset, ALWAYS);
        let error = stream.read(&mut [0]).expect_err("it is reset");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        assert!(ask(&mut connect(&proxy), b"b").is_ok());
    }

    #[test]
    fn held_bytes_arrive_when_the_fault_ends() {
        for fault in [ProxyFault::Silent, ProxyFault::RequestsHeld, ProxyFault::AnswersHeld] {
            let proxy = start(false);
            let mut stream = connect(&proxy);
            assert!(ask(&mut stream, b"a").is_ok());
            proxy.fail(fault, ALWAYS);
            stream.set_read_timeout(Some(10 * TICK)).expect("it is not zero");
            assert!(ask(&mut stream, b"b").is_err(), "{fault:?}");
            proxy.heal();
            stream.set_read_timeout(Some(LIMIT)).expect("it is not zero");
            let mut answer = [0];
            stream.read_exact(&mut answer).expect("it arrives");
            assert_eq!(&answer, b"b", "{fault:?}");
        }
    }

    #[test]
    fn dropped_answers_close_the_connection_when_the_fault_ends() {
        let proxy = start(false);
        let mut stream = connect(&proxy);
        assert!(ask(&mut stream, b"a").is_ok());
        proxy.fail(ProxyFault::AnswersDropped, ALWAYS);
        stream.set_read_timeout(Some(10 * TICK)).expect("it is not zero");
        assert!(ask(&mut stream, b"b").is_err());
        proxy.heal();
        stream.set_read_timeout(Some(LIMIT)).expect("it is not zero");
        assert_eq!(stream.read(&mut [0]).expect("it is closed"), 0);
        assert!(ask(&mut connect(&proxy), b"c").is_ok());
    }

    #[test]
    fn rule_is_replaced_by_one_of_the_same_length() {
        let text = [b"-- 1\n", JUMP.0, b"\n-- 2\n", JUMP.0].concat();
        let other = [b"-- 1\n", JUMP.1, b"\n-- 2\n", JUMP.1].concat();
        for (stops_jumps, expected) in [(false, &text), (true, &other)] {
            assert_eq!(&ask(&mut connect(&start(stops_jumps)), &text).expect("it answers"), expected);
        }
    }
}
