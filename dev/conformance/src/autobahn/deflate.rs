//! Sections 12 and 13: permessage-deflate, over content and over parameters.

use sinews_proto::Kind::{self, Binary, Text};
use sinews_testkit::Rng;

use crate::Case;

/// Message length, and the length of the frames that carry the compressed messages.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Message bytes.
    pub message: usize,
    /// Maximum payload bytes in a frame.
    pub frame: usize,
}

/// The suite's 18 shapes.
pub const SHAPES: [Shape; 18] = {
    const ANY: usize = usize::MAX;
    const fn shape(message: usize, frame: usize) -> Shape {
        Shape { message, frame }
    }
    [
        shape(16, ANY),
        shape(64, ANY),
        shape(256, ANY),
        shape(1 << 10, ANY),
        shape(4 << 10, ANY),
        shape(8 << 10, ANY),
        shape(16 << 10, ANY),
        shape(32 << 10, ANY),
        shape(64 << 10, ANY),
        shape(128 << 10, ANY),
        shape(8 << 10, 256),
        shape(16 << 10, 256),
        shape(32 << 10, 256),
        shape(64 << 10, 256),
        shape(128 << 10, 256),
        shape(128 << 10, 1 << 10),
        shape(128 << 10, 4 << 10),
        shape(128 << 10, 32 << 10),
    ]
};

/// Common properties of a case family: its number and its client's offers, the preferred one first.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// The suite's number, such as `13.4`.
    pub number: &'static str,
    /// The offers as a header.
    pub offers: &'static str,
    /// Whether the negotiated parameters must include `server_no_context_takeover`.
    pub no_takeover: bool,
    /// The negotiated `server_max_window_bits`.
    pub window_bits: u8,
    kind: Kind,
    content: fn(usize, &mut Rng) -> Vec<u8>,
}

const DEFAULT_OFFER: &str = "permessage-deflate; client_max_window_bits";

/// 12.1 to 12.5: five kinds of content under the default offer.
#[must_use]
pub fn section_12() -> Vec<Family> {
    let family = |number, kind, content| Family {
        number,
        offers: DEFAULT_OFFER,
        no_takeover: false,
        window_bits: 15,
        kind,
        content,
    };
    vec![
        family("12.1", Text, json as fn(usize, &mut Rng) -> Vec<u8>),
        family("12.2", Binary, bitmap),
        family("12.3", Text, html),
        family("12.4", Binary, german),
        family("12.5", Binary, noise),
    ]
}

/// 13.1 to 13.7: one kind of content under seven offers.
#[must_use]
pub fn section_13() -> Vec<Family> {
    let family = |number, offers, no_takeover, window_bits| Family {
        number,
        offers,
        no_takeover,
        window_bits,
        kind: Text,
        content: json,
    };
    vec![
        family("13.1", "permessage-deflate; client_max_window_bits", false, 15),
        family("13.2", "permessage-deflate; server_no_context_takeover; client_max_window_bits", true, 15),
        family("13.3", "permessage-deflate; server_max_window_bits=9; client_max_window_bits", false, 9),
        family("13.4", "permessage-deflate; server_max_window_bits=15; client_max_window_bits", false, 15),
        family(
            "13.5",
            "permessage-deflate; server_no_context_takeover; server_max_window_bits=9; client_max_window_bits",
            true,
            9,
        ),
        family(
            "13.6",
            "permessage-deflate; server_no_context_takeover; server_max_window_bits=15; \
             client_max_window_bits",
            true,
            15,
        ),
        family(
            "13.7",
            "permessage-deflate; server_no_context_takeover; server_max_window_bits=9; \
             client_max_window_bits, permessage-deflate; server_no_context_takeover; client_max_window_bits, \
             permessage-deflate; client_max_window_bits",
            true,
            9,
        ),
    ]
}

impl Family {
    /// Returns the case for a shape with `count` messages (1,000 in the suite), all cut from one long text.
    #[must_use]
    pub fn case(&self, index: usize, count: usize) -> Case {
        let shape = SHAPES[index];
        let mut rng = Rng::new(index as u64);
        let mut case = Case::new(format!("{}.{}", self.number, index + 1));
        for _ in 0..count {
            let payload = (self.content)(shape.message, &mut rng);
            case = case.message(self.kind, &payload, shape.frame);
        }
        case.bye()
    }
}

/// Repeats `record`'s output up to the length, and cuts it; the output is ASCII where the kind is text.
fn repeat(len: usize, rng: &mut Rng, mut record: impl FnMut(&mut Rng) -> Vec<u8>) -> Vec<u8> {
    let mut out = Vec::with_capacity(len + 256);
    while out.len() < len {
        out.extend(record(rng));
    }
    out.truncate(len);
    out
}

fn json(len: usize, rng: &mut Rng) -> Vec<u8> {
    repeat(len, rng, |rng| {
        let (id, value) = (rng.below(100_000), rng.below(1_000_000));
        let name = ["alpha", "beta", "gamma", "delta"][rng.below(4)];
        format!("{{\"id\":{id},\"name\":\"{name}\",\"value\":{value}.5,\"active\":true}},\n").into_bytes()
    })
}

fn html(len: usize, rng: &mut Rng) -> Vec<u8> {
    repeat(len, rng, |rng| {
        let (id, tag) = (rng.below(10_000), ["p", "div", "li", "td"][rng.below(4)]);
        format!("<{tag} class=\"item\" id=\"n{id}\"><a href=\"/page/{id}.html\">read on</a></{tag}>\n")
            .into_bytes()
    })
}

fn german(len: usize, rng: &mut Rng) -> Vec<u8> {
    let words =
        ["Stra\u{df}e", "\u{fc}ber", "und", "M\u{e4}dchen", "sch\u{f6}n", "der", "Gr\u{fc}\u{df}e", "nicht"];
    repeat(len, rng, |rng| format!("{} ", words[rng.below(words.len())]).into_bytes())
}

/// Rows of pixels that change little from row to row.
fn bitmap(len: usize, rng: &mut Rng) -> Vec<u8> {
    repeat(len, rng, |rng| {
        let shade = rng.below(256) as u8;
        (0..64).map(|column| shade.wrapping_add(column / 16)).collect()
    })
}

/// Compressed content, like most of a PDF.
fn noise(len: usize, rng: &mut Rng) -> Vec<u8> {
    rng.bytes(len)
}
