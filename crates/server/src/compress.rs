//! Compression of answers in gzip.

use std::io::Write;

use bytes::Bytes;
use flate2::write::GzEncoder;
use flate2::{Compress, Compression, FlushCompress, Status};
use parking_lot::Mutex;

/// Returns the content in gzip, if that is smaller.
pub(crate) fn gzip(content: &[u8], level: u32) -> Option<Bytes> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(content.len() / 2), Compression::new(level));
    // Writes to memory do not fail.
    encoder.write_all(content).ok()?;
    let compressed = encoder.finish().ok()?;
    // A vector would keep its capacity.
    (compressed.len() < content.len()).then(|| compressed.into_boxed_slice().into())
}

/// Returns content that stays for the life of the program in gzip, at the best level, if that is smaller. All calls
/// share one compressor of about 300 KiB: compressors of their own would leave as much to the allocator each.
pub(crate) fn gzip_asset(content: &[u8]) -> Option<Bytes> {
    static COMPRESSOR: Mutex<Option<Compress>> = Mutex::new(None);
    let mut compressor = COMPRESSOR.lock();
    let compressor = compressor.get_or_insert_with(|| Compress::new_gzip(Compression::best(), WINDOW_BITS));
    compressor.reset();
    let mut compressed = Vec::with_capacity(content.len());
    let status = compressor.compress_vec(content, &mut compressed, FlushCompress::Finish);
    let is_complete = matches!(status, Ok(Status::StreamEnd)) && compressed.len() < content.len();
    is_complete.then(|| Bytes::copy_from_slice(&compressed))
}

/// The largest window.
const WINDOW_BITS: u8 = 15;

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn gzip_output_decodes_to_the_input() {
        let text = "the same, ".repeat(1_000);
        let compressed = gzip(text.as_bytes(), 6).unwrap();
        let mut back = String::new();
        flate2::read::GzDecoder::new(&*compressed).read_to_string(&mut back).unwrap();
        assert!(back == text && compressed.len() < 200);
        assert_eq!(gzip(b"short", 6), None, "nothing is won");
    }

    #[test]
    fn assets_share_a_compressor_and_no_state() {
        let texts = ["the same, ".repeat(1_000), "another, ".repeat(10_000), "the same, ".repeat(1_000)];
        let compressed = texts.each_ref().map(|text| gzip_asset(text.as_bytes()).unwrap());
        for (text, compressed) in texts.iter().zip(&compressed) {
            let mut back = String::new();
            flate2::read::GzDecoder::new(&**compressed).read_to_string(&mut back).unwrap();
            assert!(back == *text && compressed.len() < 400);
        }
        assert_eq!(compressed[0], compressed[2]);
        assert_eq!(gzip_asset(b"short"), None, "nothing is won");
        assert_eq!(gzip_asset(b""), None);
    }
}
