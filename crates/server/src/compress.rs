//! Content codings (RFC 9110 section 8.4): negotiation and gzip.

use std::io::Write;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use sinews_proto::http::RequestHead;

/// Codings that a client accepts (RFC 9110 section 12.5.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Accepted {
    pub(crate) brotli: bool,
    pub(crate) gzip: bool,
}

impl Accepted {
    /// Parses `Accept-Encoding`. Without the header no coding is used: support would be a guess.
    pub(crate) fn of(head: &RequestHead<'_>) -> Self {
        Self::from_values(head.header("accept-encoding"))
    }

    fn from_values<'a>(values: impl Iterator<Item = &'a [u8]>) -> Self {
        let (mut brotli, mut gzip, mut any) = (None, None, None);
        for element in values.flat_map(|value| value.split(|&byte| byte == b',')) {
            let Ok(element) = std::str::from_utf8(element) else { continue };
            let mut parts = element.split(';').map(str::trim);
            let coding = parts.next().unwrap_or_default();
            let taken = parts.filter_map(|part| part.split_once('=')).all(|(name, value)| {
                // An invalid weight counts as 1.
                !name.trim().eq_ignore_ascii_case("q") || value.trim().parse::<f32>() != Ok(0.0)
            });
            match coding.to_ascii_lowercase().as_str() {
                "br" => brotli = Some(taken),
                "gzip" | "x-gzip" => gzip = Some(taken),
                "*" => any = Some(taken),
                _ => {}
            }
        }
        let of = |said: Option<bool>| said.or(any).unwrap_or(false);
        Self { brotli: of(brotli), gzip: of(gzip) }
    }
}

/// Returns whether this content type compresses well.
pub(crate) fn is_compressible(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence.starts_with("text/")
        || essence.ends_with("+json")
        || essence.ends_with("+xml")
        || ["application/javascript", "application/json", "application/wasm", "application/xml"]
            .contains(&essence.as_str())
}

/// Returns the content in gzip, if that is smaller.
pub(crate) fn gzip(content: &[u8], level: u32) -> Option<Bytes> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(content.len() / 2), Compression::new(level));
    // Writes to memory do not fail.
    encoder.write_all(content).ok()?;
    let compressed = encoder.finish().ok()?;
    (compressed.len() < content.len()).then(|| compressed.into())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn codings_are_chosen_by_weight() {
        let of = |values: &[&str]| {
            let Accepted { brotli, gzip } =
                Accepted::from_values(values.iter().map(|value| value.as_bytes()));
            (brotli, gzip)
        };
        for (values, expected) in [
            (&[][..], (false, false)),
            (&[""], (false, false)),
            (&["gzip, deflate, br"], (true, true)),
            (&["GZIP"], (false, true)),
            (&["x-gzip;q=0.1"], (false, true)),
            (&["gzip;q=0"], (false, false)),
            (&["gzip; Q=0.000 , br ; q = 1"], (true, false)),
            (&["*"], (true, true)),
            (&["*;q=0, gzip"], (false, true)),
            (&["*, gzip;q=0"], (true, false)),
            (&["identity;q=0"], (false, false)),
            (&["deflate", "gzip"], (false, true)),
            (&["gzipped"], (false, false)),
            (&["gzip;q=x"], (false, true)),
        ] {
            assert_eq!(of(values), expected, "{values:?}");
        }
    }

    #[test]
    fn text_is_compressible_and_images_are_not() {
        for text in ["text/html", "Text/Plain; charset=utf-8", "application/json", "image/svg+xml"] {
            assert!(is_compressible(text), "{text}");
        }
        for other in ["image/png", "application/octet-stream", "application/gzip", "", "video/mp4"] {
            assert!(!is_compressible(other), "{other}");
        }
    }

    #[test]
    fn gzip_output_decodes_to_the_input() {
        let text = "the same, ".repeat(1_000);
        let compressed = gzip(text.as_bytes(), 6).unwrap();
        let mut back = String::new();
        flate2::read::GzDecoder::new(&*compressed).read_to_string(&mut back).unwrap();
        assert!(back == text && compressed.len() < 200);
        assert_eq!(gzip(b"short", 6), None, "nothing is won");
    }
}
