//! Keys of a topic with many subscribers, of which some are slow: the memory and the CPU time of the server, and the
//! age of the values that subscribers receive.

mod dialect;

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hdrhistogram::Histogram;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use self::dialect::{CENTRIFUGO, Dialect, SINEWS, start_centrifugo};
use crate::Error;
use crate::args::KeysArgs;
use crate::connect::{STALL_LIMIT, connect, connect_with};
use crate::process::{Server, Usage};
use crate::report::significant;
use crate::slow::{metrics, value};
use crate::target::{Programs, ServeOptions};

/// Period in which each slow subscriber receives its share.
const SLOW_PERIOD: Duration = Duration::from_millis(50);

/// Receive buffer of a slow subscriber, so that the kernel stores little for it.
const SLOW_RECEIVE_BUFFER: usize = 4 << 10;

/// Time of a slow subscriber for the snapshot, and some more.
const SNAPSHOT_ALLOWANCE: f64 = 1.5;

/// Text before the time of a value.
const TIME: &[u8] = b"\"at\":";

/// Digits of a time in milliseconds since 1970.
const DIGITS: usize = 13;

/// Runs the measurement of the arguments and prints a table.
pub(crate) fn run(args: &KeysArgs) -> Result<(), Error> {
    let programs = Programs::build(&args.programs, &args.targets())?;
    crate::prepare_load()?;
    println!(
        "**{} keys, {} changes a second, {} subscribers, {} % of them at {} bit/s, interval {} ms**\n\n\
         | server | age, fast p50 / p99, ms | age, slow p50 / p99, ms | values to a fast / a slow subscriber | CPU, µs for a change | CPU, % | memory of a subscriber, bytes | queued, bytes | closed |\n\
         |---|---|---|---|---|---|---|---|---|",
        args.keys, args.changes, args.subscribers, args.slow_percent, args.slow_bits, args.interval
    );
    for target in programs.startable(&args.targets())? {
        // Subscribers of the load send no pongs.
        let options = ServeOptions { ping_interval: "600s", ..ServeOptions::default() };
        let server = programs.start(target, &options)?;
        measure(args, &server, target.name(), &SINEWS)?;
    }
    if let Some(program) = &args.centrifugo {
        let (server, _configuration) = start_centrifugo(program)?;
        measure(args, &server, "Centrifugo", &CENTRIFUGO)?;
    }
    Ok(())
}

fn measure(args: &KeysArgs, server: &Server, name: &str, dialect: &'static Dialect) -> Result<(), Error> {
    let mut writer = Writer::new(server.address, args, dialect)?;
    (0..args.keys).try_for_each(|number| writer.set(number))?;
    writer.flush()?;
    let resident = resident_bytes(server)?;
    let mut audience = Audience::new(server.address, args, dialect)?;
    let snapshot_bytes = f64::from(args.keys) * 70.0;
    let warm_up = snapshot_bytes * 8.0 / f64::from(args.slow_bits) * SNAPSHOT_ALLOWANCE;
    let warm_up = args.warm_up.map_or_else(|| warm_up.clamp(1.0, 60.0), f64::from);
    audience.run(&mut writer, Duration::from_secs_f64(warm_up))?;
    audience.reset();
    let before = Usage::of(server.pid())?;
    let changes = audience.run(&mut writer, Duration::from_secs(args.seconds.into()))?;
    let used = Usage::of(server.pid())?.since(before);
    let peak = resident_bytes(server)?;
    let metrics = if dialect.has_metrics { metrics(server)? } else { String::new() };
    let queued: f64 = metrics.lines().filter_map(|line| value(line, "sinews_queued_bytes ")).sum();
    let closed = audience.readers.iter().filter(|reader| reader.is_closed).count();
    let ages = |group: &Group| {
        let at = |quantile| group.ages.value_at_quantile(quantile);
        format!("{} / {}", at(0.5), at(0.99))
    };
    let each = |group: &Group| group.ages.len().checked_div(group.readers).unwrap_or(0);
    println!(
        "| {} | {} | {} | {} / {} | {} | {} | {} | {} | {closed} |",
        name,
        ages(&audience.fast),
        ages(&audience.slow),
        each(&audience.fast),
        each(&audience.slow),
        significant(used.run_ns as f64 / 1e3 / changes as f64),
        significant(used.run_ns as f64 / 1e7 / f64::from(args.seconds)),
        peak.saturating_sub(resident) / u64::from(args.subscribers),
        queued,
    );
    Ok(())
}

