//! The example page of 1,000 prices, of which 60 change in a second, through a link as slow as that of a phone.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use sinews_server::BoundServer;
use socket2::{Domain, Socket, Type};

use crate::{
    host::{Failure, Tools, ensure, go_through, until},
    webdriver::{Driver, Session},
};

#[path = "../../../crates/hub/examples/keys.rs"]
#[expect(dead_code, reason = "the checks call `serve` in place of `main`")]
mod keys;

/// Bytes a second of the link: 64 kbit/s. One message for each change takes more without compression, which the link does not
/// offer. So a page that gets each change never catches up with those during the snapshot.
const RATE: usize = 8_000;

/// Bytes that the link takes before it is full.
const LINK_BUFFER: usize = 8_192;

/// Bytes of a segment.
const SEGMENT: u32 = 1_400;

/// Number of prices of the page.
const PRICES: usize = 1_000;

/// Time in which the page and all prices pass the link: they are some 100 KB.
const LOADED: Duration = Duration::from_secs(120);

/// Interval of the questions to the page.
const POLL: Duration = Duration::from_millis(500);

/// How long the page is watched.
const WATCHED: Duration = Duration::from_secs(30);

/// Age from which a replaced price is outdated: the server passes 16 KiB to the system, and a message of 8 KiB, and the link takes
/// some more. That is 3 to 5 s; the rest is for a busy machine. The time for which the machine has stalled is added.
const AGE_MAX: Duration = Duration::from_secs(15);

/// Age of the oldest price of a page that has caught up. A page that gets each change never reaches it.
const CAUGHT_UP: Duration = Duration::from_secs(8);

/// A step that takes longer has stalled: a look at the page, or the time between two changes, of which there are 60 a second.
const STALL: Duration = Duration::from_secs(1);

/// For how long a stall makes prices older: its own time, and that until the link has passed what was queued meanwhile.
const STALL_AFTER: Duration = Duration::from_secs(30);

struct World<'d> {
    session: Session<'d>,
    link: Link,
    prices: Arc<Mutex<PriceHistory>>,
}

