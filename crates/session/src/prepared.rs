//! A message that is framed once and sent to many.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use sinews_proto::deflate::DeflateClass;
use sinews_proto::{BodyFormat, Kind, PerThread, write_body, write_prepared};
use sinews_simd::Utf8Bytes;

use crate::resources::Resources;

/// A message for many clients. It is framed once, and compressed once per class of connections, on first
/// use. Clones share the frames and may move to other threads.
#[derive(Clone, Debug)]
pub struct Prepared(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    kind: Kind,
    payload: Bytes,
    plain: OnceLock<Bytes>,
    deflated: OnceLock<Box<Deflated>>,
    bodies: OnceLock<Box<EncodedBodies>>,
}

/// Compressed frames by window bits, 9 to 15; all connections of a server share one level.
type Deflated = [OnceLock<(DeflateClass, Bytes)>; 7];

/// Encodings for streaming responses, in the order of first use: a server has few formats.
type EncodedBodies = [OnceLock<EncodedBody>; 4];

/// A message in the format of streaming responses.
#[derive(Clone, Debug)]
pub(crate) struct EncodedBody {
    format: &'static BodyFormat,
    /// The encoded message as a chunk.
    chunk: Bytes,
    /// Length of the encoded message.
    len: usize,
    pub(crate) label: Option<Arc<[u8]>>,
}

impl EncodedBody {
    fn new(format: &'static BodyFormat, kind: Kind, payload: &[u8]) -> Self {
        let mut chunk = Vec::new();
        let len = write_body(format, kind, payload, &mut chunk);
        let label = format.label(kind, payload).map(Arc::from);
        Self { format, chunk: chunk.into(), len, label }
    }

    /// The bytes for a body that is sent in chunks, or for another body.
    pub(crate) fn bytes(&self, chunked: bool) -> Bytes {
        if chunked || self.len == 0 {
            return self.chunk.clone();
        }
        // A chunk ends with CR and LF.
        let end = self.chunk.len() - 2;
        self.chunk.slice(end - self.len..end)
    }
}

/// A text message, such as a received one, without a copy.
impl From<Utf8Bytes> for Prepared {
    fn from(text: Utf8Bytes) -> Self {
        Self::new(Kind::Text, text.into_bytes())
    }
}

impl Prepared {
    /// A text message.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self::new(Kind::Text, Bytes::from(text.into()))
    }

    /// A binary message.
    #[must_use]
    pub fn binary(payload: impl Into<Bytes>) -> Self {
        Self::new(Kind::Binary, payload.into())
    }

    /// Creates a message of either kind. A text payload must be UTF-8, which holds for every received text.
    #[must_use]
    pub fn new(kind: Kind, payload: Bytes) -> Self {
        Self(Arc::new(Inner {
            kind,
            payload,
            plain: OnceLock::new(),
            deflated: OnceLock::new(),
            bodies: OnceLock::new(),
        }))
    }

    /// Text or binary.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// The payload.
    #[must_use]
    pub fn payload(&self) -> &Bytes {
        &self.0.payload
    }

    /// The encoding for streaming responses of a format. Two threads may encode at once; one result is kept.
    pub(crate) fn body(&self, format: &'static BodyFormat) -> EncodedBody {
        let inner = &*self.0;
        let encode = || EncodedBody::new(format, inner.kind, &inner.payload);
        let bodies = inner.bodies.get_or_init(Box::default);
        let known = bodies.iter().map(|slot| slot.get_or_init(encode)).find(|known| known.format == format);
        // Beyond the number of slots, a format is encoded again.
        known.cloned().unwrap_or_else(encode)
    }

    /// Appends the frame for connections without compression
    /// ([`Session::take_run`](crate::Session::take_run)).
    pub fn append_frame(&self, resources: &mut Resources, run: &mut Vec<u8>) {
        match self.0.plain.get() {
            Some(frame) => run.extend_from_slice(frame),
            None => write_prepared(self.0.kind, &self.0.payload, None, &mut resources.shared, run),
        }
    }

    /// The frame for connections without compression, shared by all of them.
    #[must_use]
    pub fn plain_frame(&self, resources: &mut Resources) -> Bytes {
        self.frame(None, &mut resources.shared)
    }

    /// The frame for connections of a class. Two threads may encode at once; one result is kept.
    pub(crate) fn frame(&self, class: Option<DeflateClass>, shared: &mut PerThread) -> Bytes {
        let inner = &*self.0;
        let mut encode = |class| {
            let mut frame = Vec::new();
            write_prepared(inner.kind, &inner.payload, class, shared, &mut frame);
            Bytes::from(frame)
        };
        let Some(class) = class else {
            return inner.plain.get_or_init(|| encode(None)).clone();
        };
        let deflated = inner.deflated.get_or_init(Box::default);
        let Some(slot) = deflated.get(usize::from(class.window_bits().saturating_sub(9))) else {
            return encode(Some(class));
        };
        let (cached_class, frame) = slot.get_or_init(|| (class, encode(Some(class))));
        // Another level at the same window is rare, so it is encoded again.
        if *cached_class == class { frame.clone() } else { encode(Some(class)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static UPPER: BodyFormat =
        BodyFormat::new(|_, payload, out| out.extend(payload.iter().map(u8::to_ascii_uppercase)));

    static PLAIN: BodyFormat = BodyFormat::new(|_, payload, out| out.extend_from_slice(payload))
        .with_label(|_, payload| Some(payload[..1].into()));

    #[test]
    fn body_is_encoded_once_for_each_format() {
        let message = Prepared::text("hello");
        let [first, second] = [(); 2].map(|()| message.body(&UPPER));
        assert_eq!(first.bytes(true), "5\r\nHELLO\r\n");
        assert_eq!(first.bytes(true).as_ptr(), second.bytes(true).as_ptr(), "the bytes are shared");
        assert_eq!((first.bytes(false), first.label), (Bytes::from("HELLO"), None));
        let other = message.body(&PLAIN);
        assert_eq!((other.bytes(false), other.label.as_deref()), (Bytes::from("hello"), Some(&b"h"[..])));
        assert_eq!(message.body(&UPPER).bytes(true).as_ptr(), second.bytes(true).as_ptr());
    }

    #[test]
    fn formats_beyond_the_slots_are_encoded_too() {
        let message = Prepared::text("a");
        for _ in 0..2 {
            for _ in 0..6 {
                let format: &'static BodyFormat =
                    Box::leak(Box::new(BodyFormat::new(|_, payload, out| out.extend_from_slice(payload))));
                assert_eq!(message.body(format).bytes(false), "a");
            }
        }
    }
}
