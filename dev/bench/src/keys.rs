//! Keys in a topic with many subscribers, some slow: the server's memory and CPU time, and the age of the values that
//! subscribers receive.

mod dialect;

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use hdrhistogram::Histogram;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use socket2::{Domain, Socket, Type};

use self::dialect::Dialect;
use crate::Error;

#[derive(Debug, Args)]
pub(crate) struct KeysArgs {
    /// Address of a running server, such as 127.0.0.1:8080. Its pings must be rare: the subscribers send no pongs
    address: SocketAddr,

    /// Process ID of the server
    #[arg(long, value_name = "PID")]
    pid: u32,

    /// Protocol of the server
    #[arg(long, value_enum, default_value = "sinews")]
    dialect: Dialect,

    /// Subscribers
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u16).range(1..=15_000))]
    subscribers: u16,

    /// Percentage of the subscribers that are slow
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(0..=100))]
    slow_percent: u16,

    /// Rate of each slow subscriber in bits a second
    #[arg(long, value_name = "N", default_value_t = 64_000, value_parser = clap::value_parser!(u32).range(1_000..=100_000_000))]
    slow_bits: u32,

    /// Keys
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    keys: u32,

    /// Changes a second, of all keys together
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    changes: u32,

    /// Interval of each subscription in milliseconds; 0: each change at once
    #[arg(long, value_name = "MS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=60_000))]
    interval: u32,

    /// Seconds of measurement
    #[arg(long, value_name = "S", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,

    /// Seconds before the measurement, at most 60 by default: 1.5 times the time of the snapshot at a slow subscriber
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=600))]
    warm_up: Option<u32>,
}

/// Period in which each slow subscriber receives its share.
const SLOW_PERIOD: Duration = Duration::from_millis(50);

/// A slow subscriber's receive buffer, so that the kernel stores little for it.
const SLOW_RECEIVE_BUFFER: usize = 4 << 10;

/// A slow subscriber's time for the snapshot, and some more.
const SNAPSHOT_ALLOWANCE: f64 = 1.5;

/// Text before a value's time.
const TIME: &[u8] = b"\"at\":";

/// Digits in a time in milliseconds since 1970.
const DIGITS: usize = 13;

/// The server's maximum silence while a connection opens.
const STALL_LIMIT: Duration = Duration::from_secs(10);

/// Runs the requested measurement and prints a table.
pub(crate) fn run(args: &KeysArgs) -> Result<(), Error> {
    println!(
        "**{} keys, {} changes a second, {} subscribers, {} % of them at {} bit/s, interval {} ms**\n\n\
         | server | age, fast p50 / p99, ms | age, slow p50 / p99, ms | values to a fast / a slow subscriber | CPU, µs for a change | CPU, % | memory of a subscriber, bytes | queued, bytes | closed |\n\
         |---|---|---|---|---|---|---|---|---|",
        args.keys, args.changes, args.subscribers, args.slow_percent, args.slow_bits, args.interval
    );
    let mut writer = Writer::new(args)?;
    (0..args.keys).try_for_each(|number| writer.set(number))?;
    writer.flush()?;
    let resident = resident_bytes(args.pid)?;
    let mut audience = Audience::new(args)?;
    let snapshot_bytes = f64::from(args.keys) * 70.0;
    let warm_up = snapshot_bytes * 8.0 / f64::from(args.slow_bits) * SNAPSHOT_ALLOWANCE;
    let warm_up = args.warm_up.map_or_else(|| warm_up.clamp(1.0, 60.0), f64::from);
    audience.run(&mut writer, Duration::from_secs_f64(warm_up))?;
    audience.reset();
    let before = busy_ns(args.pid)?;
    let changes = audience.run(&mut writer, Duration::from_secs(args.seconds.into()))?;
    let used = busy_ns(args.pid)?.saturating_sub(before) as f64;
    let peak = resident_bytes(args.pid)?;
    let closed = audience.readers.iter().filter(|reader| reader.is_closed).count();
    let ages = |group: &Group| {
        let at = |quantile| group.ages.value_at_quantile(quantile);
        format!("{} / {}", at(0.5), at(0.99))
    };
    let each = |group: &Group| group.ages.len().checked_div(group.readers).unwrap_or(0);
    println!(
        "| {:?} | {} | {} | {} / {} | {:.1} | {:.1} | {} | {} | {closed} |",
        args.dialect,
        ages(&audience.fast),
        ages(&audience.slow),
        each(&audience.fast),
        each(&audience.slow),
        used / 1e3 / changes as f64,
        used / 1e7 / f64::from(args.seconds),
        peak.saturating_sub(resident) / u64::from(args.subscribers),
        queued_bytes(args)?,
    );
    Ok(())
}

