//! Compressed messages (RFC 7692) from a possibly invalid peer.

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};
use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::TINFL_FLAG_HAS_MORE_INPUT;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};

use super::extension::OfferParams;
use super::violation::{EITHER, Violation};

/// Bytes removed from the end of each message's compressed data (RFC 7692 section 7.2.1).
const TAIL: [u8; 4] = [0, 0, 0xff, 0xff];
/// Output bytes per step.
const STEP: usize = 4 << 10;

/// Inflates one direction three times: with the agreed context takeover, with context takeover, and with the agreed
/// window only. Data that only one variant cannot read violate the agreement.
pub(crate) struct CheckedInflater {
    agreed: DirectionParams,
    strict: Option<Decompress>,
    generous: Option<Decompress>,
    narrow: Option<WindowChecker>,
}

/// Negotiated parameters for one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DirectionParams {
    pub(crate) from_client: bool,
    pub(crate) no_context_takeover: bool,
    pub(crate) max_window_bits: u8,
}

impl DirectionParams {
    pub(crate) fn new(params: &OfferParams, from_client: bool) -> Self {
        let (no_context_takeover, bits) = match from_client {
            true => (params.client_no_context_takeover, params.client_bits()),
            false => (params.server_no_context_takeover, params.server_bits()),
        };
        Self { from_client, no_context_takeover, max_window_bits: bits }
    }
}

impl CheckedInflater {
    pub(crate) fn new(agreed: DirectionParams) -> Self {
        let narrow = WindowChecker::new(agreed.max_window_bits);
        Self { agreed, strict: Some(Decompress::new(false)), generous: Some(Decompress::new(false)), narrow }
    }

    /// Inflates a piece of a message into `out`, up to `max` bytes. Returns the first faulty piece's fault.
    pub(crate) fn inflate(&mut self, piece: &[u8], max: usize, out: &mut Vec<u8>) -> Option<Violation> {
        let kept = out.len();
        let strict = self.strict.as_mut().map(|inflater| inflate(inflater, piece, max, out));
        let generous = if strict == Some(Ok(())) {
            self.generous.as_mut().map(|inflater| inflate(inflater, piece, 0, &mut Vec::new()))
        } else {
            out.truncate(kept);
            self.generous.as_mut().map(|inflater| inflate(inflater, piece, max, out))
        };
        let fits = self.narrow.as_mut().is_none_or(|narrow| narrow.fits(piece));
        if !fits {
            self.narrow = None;
        }
        if generous != Some(Ok(())) {
            self.generous = None;
        }
        if strict == Some(Ok(())) {
            let description = format!(
                "the data refer farther back than the agreed window of {} bits",
                self.agreed.max_window_bits
            );
            return (!fits).then(|| {
                self.violation(["RFC 7692 section 7.1.2.1", "RFC 7692 section 7.1.2.2"], &description)
            });
        }
        // Faults after the first one are already reported.
        self.strict.take()?;
        Some(match generous {
            Some(Ok(())) if self.agreed.no_context_takeover => self.violation(
                ["RFC 7692 section 7.1.1.1", "RFC 7692 section 7.1.1.2"],
                "the data refer to an earlier message, though no context takeover was agreed",
            ),
            _ => Violation::fatal(
                "RFC 7692 section 7.2.2",
                "the compressed data are not valid deflate data",
                EITHER,
            ),
        })
    }

    fn violation(&self, sections: [&'static str; 2], description: &str) -> Violation {
        Violation::fatal(sections[usize::from(self.agreed.from_client)], description, EITHER)
    }

    /// Ends a message.
    pub(crate) fn finish(&mut self, max: usize, out: &mut Vec<u8>) -> Option<Violation> {
        let violation = self.inflate(&TAIL, max, out);
        // The message after a broken message may be valid.
        if self.strict.is_none() || self.agreed.no_context_takeover {
            self.strict = Some(Decompress::new(false));
        }
        self.generous.get_or_insert_with(|| Decompress::new(false));
        if self.narrow.is_none() {
            self.narrow = WindowChecker::new(self.agreed.max_window_bits);
        }
        violation
    }
}

/// Reads distances against a window below deflate's maximum; zlib would accept larger distances.
struct WindowChecker {
    inflater: Box<DecompressorOxide>,
    /// Its content is unused.
    window: Vec<u8>,
    at: usize,
}

impl WindowChecker {
    /// Returns `None` if every distance fits.
    fn new(bits: u8) -> Option<Self> {
        let window = vec![0; 1 << bits.clamp(8, 15)];
        (bits < 15).then(|| Self { inflater: Box::default(), window, at: 0 })
    }

