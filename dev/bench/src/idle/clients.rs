//! The connections of idle clients.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use std::{mem, process, thread};

use sinews_proto::Role;
use sinews_proto::deflate::{DeflateConfig, DeflateParams};
use sinews_testkit::{Codec, Frame};

use crate::Error;
use crate::args::{History, IdleClientsArgs};
use crate::connect::{connect_from, shake_hands};
use crate::target::Deflate;

/// Line that reports the readiness of all connections.
pub(super) const READY: &str = "ready\n";

/// Opens connections, runs their history on each, and keeps them open until standard input is closed.
pub(crate) fn run(args: &IdleClientsArgs) -> Result<(), Error> {
    thread::spawn(|| {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        process::exit(0);
    });
    let mut idle = Idle { streams: Vec::with_capacity(args.connections), swept: Instant::now() };
    let mut history = None;
    while idle.streams.len() < args.connections {
        let mut together = Vec::new();
        for number in (idle.streams.len()..args.connections).take(TOGETHER) {
            let (stream, agreed) = open(args, number)?;
            together.push(stream);
            history.get_or_insert_with(|| bursts(args.after, agreed));
        }
        for (burst, messages) in history.iter().flatten() {
            together.iter_mut().try_for_each(|stream| stream.write_all(burst))?;
            together.iter_mut().try_for_each(|stream| read_messages(stream, *messages))?;
        }
        for stream in together {
            stream.set_nonblocking(true)?;
            idle.streams.push(stream);
        }
        idle.sweep_if_due()?;
    }
    print!("{READY}");
    io::stdout().flush()?;
    loop {
        thread::sleep(SWEEP_PAUSE);
        idle.sweep_if_due()?;
    }
}

fn open(args: &IdleClientsArgs, number: usize) -> Result<(TcpStream, Option<DeflateParams>), Error> {
    let offer = match args.deflate {
        Deflate::Off => None,
        Deflate::Shared | Deflate::Dedicated => Some(DeflateConfig::new()),
    };
    let is_offered = offer.is_some();
    let mut stream = connect_from(args.server, Some(SocketAddr::from((args.source, 0))))?;
    let agreed = shake_hands(&mut stream, "/echo", number as u64, offer)
        .map_err(|error| format!("connection {number} from {}: {error}; {LIMIT_HINT}", args.source))?
        .deflate();
    if is_offered == agreed.is_some() {
        Ok((stream, agreed))
    } else {
        Err("the server did not agree to deflate".into())
    }
}

/// Idle connections. They answer pings; otherwise the server would close them.
struct Idle {
    streams: Vec<TcpStream>,
    swept: Instant,
}

impl Idle {
    fn sweep_if_due(&mut self) -> Result<(), Error> {
        if self.swept.elapsed() < SWEEP_PAUSE {
            return Ok(());
        }
        let mut chunk = [0; 1024];
        for stream in &mut self.streams {
            let mut frames = Frames::default();
            match stream.read(&mut chunk) {
                Ok(0) => return Err("the server closed an idle connection".into()),
                Ok(bytes) => frames.count(&chunk[..bytes]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error.into()),
            }
            if frames.complete > 0 || !frames.is_between() {
                return Err("the server sent something to an idle connection".into());
            }
            stream.write_all(&frames.pongs)?;
        }
        self.swept = Instant::now();
        Ok(())
    }
}

/// Returns the bursts of each connection, each with the number of messages to expect in return.
fn bursts(history: History, deflate: Option<DeflateParams>) -> Vec<(Vec<u8>, u64)> {
    let (bursts, messages, size) = match history {
        History::Handshake => (0, 0, 0),
        History::Small => (30, 50, 64),
        History::Large => (1, 1, 256 << 10),
    };
    // All connections negotiate the same parameters and send the same messages, so one compressor serves all.
    let mut codec = deflate.map(|params| Codec::new(Role::Client, params));
    let mut number = 0;
    let mut frame = || {
        number += 1;
        let payload = text(number, size);
        match &mut codec {
            Some(codec) => Frame::text(codec.compress(&payload)).rsv(RSV1).encode(Role::Client),
            None => Frame::text(payload).encode(Role::Client),
        }
    };
    (0..bursts).map(|_| ((0..messages).flat_map(|_| frame()).collect(), messages)).collect()
}