/// Returns a process's memory in bytes.
fn resident_bytes(pid: u32) -> Result<u64, Error> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? << 10)
}

/// Returns the nanoseconds that a process's threads have run.
fn busy_ns(pid: u32) -> Result<u64, Error> {
    let mut sum = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let books = fs::read_to_string(task?.path().join("schedstat"))?;
        sum += books.split(' ').next().unwrap_or_default().parse::<u64>()?;
    }
    Ok(sum)
}

/// The bytes that the server has queued, by its metrics; `-` without such a metric.
fn queued_bytes(args: &KeysArgs) -> Result<String, Error> {
    let mut stream = connect(args.address, None)?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let line = answer.lines().find_map(|line| line.strip_prefix("sinews_queued_bytes "));
    Ok(line.unwrap_or("-").to_owned())
}

/// Connects with this receive buffer size, in bytes. After the connect, the kernel has offered a larger one.
fn connect(address: SocketAddr, receive_buffer: Option<usize>) -> Result<std::net::TcpStream, Error> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if let Some(bytes) = receive_buffer {
        socket.set_recv_buffer_size(bytes)?;
    }
    socket.set_tcp_nodelay(true)?;
    socket.set_read_timeout(Some(STALL_LIMIT))?;
    socket.connect(&address.into())?;
    Ok(socket.into())
}

/// Sets keys, each with its change time.
struct Writer {
    stream: std::net::TcpStream,
    out: Vec<u8>,
    keys: u32,
    random: u64,
    dialect: Dialect,
}

impl Writer {
    fn new(args: &KeysArgs) -> Result<Self, Error> {
        let mut stream = connect(args.address, None)?;
        open(&mut stream, args.dialect)?;
        Ok(Self { stream, out: Vec::new(), keys: args.keys, random: 1, dialect: args.dialect })
    }

    fn set(&mut self, number: u32) -> Result<(), Error> {
        let now = millis();
        let key = format!("{}.{}", number / 100, number % 100);
        let data = format!("{{\"price\":{}.25,\"at\":{now}}}", 90 + now % 20);
        let text = self.dialect.set(&key, &data);
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
fn open(stream: &mut std::net::TcpStream, dialect: Dialect) -> Result<(), Error> {
    let request = format!(
        "GET {} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
        dialect.path()
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
    if let Some(first) = dialect.first() {
        let mut frame = Vec::new();
        write_frame(first, &mut frame);
        stream.write_all(&frame)?;
    }
    Ok(())
}

/// Writes a masked text frame, up to 64 KiB, with the mask 0.
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
    /// The end of the received bytes: it may hold a partial time.
    rest: Vec<u8>,
    /// The server has closed the connection.
    is_closed: bool,
}

impl Audience {
    fn new(args: &KeysArgs) -> Result<Self, Error> {
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
        let subscribe = args.dialect.subscribe(args.interval);
        let mut frame = Vec::new();
        write_frame(&subscribe, &mut frame);
        for number in 0..fast + slow {
            let is_slow = number >= fast;
            let mut stream = connect(args.address, is_slow.then_some(SLOW_RECEIVE_BUFFER))?;
            open(&mut stream, args.dialect)?;
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

    /// Changes keys and reads for this time. Returns the change count.
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
    /// Reads once, and records the values' ages. Returns whether there may be more.
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
