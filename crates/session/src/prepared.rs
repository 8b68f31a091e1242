//! A message that is framed once and sent to many.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use sinews_proto::deflate::DeflateClass;
use sinews_proto::{Kind, PerThread, write_prepared};

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
}

/// Compressed frames by window bits, 9 to 15; all connections of a server share one level.
type Deflated = [OnceLock<(DeflateClass, Bytes)>; 7];

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

    /// Creates a message of either kind. The payload of text must be UTF-8, which holds for every received
    /// text.
    #[must_use]
    pub fn new(kind: Kind, payload: Bytes) -> Self {
        Self(Arc::new(Inner { kind, payload, plain: OnceLock::new(), deflated: OnceLock::new() }))
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
        let (kept, frame) = slot.get_or_init(|| (class, encode(Some(class))));
        // Another level at the same window is rare, so it is encoded again.
        if *kept == class { frame.clone() } else { encode(Some(class)) }
    }
}
