//! The server end of an in-memory connection, and bursts of frames for it.

use std::hint::black_box;
use std::sync::Arc;

use sinews_proto::handshake::{ClientRequest, ServerOptions, accept};
use sinews_proto::http::{HeadLimits, HeaderSlots, RequestHead};
use sinews_proto::{Config, Connection, Event, PayloadLocation, PerThread, Time};

/// A connection after a real handshake.
pub(crate) fn server() -> Connection {
    let client = ClientRequest::new("example.com", "/").expect("a valid request").start([1; 16]);
    let mut request = Vec::new();
    client.write_request(&mut request);
    let mut slots = HeaderSlots::new();
    let head = RequestHead::parse(&request, &HeadLimits::new(), &mut slots).expect("a valid head");
    let accepted = accept(&head, &ServerOptions::new()).expect("a valid handshake");
    Connection::new(accepted.negotiated(), Arc::new(Config::default()), Time::ZERO)
}

/// A masked client frame.
fn frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let key = [0x12, 0x34, 0x56, 0x78];
    let mut frame = vec![0x80 | opcode];
    match payload.len() {
        len @ 0..=125 => frame.push(0x80 | len as u8),
        len @ 126..=65_535 => {
            frame.push(0x80 | 126);
            frame.extend_from_slice(&(len as u16).to_be_bytes());
        }
        len => {
            frame.push(0x80 | 127);
            frame.extend_from_slice(&(len as u64).to_be_bytes());
        }
    }
    frame.extend_from_slice(&key);
    frame.extend(payload.iter().zip(key.iter().cycle()).map(|(byte, key)| byte ^ key));
    frame
}

/// Messages of one size that fill about 64 KiB, like one receive.
pub(crate) fn burst(opcode: u8, size: usize) -> (Vec<u8>, u64) {
    let one = frame(opcode, &vec![b'x'; size]);
    let count = (65_536 / one.len()).max(1);
    (one.repeat(count), count as u64)
}

/// Processes all frames in `input`; echoes if `out` is given. Returns the number of delivered bytes.
pub(crate) fn handle(
    connection: &mut Connection,
    input: &mut [u8],
    shared: &mut PerThread,
    mut out: Option<&mut Vec<u8>>,
) -> usize {
    let (mut at, mut delivered, mut assembly) = (0, 0, Vec::new());
    loop {
        let start = at;
        let received = connection
            .receive(&mut input[at..], &mut assembly, shared, Time::ZERO)
            .expect("the frames are valid");
        at += received.consumed;
        match received.event {
            Event::Message { kind, at: PayloadLocation::Input(range) } => {
                let payload = &input[start..][range];
                delivered += payload.len();
                match &mut out {
                    Some(out) => connection.send(kind, payload, shared, out).expect("open"),
                    None => {
                        black_box(payload);
                    }
                }
            }
            Event::NeedMore(_) => return delivered,
            other => panic!("unexpected {other:?}"),
        }
    }
}