    fn fits(&mut self, mut piece: &[u8]) -> bool {
        loop {
            let (status, read, written) =
                decompress(&mut self.inflater, piece, &mut self.window, self.at, TINFL_FLAG_HAS_MORE_INPUT);
            piece = piece.get(read..).unwrap_or_default();
            self.at = (self.at + written) % self.window.len();
            match status {
                TINFLStatus::HasMoreOutput => {}
                TINFLStatus::Done => *self.inflater = DecompressorOxide::default(),
                TINFLStatus::NeedsMoreInput => return true,
                _ => return false,
            }
            if piece.is_empty() && status == TINFLStatus::Done {
                return true;
            }
        }
    }
}

fn inflate(inflater: &mut Decompress, mut piece: &[u8], max: usize, out: &mut Vec<u8>) -> Result<(), ()> {
    let mut step = vec![0; STEP];
    loop {
        let (read, written) = (inflater.total_in(), inflater.total_out());
        let status = inflater.decompress(piece, &mut step, FlushDecompress::Sync);
        let (read, written) =
            ((inflater.total_in() - read) as usize, (inflater.total_out() - written) as usize);
        piece = piece.get(read..).unwrap_or_default();
        if out.len() < max {
            out.extend_from_slice(&step[..written]);
        }
        match status {
            Err(_) => return Err(()),
            // A block marked as final may appear within a message (RFC 7692 section 7.2.3.4).
            Ok(Status::StreamEnd) => inflater.reset(false),
            Ok(_) if written < STEP && piece.is_empty() => return Ok(()),
            Ok(_) if read == 0 && written == 0 => return if piece.is_empty() { Ok(()) } else { Err(()) },
            Ok(_) => {}
        }
    }
}

/// Compresses sent messages with the negotiated parameters.
pub(crate) struct MessageDeflater {
    compress: Compress,
    no_context_takeover: bool,
}

impl MessageDeflater {
    /// Returns `None` if zlib does not support the window: messages are then sent uncompressed, which is legal.
    pub(crate) fn new(agreed: DirectionParams) -> Option<Self> {
        let bits = agreed.max_window_bits;
        let compress = (9..=15)
            .contains(&bits)
            .then(|| Compress::new_with_window_bits(Compression::default(), false, bits))?;
        Some(Self { compress, no_context_takeover: agreed.no_context_takeover })
    }

    /// Compresses a whole message; `None` if zlib fails.
    pub(crate) fn deflate(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        // An empty message is one zero byte (RFC 7692 section 7.2.3.6).
        if message.is_empty() {
            return Some(vec![0]);
        }
        let (start, mut out) = (self.compress.total_in(), Vec::new());
        loop {
            out.reserve(message.len() / 2 + STEP);
            let read = (self.compress.total_in() - start) as usize;
            self.compress.compress_vec(message.get(read..)?, &mut out, FlushCompress::Sync).ok()?;
            // Spare output capacity means that all output is written.
            if out.len() < out.capacity() {
                break;
            }
        }
        if self.no_context_takeover {
            self.compress.reset();
        }
        out.truncate(out.strip_suffix(&TAIL)?.len());
        Some(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGREED: DirectionParams =
        DirectionParams { from_client: false, no_context_takeover: false, max_window_bits: 15 };

    fn text() -> Vec<u8> {
        (0..3000_u32).flat_map(|at| (at * at).to_string().into_bytes()).collect()
    }

    fn read_whole(inflater: &mut CheckedInflater, message: &[u8]) -> (Vec<u8>, Option<Violation>) {
        let mut out = Vec::new();
        let first = inflater.inflate(message, 1 << 20, &mut out);
        let last = inflater.finish(1 << 20, &mut out);
        (out, first.or(last))
    }

    #[test]
    fn deflated_messages_inflate() {
        for bits in 9..=15 {
            for no_context_takeover in [false, true] {
                let agreed = DirectionParams { max_window_bits: bits, no_context_takeover, ..AGREED };
                let (mut deflater, mut inflater) =
                    (MessageDeflater::new(agreed).unwrap(), CheckedInflater::new(agreed));
                for message in [text(), Vec::new(), text(), b"short".to_vec()] {
                    let sent = deflater.deflate(&message).unwrap();
                    assert_eq!(read_whole(&mut inflater, &sent), (message, None), "{agreed:?}");
                }
            }
        }
    }

    #[test]
    fn violated_parameters_are_named() {
        let violation = |sender: DirectionParams, receiver: DirectionParams| {
            let (mut deflater, mut inflater) =
                (MessageDeflater::new(sender).unwrap(), CheckedInflater::new(receiver));
            let (_, first) = read_whole(&mut inflater, &deflater.deflate(&text()).unwrap());
            let (message, second) = read_whole(&mut inflater, &deflater.deflate(&text()).unwrap());
            assert_eq!(message, text(), "the message is inflated despite the violation");
            first.or(second).map(|violation| violation.section)
        };
        let narrow = DirectionParams { max_window_bits: 9, ..AGREED };
        assert_eq!(violation(AGREED, narrow), Some("RFC 7692 section 7.1.2.1"));
        assert_eq!(violation(narrow, AGREED), None);
        let forgetful = DirectionParams { no_context_takeover: true, ..AGREED };
        assert_eq!(violation(AGREED, forgetful), Some("RFC 7692 section 7.1.1.1"));
        assert_eq!(
            violation(AGREED, DirectionParams { from_client: true, ..forgetful }),
            Some("RFC 7692 section 7.1.1.2")
        );
        assert_eq!(violation(forgetful, AGREED), None);
    }

    #[test]
    fn invalid_deflate_data_is_named_once() {
        let mut inflater = CheckedInflater::new(AGREED);
        let (_, violation) = read_whole(&mut inflater, &[0xff; 40]);
        assert_eq!(violation.map(|violation| violation.section), Some("RFC 7692 section 7.2.2"));
        let sound = MessageDeflater::new(AGREED).unwrap().deflate(b"hello").unwrap();
        assert_eq!(read_whole(&mut inflater, &sound), (b"hello".to_vec(), None));
    }
}
