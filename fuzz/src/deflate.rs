//! permessage-deflate: negotiation, and messages under the negotiated parameters.

use sinews_proto::handshake::{ClientRequest, ClientStep, RequestView, ServerOptions, accept};
use sinews_proto::http::Version;
use sinews_proto::{Connection, Kind, Negotiated, PerThread, Role, Time};

use crate::agree::{self, Agreement};
use crate::blocks;
use crate::extensions::{self, Meaning};
use crate::frames::{Setup, frame};
use crate::heads;
use crate::input::{Chunks, Input};
use crate::reference::{self, End, Rules, Said};

/// Fuzzes negotiation and both codecs.
///
/// The first byte selects the input: offers to a server, answers to a client, messages of our compressor,
/// blocks built from decisions, or raw bytes.
pub fn deflate(data: &[u8]) {
    let mut input = Input::new(data);
    match input.below(6) {
        0 => offers(&mut input),
        1 => answers(&mut input),
        2 => round_trip(&mut input),
        3 => payloads(&mut input, Payloads::Blocks),
        4 => payloads(&mut input, Payloads::Damaged),
        _ => payloads(&mut input, Payloads::Raw),
    }
}

/// A request with arbitrary bytes as extensions: HTTP/2, which has no header lines to break.
struct Offers(Vec<Vec<u8>>);

impl RequestView for Offers {
    fn method(&self) -> &str {
        "CONNECT"
    }

    fn version(&self) -> Version {
        Version::Http2
    }

    fn protocol(&self) -> Option<&str> {
        Some("websocket")
    }

    fn headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let lines = self.0.iter().map(|line| ("sec-websocket-extensions", line.as_slice()));
        std::iter::once(("sec-websocket-version", &b"13"[..])).chain(lines)
    }
}

/// Tests the server: it accepts the offers that it supports, and its answer stays within the offer.
fn offers(input: &mut Input<'_>) {
    let config = input.flag().then(|| agree::read_config(input));
    let lines: Vec<Vec<u8>> = (0..input.below(3)).map(|_| extension_line(input)).collect();
    let mut options = ServerOptions::new();
    if let Some(config) = &config {
        options = options.with_deflate(config.clone());
    }
    let accepted = accept(&Offers(lines.clone()), &options);
    let Ok(list) = extensions::parse(lines.iter().map(Vec::as_slice)) else {
        assert_eq!(accepted.err().map(|refusal| refusal.status()), Some(400), "lists against the grammar");
        return;
    };
    let accepted = accepted.expect("a list by the grammar");
    // The compressor does not support a window of 256 bytes.
    let possible = |offer: &Meaning| offer.server_bits != Some(8);
    let offer = list.iter().filter_map(extensions::meaning).find(possible).filter(|_| config.is_some());
    match (offer, accepted.extensions(), accepted.negotiated().deflate()) {
        (None, None, None) => {}
        (Some(offer), Some(text), Some(params)) => {
            let answer = single(text.as_bytes()).expect("an answer that means something");
            assert!(extensions::answers(&answer, &offer), "{text} answers {offer:?}");
            assert!(extensions::is_within(params, &answer), "{params:?} under {text}");
            let wish = config.expect("an answer comes from a wish");
            assert!(params.server_max_window_bits() <= wish.server_max_window_bits());
            assert!(params.server_no_context_takeover() >= wish.server_no_context_takeover());
        }
        (offer, text, params) => panic!("{offer:?} is answered with {text:?}, {params:?}"),
    }
}

