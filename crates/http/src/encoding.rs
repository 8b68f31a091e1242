//! Content coding negotiation (RFC 9110 sections 8.4 and 12.5.3).

use crate::head::RequestHead;

/// Codings that a client accepts (RFC 9110 section 12.5.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AcceptedEncodings {
    /// `br`.
    pub brotli: bool,
    /// `gzip` or `x-gzip`.
    pub gzip: bool,
}

impl AcceptedEncodings {
    /// Parses `Accept-Encoding`. Without the header no coding is used: support would be a guess.
    #[must_use]
    pub fn from_head(head: &RequestHead<'_>) -> Self {
        Self::from_values(head.header("accept-encoding"))
    }

    fn from_values<'a>(values: impl Iterator<Item = &'a [u8]>) -> Self {
        let (mut brotli, mut gzip, mut any) = (None, None, None);
        for element in values.flat_map(|value| value.split(|&byte| byte == b',')) {
            let Ok(element) = core::str::from_utf8(element) else { continue };
            let mut parts = element.split(';').map(str::trim);
            let coding = parts.next().unwrap_or_default();
            let accepted = parts.filter_map(|part| part.split_once('=')).all(|(name, value)| {
                // An invalid weight counts as 1.
                !name.trim().eq_ignore_ascii_case("q") || value.trim().parse::<f32>() != Ok(0.0)
            });
            match coding.to_ascii_lowercase().as_str() {
                "br" => brotli = Some(accepted),
                "gzip" | "x-gzip" => gzip = Some(accepted),
                "*" => any = Some(accepted),
                _ => {}
            }
        }
        let of = |weight: Option<bool>| weight.or(any).unwrap_or(false);
        Self { brotli: of(brotli), gzip: of(gzip) }
    }
}

/// Returns whether this content type compresses well.
#[must_use]
pub fn is_compressible(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence.starts_with("text/")
        || essence.ends_with("+json")
        || essence.ends_with("+xml")
        || ["application/javascript", "application/json", "application/wasm", "application/xml"]
            .contains(&essence.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codings_are_chosen_by_weight() {
        let of = |values: &[&str]| {
            let AcceptedEncodings { brotli, gzip } =
                AcceptedEncodings::from_values(values.iter().map(|value| value.as_bytes()));
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
}
