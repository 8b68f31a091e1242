//! Properties: any input, in any segmentation, has the same result and causes no panic.

use proptest::collection::vec;
use proptest::prelude::*;
use sinews_proto::deflate::DeflateConfig;
use sinews_proto::handshake::{ClientError, ClientRequest, ClientStep, ServerOptions, accept};
use sinews_proto::http::{HeadError, HeadLimits, HeadScanner, HeaderSlots, RequestHead};

use crate::Lines;

/// Small limits, so that inputs of a few dozen bytes reach them.
fn limits() -> HeadLimits {
    HeadLimits::new().with_max_bytes(512).with_max_headers(12)
}

fn options() -> ServerOptions {
    ServerOptions::new().with_subprotocol("a").expect("a token").with_deflate(DeflateConfig::new())
}

/// Feeds segments of these sizes repeatedly; returns the first result.
fn in_pieces<T>(bytes: &[u8], sizes: &[usize], mut look: impl FnMut(&[u8]) -> Option<T>) -> Option<T> {
    let mut end = 0;
    for size in sizes.iter().cycle() {
        end = bytes.len().min(end + size);
        if let Some(answer) = look(&bytes[..end]) {
            return Some(answer);
        }
        if end == bytes.len() {
            return None;
        }
    }
    None
}

/// The result of the server side as text, for comparison.
fn serve(bytes: &[u8], sizes: &[usize]) -> String {
    let mut scanner = HeadScanner::new();
    let found = in_pieces(bytes, sizes, |received| scanner.scan(received, &limits()).transpose());
    let decided = found.map(|end| {
        let mut slots = HeaderSlots::new();
        let end = end?;
        let head = RequestHead::parse(&bytes[..end], &limits(), &mut slots)?;
        let mut out = Vec::new();
        match accept(&head, &options()) {
            Ok(accepted) => accepted.write_response(&[], &mut out).expect("HTTP/1.1"),
            Err(refusal) => refusal.write_response(&mut out),
        }
        Ok::<_, HeadError>((end, out.escape_ascii().to_string()))
    });
    format!("{decided:?}")
}

fn connect(bytes: &[u8], sizes: &[usize]) -> String {
    let request = ClientRequest::new("a", "/").expect("sound").with_response_limits(limits());
    let mut handshake = request.with_deflate(DeflateConfig::new()).start(*b"the sample nonce");
    let answer = in_pieces(bytes, sizes, |received| match handshake.read_response(received) {
        Ok(ClientStep::NeedMore) => None,
        Ok(ClientStep::Done(done)) => Some(format!("{} {:?}", done.consumed(), done.negotiated())),
        // The available part of the body depends on the segmentation.
        Err(ClientError::Status(rejection)) => Some(format!("{}", rejection.status())),
        Err(error) => Some(format!("{error:?}")),
    });
    format!("{answer:?}")
}

/// Valid and invalid parts of heads, so that combinations reach deep.
fn fragments(pieces: &'static [&'static str]) -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        9 => proptest::sample::select(pieces).prop_map(|piece| piece.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 0..4),
    ];
    vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

const REQUESTS: &[&str] = &[
    "GET / HTTP/1.1\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n",
    "Host: a\r\n",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
    "Sec-WebSocket-Version: 13\r\n",
    "Sec-WebSocket-Protocol: ",
    "Sec-WebSocket-Extensions: ",
    "permessage-deflate",
    "; client_max_window_bits",
    "; server_max_window_bits=\"1\\0\"",
    "; a=\"b",
    "=",
    ",",
    "a",
    "Origin: http://a\r\n",
    "Content-Length: 0\r\n",
    "Transfer-Encoding: chunked\r\n",
    "\r\n",
    "\r",
    "\n",
    " ",
];

const RESPONSES: &[&str] = &[
    "HTTP/1.1 101 x\r\n",
    "HTTP/1.1 100 x\r\n\r\n",
    "HTTP/1.1 302 x\r\n",
    "HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n",
    "Sec-WebSocket-Protocol: a\r\n",
    "Sec-WebSocket-Extensions: permessage-deflate; server_no_context_takeover",
    "; client_max_window_bits=9",
    "\r\n",
    "\n",
    "a",
];

proptest! {
    #[test]
    fn request_result_is_independent_of_segmentation(bytes in fragments(REQUESTS), sizes in vec(1_usize..40, 1..8)) {
        prop_assert_eq!(serve(&bytes, &sizes), serve(&bytes, &[usize::MAX / 2]));
    }

    #[test]
    fn valid_request_is_accepted_for_any_segmentation(sizes in vec(1_usize..40, 1..8), behind in vec(any::<u8>(), 0..9)) {
        let head = Lines::new().bytes();
        let expected = format!("Some(Ok(({}, \"HTTP/1.1 101", head.len());
        prop_assert!(serve(&[head, behind].concat(), &sizes).starts_with(&expected));
    }

    #[test]
    fn response_result_is_independent_of_segmentation(bytes in fragments(RESPONSES), sizes in vec(1_usize..40, 1..8)) {
        prop_assert_eq!(connect(&bytes, &sizes), connect(&bytes, &[usize::MAX / 2]));
    }

    #[test]
    fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..700), sizes in vec(1_usize..300, 1..4)) {
        serve(&bytes, &sizes);
        connect(&bytes, &sizes);
    }

    #[test]
    fn random_header_values_never_panic(value in "[ -~\t\u{80}-\u{ff}]{0,60}") {
        for name in ["Sec-WebSocket-Extensions", "Sec-WebSocket-Protocol", "Sec-WebSocket-Key", "Origin", "Connection"] {
            let status = Lines::new().replace(name, &value).status();
            prop_assert!([101, 400, 403, 426].contains(&status), "{} {}", name, status);
        }
    }
}