/// Text that compresses about as well as small JSON does.
fn text(number: u32, size: usize) -> Vec<u8> {
    let line = |at: u32| {
        let price = number.wrapping_mul(2_654_435_761).wrapping_add(at.wrapping_mul(40_503)) % 100_000;
        format!("{{\"symbol\":\"SNW{:03}\",\"price\":{price},\"sequence\":{}}}\n", at % 500, number + at)
    };
    let mut text: Vec<u8> = (0..).flat_map(|at| line(at).into_bytes()).take(size).collect();
    text.resize(size, b' ');
    text
}

fn read_messages(stream: &mut TcpStream, messages: u64) -> Result<(), Error> {
    let (mut frames, mut chunk) = (Frames::default(), [0; 64 << 10]);
    while frames.complete < messages {
        match stream.read(&mut chunk)? {
            0 => return Err("the server closed a connection".into()),
            bytes => frames.count(&chunk[..bytes]),
        }
        stream.write_all(&mem::take(&mut frames.pongs))?;
    }
    if frames.complete == messages && frames.is_between() {
        return Ok(());
    }
    Err("the server sent more bytes than expected".into())
}

/// Counts messages of a server, one unmasked frame each, and answers its pings. Where messages are
/// compressed, their lengths are not known beforehand.
#[derive(Debug, Default)]
struct Frames {
    head: Vec<u8>,
    /// Remaining bytes of the payload.
    rest: u64,
    /// The payload so far, if the frame is a ping.
    ping: Option<Vec<u8>>,
    complete: u64,
    pongs: Vec<u8>,
}

impl Frames {
    fn count(&mut self, mut bytes: &[u8]) {
        while let Some((&first, others)) = bytes.split_first() {
            if self.rest > 0 {
                let (part, others) = bytes.split_at(self.rest.min(bytes.len() as u64) as usize);
                self.rest -= part.len() as u64;
                self.ping.iter_mut().for_each(|payload| payload.extend_from_slice(part));
                bytes = others;
            } else {
                self.head.push(first);
                bytes = others;
                let Some(length) = payload_length(&self.head) else { continue };
                self.ping = (self.head[0] == PING).then(Vec::new);
                (self.head, self.rest) = (Vec::new(), length);
            }
            if self.is_between() {
                match self.ping.take() {
                    Some(payload) => self.pongs.extend(Frame::pong(payload).encode(Role::Client)),
                    None => self.complete += 1,
                }
            }
        }
    }

    fn is_between(&self) -> bool {
        self.rest == 0 && self.head.is_empty()
    }
}

/// The length that a whole head declares (RFC 6455 section 5.2).
fn payload_length(head: &[u8]) -> Option<u64> {
    let length = u64::from(head.get(1)? & 0x7f);
    match (length, head.len()) {
        (126, 4) | (127, 10) => Some(head[2..].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))),
        (126 | 127, _) => None,
        _ => Some(length),
    }
}

const LIMIT_HINT: &str =
    "a server that takes a file descriptor for each connection ends at its limit (ulimit -Hn)";

/// Connections that are active at the same time.
const TOGETHER: usize = 64;

/// Short enough for the ping timeout of every server.
const SWEEP_PAUSE: Duration = Duration::from_secs(3);

/// The first byte of a ping (RFC 6455 section 5.2).
const PING: u8 = 0x89;

/// The bit that marks compressed messages (RFC 7692 section 6).
const RSV1: u8 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_counted_however_they_are_cut() {
        let mut wire = Vec::new();
        let sizes = [0, 1, 125, 126, 65_535, 65_536];
        sizes.iter().for_each(|size| wire.extend(Frame::binary(vec![7; *size]).encode(Role::Server)));
        wire.extend(Frame::ping(b"there?").encode(Role::Server));
        for cut in [1, 2, 3, 1000, wire.len()] {
            let mut frames = Frames::default();
            wire.chunks(cut).for_each(|chunk| frames.count(chunk));
            assert_eq!((frames.complete, frames.is_between()), (sizes.len() as u64, true), "{cut}");
            assert_eq!(frames.pongs, Frame::pong(b"there?").encode(Role::Client));
            frames.count(&[0x82]);
            assert!(!frames.is_between());
        }
    }

    #[test]
    fn histories_have_their_declared_length() {
        assert!(bursts(History::Handshake, None).is_empty());
        let small = bursts(History::Small, None);
        assert_eq!(small.iter().map(|(_, messages)| messages).sum::<u64>(), 1500);
        assert!(small.iter().all(|(burst, _)| burst.len() == 50 * (2 + 4 + 64)));
        let large = bursts(History::Large, None);
        assert_eq!((large.len(), large[0].0.len()), (1, 2 + 8 + 4 + (256 << 10)));
    }
}