/// Memory of a process in bytes.
fn resident_bytes(server: &Server) -> Result<u64, Error> {
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? << 10)
}

/// Sets keys, each with the time of the change.
struct Writer {
    stream: std::net::TcpStream,
    out: Vec<u8>,
    keys: u32,
    random: u64,
    dialect: &'static Dialect,
}

impl Writer {
    fn new(address: SocketAddr, args: &KeysArgs, dialect: &'static Dialect) -> Result<Self, Error> {
        let mut stream = connect(address)?;
        open(&mut stream, dialect)?;
        Ok(Self { stream, out: Vec::new(), keys: args.keys, random: 1, dialect })
    }

    fn set(&mut self, number: u32) -> Result<(), Error> {
        let now = millis();
        let key = format!("{}.{}", number / 100, number % 100);
        let data = format!("{{\"price\":{}.25,\"at\":{now}}}", 90 + now % 20);
        let text = (self.dialect.set)(&key, &data);
        write_frame(&text, &mut self.out);
        if self.out.len() > 16 << 10 { self.flush() } else { Ok(()) }
    }

    fn set_any(&mut self) -> Result<(), Error> {
        // The linear congruential generator of Knuth's MMIX.
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.set((self.random >> 33) as u32 % self.keys)
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.stream.write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }
}

/// Opens a WebSocket. The server's welcome may follow its answer at once.
fn open(stream: &mut std::net::TcpStream, dialect: &Dialect) -> Result<(), Error> {
    stream.set_read_timeout(Some(STALL_LIMIT))?;
    let request = format!(
        "GET {} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
        dialect.path
    );
    stream.write_all(request.as_bytes())?;
    let (mut answer, mut chunk) = (Vec::new(), [0; 1024]);
    while !answer.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut chunk)? {
            0 => return Err("the server closed a connection during the handshake".into()),
            count => answer.extend_from_slice(&chunk[..count]),
        }
    }
    if !answer.starts_with(b"HTTP/1.1 101 ") {
        return Err("the server rejected a WebSocket".into());
    }
    if let Some(first) = dialect.first {
        let mut frame = Vec::new();
        write_frame(first, &mut frame);
        stream.write_all(&frame)?;
    }
    Ok(())
}

/// A masked text frame of up to 64 KiB, with the mask 0.
fn write_frame(text: &str, out: &mut Vec<u8>) {
    out.push(0x81);
    match text.len() {
        short @ ..126 => out.push(0x80 | short as u8),
        long => {
            out.push(0x80 | 126);
            out.extend_from_slice(&(long as u16).to_be_bytes());
        }
    }
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(text.as_bytes());
}

fn millis() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// Subscribers that read alike.
struct Group {
    readers: u64,
    ages: Histogram<u64>,
}

struct Audience {
    poll: Poll,
    readers: Vec<Reader>,
    /// The first slow reader; the others follow.
    first_slow: usize,
    fast: Group,
    slow: Group,
    slow_bytes: usize,
    changes: u32,
}

struct Reader {
    stream: TcpStream,
    /// The end of the received bytes: it may hold a part of a time.
    rest: Vec<u8>,
    /// The server has closed the connection.
    is_closed: bool,
}