/// Tests the client: it accepts an answer exactly if the answer follows the offer and is supported.
fn answers(input: &mut Input<'_>) {
    let config = agree::read_config(input);
    let request = ClientRequest::new("fuzz", "/").expect("host and path are sound").with_deflate(config);
    let mut handshake = request.start([7; 16]);
    let mut sent = Vec::new();
    handshake.write_request(&mut sent);
    let offer = heads::split(&sent).and_then(|head| single(head.only("sec-websocket-extensions")?));
    let offer = offer.expect("an offer that means something");
    let line: Vec<u8> = extension_line(input).into_iter().map(printable).collect();
    let mut response = heads::answer(&[7; 16]);
    response.extend_from_slice(b"Sec-WebSocket-Extensions: ");
    response.extend_from_slice(&line);
    response.extend_from_slice(b"\r\n\r\n");
    let step = handshake.read_response(&response);
    let answer = single(&line).filter(|answer| extensions::answers(answer, &offer));
    // A client does not support an answer that requires a window of 256 bytes.
    let answer = answer.filter(|answer| answer.client_bits != Some(Some(8)));
    match (answer, step) {
        (None, Err(_)) => {}
        (Some(answer), Ok(ClientStep::Done(done))) => {
            let params = done.negotiated().deflate().expect("an answer was taken");
            assert!(extensions::is_within(params, &answer), "{params:?} under {answer:?}");
            assert!(params.client_max_window_bits() <= offer.client_bits.flatten().unwrap_or(15));
            assert!(params.client_no_context_takeover() >= offer.client_no_context_takeover);
        }
        (answer, step) => panic!("{} is {answer:?}, taken as {step:?}", line.escape_ascii()),
    }
}

fn single(line: &[u8]) -> Option<Meaning> {
    match extensions::parse([line]).as_deref() {
        Ok([extension]) => extensions::meaning(extension),
        _ => None,
    }
}

/// A header line has no control bytes, and no significant spaces around its value.
fn printable(byte: u8) -> u8 {
    if byte.is_ascii_control() { b' ' } else { byte }
}

/// Raw bytes, or tokens of extension headers.
fn extension_line(input: &mut Input<'_>) -> Vec<u8> {
    let len = input.below(48);
    if input.flag() {
        return input.take(len).to_vec();
    }
    let mut line = Vec::new();
    for _ in 0..len / 2 {
        line.extend_from_slice(WORDS[input.below(WORDS.len())].as_bytes());
    }
    line
}

const WORDS: [&str; 27] = [
    "permessage-deflate",
    "permessage-deflate; client_max_window_bits",
    "permessage-deflate; server_max_window_bits=10",
    "; server_no_context_takeover",
    "; client_no_context_takeover",
    "; client_max_window_bits",
    "; server_max_window_bits=",
    "; client_max_window_bits=",
    ", permessage-deflate",
    ",",
    ";",
    "=",
    "\"",
    "\\",
    " ",
    "\t",
    "8",
    "9",
    "10",
    "15",
    "16",
    "08",
    "\"12\"",
    "\"1\\2\"",
    "; x",
    "x-webkit-deflate-frame",
    "\u{e4}",
];

/// Compresses messages: the reference decodes them within the negotiated window, and so does the peer, with
/// any chunking.
fn round_trip(input: &mut Input<'_>) {
    let (client, server) = (agree::read_config(input), agree::read_config(input));
    let Agreement { client, server } = agree::agree(Some(&client), Some(&server));
    let (sender, receiver) = if input.flag() { (client, server) } else { (server, client) };
    let chunks = Chunks::read(input);
    let fragments = input.flag();
    let (stream, sent) = compress(sender, input);
    let setup = receiving(receiver, 1 << 20, fragments);
    let reading = reference::read(&stream, setup.rules());
    assert_eq!((reading.said, reading.end), (sent, End::Waiting), "output of the compressor");
    setup.check(&stream, chunks);
}

/// Builds messages from decisions, and sends them on a connection.
fn compress(sender: Negotiated, input: &mut Input<'_>) -> (Vec<u8>, Vec<Said>) {
    let mut connection = Connection::new(sender, <_>::default(), Time::ZERO);
    let mut shared = PerThread::new(|| [9, 8, 7, 6]);
    let mut stream = Vec::new();
    let mut sent = Vec::new();
    let mut all = Vec::new();
    while !input.is_empty() && all.len() < CONTENT_MAX {
        let what = input.byte();
        let kind = if what & 1 == 0 { Kind::Binary } else { Kind::Text };
        let content = content(input, what, &all);
        let out = &mut stream;
        if what & 2 == 0 {
            connection.send(kind, &content, &mut shared, out).expect("nothing is open");
        } else {
            let middle = content.len() / 2;
            let pieces = [&content[..middle], &[], &content[middle..]];
            for (at, piece) in pieces.into_iter().enumerate() {
                connection.send_fragment(kind, piece, at == 2, &mut shared, out).expect("the same kind");
            }
        }
        all.extend_from_slice(&content);
        sent.push(Said::Message(kind, content));
    }
    (stream, sent)
}

