use sinews_proto::Role;
use sinews_proto::deflate::DeflateParams;
use zlib_rs::{Deflate, DeflateConfig, DeflateFlush, Inflate, InflateFlush, Method, Status, Strategy};

/// A peer's permessage-deflate, directly over the library and without the machine's code.
pub struct Codec {
    deflate: Deflate,
    inflate: Inflate,
    deflate_takeover: bool,
    inflate_takeover: bool,
}

impl std::fmt::Debug for Codec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Codec").finish_non_exhaustive()
    }
}

/// The end of a compressed message that RFC 7692 removes.
const TAIL: [u8; 4] = [0, 0, 0xff, 0xff];

impl Codec {
    /// Creates the codec for an end with this role and the negotiated parameters.
    #[must_use]
    pub fn new(role: Role, params: DeflateParams) -> Self {
        let server = (params.server_max_window_bits(), !params.server_no_context_takeover());
        let client = (params.client_max_window_bits(), !params.client_no_context_takeover());
        let (ours, theirs) = match role {
            Role::Server => (server, client),
            Role::Client => (client, server),
        };
        Self {
            deflate: deflater(ours.0, 6),
            inflate: Inflate::new(false, theirs.0),
            deflate_takeover: ours.1,
            inflate_takeover: theirs.1,
        }
    }

    /// Compresses a message into its frames' payload.
    pub fn compress(&mut self, message: &[u8]) -> Vec<u8> {
        if message.is_empty() {
            // RFC 7692 section 7.2.3.6: a second flush without input would have no output.
            return vec![0];
        }
        let mut out = self.compress_flushed(message, DeflateFlush::SyncFlush);
        assert!(out.ends_with(&TAIL), "a flush ends with an empty stored block");
        out.truncate(out.len() - TAIL.len());
        if !self.deflate_takeover {
            self.deflate.reset();
        }
        out
    }

    /// Compresses a message into one final block (RFC 7692 section 7.2.3.4), without context takeover.
    pub fn compress_final(&mut self, message: &[u8]) -> Vec<u8> {
        let out = self.compress_flushed(message, DeflateFlush::Finish);
        self.deflate.reset();
        out
    }

    fn compress_flushed(&mut self, message: &[u8], flush: DeflateFlush) -> Vec<u8> {
        let mut out = Vec::new();
        let mut rest = message;
        loop {
            let mut space = [0; 4096];
            let (before_in, before_out) = (self.deflate.total_in(), self.deflate.total_out());
            let status = self.deflate.compress(rest, &mut space, flush).expect("a sound stream");
            let used = (self.deflate.total_in() - before_in) as usize;
            let made = (self.deflate.total_out() - before_out) as usize;
            rest = &rest[used..];
            out.extend_from_slice(&space[..made]);
            if made < space.len() && rest.is_empty() || status == Status::StreamEnd {
                return out;
            }
        }
    }

    /// Decompresses a message's frame payloads, to at most `most` bytes.
    ///
    /// # Errors
    /// The payload is not deflate data, or exceeds the limit.
    pub fn decompress(&mut self, payload: &[u8], most: usize) -> Result<Vec<u8>, String> {
        let input = [payload, &TAIL].concat();
        let mut rest = &input[..];
        let mut out = Vec::new();
        loop {
            let mut space = vec![0; 16 << 10];
            let (before_in, before_out) = (self.inflate.total_in(), self.inflate.total_out());
            let status = self
                .inflate
                .decompress(rest, &mut space, InflateFlush::SyncFlush)
                .map_err(|error| format!("inflate: {error:?}"))?;
            let used = (self.inflate.total_in() - before_in) as usize;
            let made = (self.inflate.total_out() - before_out) as usize;
            rest = &rest[used..];
            out.extend_from_slice(&space[..made]);
            if out.len() > most {
                return Err(format!("more than {most} bytes"));
            }
            if status == Status::StreamEnd {
                return Err("a final block, which our side never writes".to_owned());
            }
            if made < space.len() && rest.is_empty() {
                break;
            }
            if used + made == 0 {
                return Err("inflate is stuck".to_owned());
            }
        }
        if !self.inflate_takeover {
            self.inflate.reset(false);
        }
        Ok(out)
    }
}

fn deflater(window_bits: u8, level: i32) -> Deflate {
    Deflate::new_with_config(DeflateConfig {
        level,
        method: Method::Deflated,
        // zlib does not support a raw stream with a window below 9 bits.
        window_bits: -i32::from(window_bits.max(9)),
        mem_level: 8,
        strategy: Strategy::Default,
    })
}