impl Audience {
    fn new(address: SocketAddr, args: &KeysArgs, dialect: &Dialect) -> Result<Self, Error> {
        let slow = u64::from(args.subscribers) * u64::from(args.slow_percent) / 100;
        let fast = u64::from(args.subscribers) - slow;
        let group = |readers| Ok::<_, Error>(Group { readers, ages: Histogram::new_with_max(600_000, 3)? });
        let mut audience = Self {
            poll: Poll::new()?,
            readers: Vec::new(),
            first_slow: fast as usize,
            fast: group(fast)?,
            slow: group(slow)?,
            slow_bytes: (f64::from(args.slow_bits) / 8.0 * SLOW_PERIOD.as_secs_f64()) as usize,
            changes: args.changes,
        };
        let subscribe = (dialect.subscribe)(args.interval);
        let mut frame = Vec::new();
        write_frame(&subscribe, &mut frame);
        for number in 0..fast + slow {
            let is_slow = number >= fast;
            let mut stream = connect_with(address, is_slow.then_some(SLOW_RECEIVE_BUFFER))?;
            open(&mut stream, dialect)?;
            stream.write_all(&frame)?;
            stream.set_nonblocking(true)?;
            let mut stream = TcpStream::from_std(stream);
            if !is_slow {
                audience.poll.registry().register(&mut stream, Token(number as usize), Interest::READABLE)?;
            }
            audience.readers.push(Reader { stream, rest: Vec::new(), is_closed: false });
        }
        Ok(audience)
    }

    fn reset(&mut self) {
        self.fast.ages.reset();
        self.slow.ages.reset();
    }

    /// Changes keys and reads for this time. Returns the number of changes.
    fn run(&mut self, writer: &mut Writer, time: Duration) -> Result<u64, Error> {
        let (mut events, mut scratch) = (Events::with_capacity(1024), vec![0; 64 << 10]);
        let begun = Instant::now();
        let (mut changes, mut next_slow) = (0, begun);
        while begun.elapsed() < time {
            let wanted = (begun.elapsed().as_secs_f64() * f64::from(self.changes)) as u64;
            while changes < wanted {
                writer.set_any()?;
                changes += 1;
            }
            writer.flush()?;
            self.poll.poll(&mut events, Some(Duration::from_millis(1)))?;
            for event in &events {
                let reader = &mut self.readers[event.token().0];
                while reader.read(&mut scratch, &mut self.fast.ages)? {}
            }
            if Instant::now() >= next_slow {
                next_slow += SLOW_PERIOD;
                for reader in &mut self.readers[self.first_slow..] {
                    reader.read(&mut scratch[..self.slow_bytes], &mut self.slow.ages)?;
                }
            }
        }
        Ok(changes)
    }
}

impl Reader {
    /// Reads once, and records the ages of the values. Returns whether there may be more.
    fn read(&mut self, scratch: &mut [u8], ages: &mut Histogram<u64>) -> Result<bool, Error> {
        if self.is_closed {
            return Ok(false);
        }
        match self.stream.read(scratch) {
            Ok(0) => {
                self.is_closed = true;
                Ok(false)
            }
            Ok(count) => {
                self.rest.extend_from_slice(&scratch[..count]);
                self.record(ages);
                Ok(count == scratch.len())
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                self.is_closed = true;
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn record(&mut self, ages: &mut Histogram<u64>) {
        let now = millis();
        let mut done = 0;
        let length = TIME.len() + DIGITS;
        while let Some(found) = self.rest[done..].windows(length).position(|part| part.starts_with(TIME)) {
            let start = done + found + TIME.len();
            let digits = std::str::from_utf8(&self.rest[start..start + DIGITS]).unwrap_or_default();
            if let Ok(at) = digits.parse::<u64>() {
                ages.saturating_record(now.saturating_sub(at));
            }
            done = start + DIGITS;
        }
        let kept = self.rest.len().saturating_sub(length - 1).max(done);
        self.rest.drain(..kept);
    }
}
