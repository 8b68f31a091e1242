//! Compression of answers with gzip.

use sinews_http::{AcceptedEncodings, is_compressible};

use crate::compress::gzip;
use crate::request::{Request, Response, ResponseBody};

/// Selects the answers to compress, for [`Router::compress`](crate::Router::compress): text, by its `Content-Type`,
/// for clients that accept gzip.
///
/// Skipped are compressed answers, ranges (206), and [files](crate::Router::files) that are not in memory. A strong
/// `ETag` becomes a weak one, since the bytes differ.
///
/// If an answer contains a secret beside input of an attacker, its compressed length reveals the secret (BREACH):
/// exclude such paths.
#[derive(Clone, Copy, Debug)]
pub struct Compression {
    min: usize,
    max: usize,
    level: u32,
}

impl Default for Compression {
    fn default() -> Self {
        Self { min: 1 << 10, max: 1 << 20, level: 4 }
    }
}

impl Compression {
    /// Minimum size to compress, in bytes. Default 1 KiB: smaller answers fit in one packet anyway.
    #[must_use]
    pub fn with_min(mut self, bytes: usize) -> Self {
        self.min = bytes;
        self
    }

    /// Maximum size to compress, in bytes. Default 1 MiB, which blocks the thread for about 10 ms.
    #[must_use]
    pub fn with_max(mut self, bytes: usize) -> Self {
        self.max = bytes;
        self
    }

    /// Compression level, from 1 to 9. Default 4: half the time of zlib's 6, and a few per cent more bytes.
    #[must_use]
    pub fn with_level(mut self, level: u32) -> Self {
        self.level = level.clamp(1, 9);
        self
    }

    pub(crate) fn after(self, request: &Request<'_>, response: &mut Response) {
        let ResponseBody::Bytes(body) = &response.body else { return };
        let is_text = response.header("content-type").next().is_some_and(is_compressible);
        let is_encoded = response.header("content-encoding").next().is_some();
        let is_part = response.status == 206 || !response.may_have_body();
        if is_encoded || is_part || !is_text || !(self.min..=self.max).contains(&body.len()) {
            return;
        }
        let compressed =
            if AcceptedEncodings::from_head(request.head()).gzip { gzip(body, self.level) } else { None };
        response.vary("Accept-Encoding");
        if let Some(compressed) = compressed {
            response.body = ResponseBody::Bytes(compressed);
            response.set_header("Content-Encoding", "gzip");
            let strong = response.header("etag").next().filter(|etag| !etag.starts_with("W/"));
            if let Some(weak) = strong.map(|etag| format!("W/{etag}")) {
                response.set_header("ETag", weak);
            }
        }
    }
}
