//! The connections of idle clients.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use sinews_proto::Role;
use sinews_proto::deflate::{DeflateConfig, DeflateParams};
use sinews_testkit::{Codec, Frame};

use crate::Error;
use crate::args::{History, IdleClientsArgs};
use crate::connect::{connect_from, shake_hands};
use crate::target::Deflate;

/// What is said when all is done.
pub(super) const READY: &str = "ready\n";

/// Opens connections, has them live through their history, and holds them until standard input is closed.
pub(crate) fn run(args: &IdleClientsArgs) -> Result<(), Error> {
    let source = Some(SocketAddr::from((args.source, 0)));
    let offer = match args.deflate {
        Deflate::Off => None,
        Deflate::Shared | Deflate::Dedicated => Some(DeflateConfig::new()),
    };
    let mut streams = Vec::with_capacity(args.connections);
    let mut agreed = None;
    for number in 0..args.connections {
        let mut stream = connect_from(args.server, source)?;
        let negotiated = shake_hands(&mut stream, "/echo", number as u64, offer.clone())
            .map_err(|error| format!("connection {number} from {}: {error}; {LIMIT_HINT}", args.source))?;
        agreed = negotiated.deflate();
        if offer.is_some() != agreed.is_some() {
            return Err("the server did not agree to deflate".into());
        }
        streams.push(stream);
    }
    let bursts = bursts(args.after, agreed);
    for together in streams.chunks_mut(TOGETHER) {
        for (burst, messages) in &bursts {
            together.iter_mut().try_for_each(|stream| stream.write_all(burst))?;
            together.iter_mut().try_for_each(|stream| read_messages(stream, *messages))?;
        }
    }
    print!("{READY}");
    io::stdout().flush()?;
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// What each connection sends, burst by burst, and how many messages are to come back.
fn bursts(history: History, deflate: Option<DeflateParams>) -> Vec<(Vec<u8>, u64)> {
    let (bursts, messages, size) = match history {
        History::Handshake => (0, 0, 0),
        History::Small => (30, 50, 64),
        History::Large => (1, 1, 256 << 10),
    };
    // All connections agree on the same and send the same, so one compressor makes it for all.
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
    }
    if frames.complete == messages && frames.is_between() {
        return Ok(());
    }
    Err("the server sent more than it was asked for".into())
}

/// Counts frames of a server, which are not masked. Their lengths are not known beforehand where they are
/// compressed.
#[derive(Debug, Default)]
struct Frames {
    head: Vec<u8>,
    /// Bytes of the payload that are to come.
    rest: u64,
    complete: u64,
}

impl Frames {
    fn count(&mut self, mut bytes: &[u8]) {
        while let Some((&first, others)) = bytes.split_first() {
            if self.rest > 0 {
                let skipped = self.rest.min(bytes.len() as u64);
                self.rest -= skipped;
                bytes = &bytes[skipped as usize..];
            } else {
                self.head.push(first);
                bytes = others;
                let Some(length) = payload_length(&self.head) else { continue };
                (self.head, self.rest) = (Vec::new(), length);
            }
            self.complete += u64::from(self.is_between());
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

/// Connections that are busy at the same time.
const TOGETHER: usize = 64;

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
        for cut in [1, 2, 3, 1000, wire.len()] {
            let mut frames = Frames::default();
            wire.chunks(cut).for_each(|chunk| frames.count(chunk));
            assert_eq!((frames.complete, frames.is_between()), (sizes.len() as u64, true), "{cut}");
            frames.count(&[0x82]);
            assert!(!frames.is_between());
        }
    }

    #[test]
    fn histories_are_as_long_as_they_say() {
        assert!(bursts(History::Handshake, None).is_empty());
        let small = bursts(History::Small, None);
        assert_eq!(small.iter().map(|(_, messages)| messages).sum::<u64>(), 1500);
        assert!(small.iter().all(|(burst, _)| burst.len() == 50 * (2 + 4 + 64)));
        let large = bursts(History::Large, None);
        assert_eq!((large.len(), large[0].0.len()), (1, 2 + 8 + 4 + (256 << 10)));
    }
}