/// Generates repetitive ASCII, a repetition of earlier content, or new content.
fn content(input: &mut Input<'_>, what: u8, all: &[u8]) -> Vec<u8> {
    let len = match what >> 2 & 3 {
        0 => input.below(16),
        1 => input.below(256),
        _ => input.below(6000),
    };
    match what >> 4 & 3 {
        0 => input.take(len).iter().map(|byte| byte & 0x7f).collect(),
        1 => {
            let from = input.below(all.len().clamp(1, 65_536)).min(all.len());
            all[from..].iter().copied().take(len).collect()
        }
        2 => vec![input.byte() & 0x7f; len],
        _ => {
            let mut state = usize::from(input.byte());
            let next = |_| {
                state = state.wrapping_mul(1_103_515_245).wrapping_add(12_345);
                b'a' + (state >> 16) as u8 % 23
            };
            (0..len).map(next).collect()
        }
    }
}

/// Total length of content, after which no more is generated.
const CONTENT_MAX: usize = 100 << 10;

#[derive(Clone, Copy)]
enum Payloads {
    Blocks,
    Damaged,
    Raw,
}

/// Tests compressed payloads that may be invalid: the decoder's output equals the reference's, and never
/// exceeds the limit.
fn payloads(input: &mut Input<'_>, what: Payloads) {
    let config = agree::read_config(input);
    let Agreement { client, server } = agree::agree(Some(&config), Some(&config));
    let (sender, receiver) = if input.flag() { (client, server) } else { (server, client) };
    let setup = receiving(receiver, [1000, 60, 5000, 1 << 20][input.below(4)], input.flag());
    let chunks = Chunks::read(input);
    let stream = match what {
        Payloads::Damaged => {
            let edits = input.take(6);
            let (mut stream, _) = compress(sender, input);
            for edit in edits.chunks_exact(3) {
                let at = usize::from(edit[0]) << 8 | usize::from(edit[1]);
                let len = stream.len().max(1);
                if let Some(byte) = stream.get_mut(at % len) {
                    *byte ^= edit[2];
                }
            }
            stream
        }
        Payloads::Blocks | Payloads::Raw => {
            let mut stream = Vec::new();
            while !input.is_empty() && stream.len() < STREAM_MAX {
                let payload = match what {
                    Payloads::Blocks => blocks::build(input),
                    _ => {
                        let len = input.below(300);
                        input.take(len).to_vec()
                    }
                };
                message(&mut stream, &payload, input.byte(), receiver.role());
            }
            stream
        }
    };
    setup.check(&stream, chunks);
}

/// Frames a payload as a compressed message: in one frame, or in two fragments with a ping between them.
fn message(stream: &mut Vec<u8>, payload: &[u8], how: u8, receiver: Role) {
    let masked = receiver == Role::Server;
    let opcode = 1 + (how & 1);
    if how & 2 == 0 {
        frame(stream, 0xc0 | opcode, payload, masked, 0);
        return;
    }
    let (first, second) = payload.split_at(payload.len() * usize::from(how >> 2) / 64);
    frame(stream, 0x40 | opcode, first, masked, 0);
    frame(stream, 0x89, b"", masked, 0);
    frame(stream, 0x80, second, masked, 0);
}

const STREAM_MAX: usize = 8 << 10;

fn receiving(receiver: Negotiated, max_message: usize, fragments: bool) -> Setup {
    let rules = Rules {
        role: receiver.role(),
        deflate: None,
        max_message,
        max_frame: 1 << 20,
        max_fragments: 1 << 16,
        max_empty_fragments: 1 << 16,
        pings: 1 << 16,
    };
    Setup::new(receiver, rules, fragments, false)
}