/// The function of a check.
type Check = fn(&mut World<'_>) -> Result<(), Failure>;

const CHECKS: &[(&str, Check)] = &[
    ("a page with 1,000 keys on a phone's link shows no outdated price", prices_are_recent),
    ("it is not disconnected for being slow", connection_remains),
];

/// Runs all checks and returns the numbers of passed and failed checks.
pub(crate) fn run(_: &Path, tools: &Tools) -> Result<[usize; 2], Failure> {
    let driver = Driver::start(tools)?;
    with_example(|address| {
        let prices = follow_prices(address)?;
        let mut world =
            World { session: Session::start(&driver, 1180, 760)?, link: Link::to(address)?, prices };
        Ok(go_through(&mut world, CHECKS))
    })
}

/// Serves the example meanwhile.
pub(crate) fn with_example<T>(work: impl FnOnce(SocketAddr) -> Result<T, Failure>) -> Result<T, Failure> {
    let (ready, is_ready) = channel();
    let serving = thread::spawn(move || {
        let bound = |server: &BoundServer| {
            // The receiver waits.
            let _ = ready.send((server.addresses()[0], server.stop_handle()));
        };
        keys::serve(([127, 0, 0, 1], 0).into(), bound).map_err(|error| error.to_string())
    });
    let (address, stop) = is_ready.recv().map_err(|_| Failure::new("the example has ended"))?;
    let result = work(address);
    stop.stop_now();
    let ended = serving.join().map_err(|_| Failure::new("the example has panicked"))?;
    ended.map_err(Failure::new)?;
    result
}

fn prices_are_recent(w: &mut World<'_>) -> Result<(), Failure> {
    w.session.open(&format!("http://{}/prices", w.link.address))?;
    let (opened, mut begin) = (Instant::now(), None);
    let (mut stalls, mut last) = (Stalls::default(), now());
    // The prices of the snapshot are as old as its transfer; then the page catches up.
    while begin.is_none_or(|begin: Instant| begin.elapsed() < WATCHED) {
        let shown = w.shown()?;
        let (age, text) = w.oldest(&shown)?;
        stalls.note(std::mem::replace(&mut last, now()), last);
        let stalled = stalls.before(last) + w.history().stalls.before(last);
        if begin.is_none() && shown.len() == PRICES && age <= CAUGHT_UP + stalled {
            begin = Some(Instant::now());
        }
        let is_loading = begin.is_none() && opened.elapsed() < LOADED;
        let age_max = stalled + if begin.is_some() { AGE_MAX } else { CAUGHT_UP };
        ensure(is_loading || (shown.len() == PRICES && age <= age_max), || {
            format!("of {} prices, {text} was replaced {age:?} ago, and not within {age_max:?}", shown.len())
        })?;
        thread::sleep(POLL);
    }
    let history = w.history();
    let (changes, watched) = (history.changes, WATCHED.saturating_sub(history.stalls.before(last)));
    // The market has made the changes that the page would have queued.
    ensure(changes > 20 * watched.as_secs(), || format!("{changes} changes only"))
}

fn connection_remains(w: &mut World<'_>) -> Result<(), Failure> {
    let upgrades = w.link.upgrades.load(Ordering::Relaxed);
    ensure(upgrades == 1, || format!("the page has opened {upgrades} WebSockets"))?;
    let status = w.session.text("#status")?;
    ensure(status == "open", || format!("the page says {status}"))
}

impl World<'_> {
    fn history(&self) -> MutexGuard<'_, PriceHistory> {
        self.prices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The shown price that was replaced first, and how long ago.
    fn oldest(&self, shown: &[(String, String)]) -> Result<(Duration, String), Failure> {
        let (now, mut oldest) = (now(), (Duration::ZERO, String::new()));
        for (key, price) in shown {
            let age = || self.history().outdated_for(key, price, now);
            until("the price that the page shows is known", || Ok(age().is_some()))?;
            let age = age().unwrap_or_default();
            if age > oldest.0 {
                oldest = (age, format!("the price {price} of {key}"));
            }
        }
        Ok(oldest)
    }

    /// The prices that the page shows, with their keys.
    fn shown(&self) -> Result<Vec<(String, String)>, Failure> {
        let script = "return [...document.querySelectorAll('#prices span')].map((cell) => [cell.title, cell.textContent])";
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let cells = self.session.script(script, &[])?;
        Ok(cells.as_array().into_iter().flatten().map(|cell| (text(&cell[0]), text(&cell[1]))).collect())
    }
}

/// The prices that each key has had, with the time of each in milliseconds since 1970.
#[derive(Default)]
struct PriceHistory {
    keys: HashMap<String, Vec<(u64, String)>>,
    changes: u64,
    /// The time of the last change.
    last: u64,
    stalls: Stalls,
}

/// Times in which the machine has not run a process: the end in milliseconds since 1970, and the length.
#[derive(Default)]
struct Stalls(Vec<(u64, Duration)>);

impl Stalls {
    /// Notes the time between two steps, if it was too long.
    fn note(&mut self, before: u64, after: u64) {
        let length = Duration::from_millis(after.saturating_sub(before));
        if before > 0 && length > STALL {
            self.0.push((after, length - POLL));
        }
    }

    /// The sum of the stalls shortly before a time.
    fn before(&self, time: u64) -> Duration {
        let is_recent = |end: u64| Duration::from_millis(time.saturating_sub(end)) < STALL_AFTER;
        self.0.iter().filter(|(end, _)| is_recent(*end)).map(|(_, length)| *length).sum()
    }
}

impl PriceHistory {
    fn add(&mut self, entry: &Value) {
        let (Some(key), Some(price)) = (entry["key"].as_str(), entry["data"]["price"].as_f64()) else {
            return;
        };
        let at = entry["data"]["at"].as_u64().unwrap_or_default();
        self.keys.entry(key.to_owned()).or_default().push((at, format!("{price:.2}")));
        self.changes += 1;
        self.stalls.note(std::mem::replace(&mut self.last, at), at);
    }

