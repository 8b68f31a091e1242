//! Content codings (RFC 9110 section 8.4): what a client takes, and gzip.

use std::io::Write;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use sinews_proto::http::RequestHead;

/// Which codings a client takes (RFC 9110 section 12.5.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Accepted {
    pub(crate) brotli: bool,
    pub(crate) gzip: bool,
}

impl Accepted {
    /// From `Accept-Encoding`. Without it, none: what a client takes that does not say so is a guess.
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
                // A weight that is none takes nothing away.
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

/// Whether what has this type gets smaller.
pub(crate) fn is_compressible(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence.starts_with("text/")
        || essence.ends_with("+json")
        || essence.ends_with("+xml")
        || ["application/javascript", "application/json", "application/wasm", "application/xml"]
            .contains(&essence.as_str())
}

/// The same in gzip, if that is smaller.
pub(crate) fn gzip(content: &[u8], level: u32) -> Option<Bytes> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(content.len() / 2), Compression::new(level));
    // Into memory nothing fails.
    encoder.write_all(content).ok()?;
    let compressed = encoder.finish().ok()?;
    (compressed.len() < content.len()).then(|| compressed.into())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn what_is_taken_follows_the_weights() {
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
    fn text_gets_smaller_and_pictures_do_not() {
        for text in ["text/html", "Text/Plain; charset=utf-8", "application/json", "image/svg+xml"] {
            assert!(is_compressible(text), "{text}");
        }
        for other in ["image/png", "application/octet-stream", "application/gzip", "", "video/mp4"] {
            assert!(!is_compressible(other), "{other}");
        }
    }

    #[test]
    fn gzip_is_what_others_take_for_it() {
        let text = "the same, ".repeat(1_000);
        let compressed = gzip(text.as_bytes(), 6).unwrap();
        let mut back = String::new();
        flate2::read::GzDecoder::new(&*compressed).read_to_string(&mut back).unwrap();
        assert!(back == text && compressed.len() < 200);
        assert_eq!(gzip(b"short", 6), None, "nothing is won");
    }
}