    /// How long ago another price has replaced this one, if it is the newest one of the key not at all; `None` if the key never
    /// had it.
    fn outdated_for(&self, key: &str, price: &str, at: u64) -> Option<Duration> {
        let history = self.keys.get(key)?;
        let index = history.iter().rposition(|(_, known)| known == price)?;
        let replaced = history.get(index + 1).map_or(at, |(replaced, _)| *replaced);
        Some(Duration::from_millis(at.saturating_sub(replaced)))
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Follows all changes of the prices, past the link. Returns when it has all prices.
fn follow_prices(address: SocketAddr) -> Result<Arc<Mutex<PriceHistory>>, Failure> {
    let mut stream = TcpStream::connect(address)?;
    let host = format!("Host: {address}\r\nAccept: application/x-ndjson\r\n");
    write!(stream, "GET /topics/prices/keys HTTP/1.0\r\n{host}\r\n")?;
    let history: Arc<Mutex<PriceHistory>> = Arc::default();
    let (followed, mut lines) = (Arc::clone(&history), BufReader::new(stream).lines());
    thread::spawn(move || {
        // The response ends with the server.
        while let Some(Ok(line)) = lines.next() {
            let message = serde_json::from_str::<Value>(&line).unwrap_or_default();
            let mut history = followed.lock().unwrap_or_else(PoisonError::into_inner);
            message["set"].as_array().into_iter().flatten().for_each(|entry| history.add(entry));
        }
    });
    let known = Arc::clone(&history);
    until("all prices are known", || {
        Ok(known.lock().unwrap_or_else(PoisonError::into_inner).keys.len() == PRICES)
    })?;
    Ok(history)
}

/// A proxy that passes [`RATE`] bytes a second on to its clients, over all connections together.
struct Link {
    address: SocketAddr,
    /// Requests for a WebSocket.
    upgrades: Arc<AtomicUsize>,
}

impl Link {
    fn to(server: SocketAddr) -> Result<Self, Failure> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let (address, upgrades, turn) = (listener.local_addr()?, Arc::default(), Arc::new(Mutex::new(())));
        let counted = Arc::clone(&upgrades);
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let (turn, counted) = (Arc::clone(&turn), Arc::clone(&counted));
                // The server may have gone: the connection ends.
                let Ok(far) = connect_through_small_buffer(server) else { continue };
                let (Ok(near_reads), Ok(far_writes)) = (near.try_clone(), far.try_clone()) else { continue };
                thread::spawn(move || upload(near_reads, far_writes, &counted));
                thread::spawn(move || download(far, near, &turn));
            }
        });
        Ok(Self { address, upgrades })
    }
}

/// Connects to the server with a small receive buffer, which limits the bytes on their way.
fn connect_through_small_buffer(server: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_recv_buffer_size(LINK_BUFFER)?;
    // Segments of the loopback interface would be larger than the buffer: the window would stay closed.
    socket.set_tcp_mss(SEGMENT)?;
    socket.connect(&server.into())?;
    Ok(socket.into())
}

fn upload(mut near: TcpStream, mut far: TcpStream, upgrades: &AtomicUsize) {
    let mut buffer = [0; 16 << 10];
    while let Ok(count @ 1..) = near.read(&mut buffer) {
        let text = String::from_utf8_lossy(&buffer[..count]);
        let handshakes = text.to_ascii_lowercase().matches("\r\nupgrade: websocket\r\n").count();
        upgrades.fetch_add(handshakes, Ordering::Relaxed);
        // The server knows no header of this name: it does not compress.
        let plain = (handshakes > 0).then(|| text.replace("Sec-WebSocket-Extensions:", "X-Removed:"));
        if far.write_all(plain.as_ref().map_or(&buffer[..count], |text| text.as_bytes())).is_err() {
            break;
        }
    }
    // The other side may have gone.
    let _ = far.shutdown(Shutdown::Write);
}

fn download(mut far: TcpStream, mut near: TcpStream, turn: &Mutex<()>) {
    let mut buffer = [0; RATE / 20];
    while let Ok(count @ 1..) = far.read(&mut buffer) {
        let turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
        if near.write_all(&buffer[..count]).is_err() {
            break;
        }
        // The time that the link takes.
        thread::sleep(Duration::from_secs(1) * u32::try_from(count).unwrap_or(u32::MAX) / RATE as u32);
        drop(turn);
    }
    let _ = near.shutdown(Shutdown::Write);
}
