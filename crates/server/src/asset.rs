//! Files that are part of the program: entity tags, conditional requests and gzip.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use sinews_http::{AcceptedEncodings, Validators, Verdict, is_compressible};

use crate::compress::gzip_asset;
use crate::{Request, Response};

/// File that is compiled into the program, such as a page. Answers GET and HEAD with an `ETag` and conditional
/// requests with 304 or 412 (RFC 9110 section 13). The first request that accepts gzip compresses the content.
///
/// ```
/// use sinews_server::{Asset, Router};
///
/// let page = Asset::new("text/html; charset=utf-8", b"<!doctype html><title>hello</title>")
///     .with_header("Cache-Control", "no-cache");
/// let router = Router::new().get("/", move |request| page.answer(request));
/// # drop(router);
/// ```
#[derive(Clone, Debug)]
pub struct Asset {
    content_type: &'static str,
    identity: Representation,
    /// The content in gzip, for compressible types. Clones share it. It is empty until the first request for it: most
    /// programs serve few of their assets.
    gzip: Option<Arc<OnceLock<GzipRepresentation>>>,
    headers: Vec<(&'static str, &'static str)>,
}

/// The content in gzip; `None` if it is not smaller.
type GzipRepresentation = Option<Representation>;

#[derive(Clone, Debug)]
struct Representation {
    content: Bytes,
    /// Includes the quotes.
    etag: String,
}

impl Asset {
    /// Creates an asset with this content type. Text, scripts, style sheets and JSON are also served in gzip, if that
    /// is smaller.
    #[must_use]
    pub fn new(content_type: &'static str, content: &'static [u8]) -> Self {
        Self {
            content_type,
            identity: Representation { content: content.into(), etag: format!("\"{:016x}\"", hash(content)) },
            gzip: is_compressible(content_type).then(Arc::default),
            headers: Vec::new(),
        }
    }

    /// Returns the content in gzip, if that is smaller.
    fn gzip(&self) -> Option<&Representation> {
        let compressed = self.gzip.as_ref()?.get_or_init(|| {
            let content = &self.identity.content;
            let etag = format!("\"{:016x}-gzip\"", hash(content));
            gzip_asset(content).map(|content| Representation { content, etag })
        });
        compressed.as_ref()
    }

    /// Adds a header to every response, 304 included.
    #[must_use]
    pub fn with_header(mut self, name: &'static str, value: &'static str) -> Self {
        self.headers.push((name, value));
        self
    }

    /// Answers a GET or HEAD request.
    #[must_use]
    pub fn answer(&self, request: &Request<'_>) -> Response {
        let head = request.head();
        let gzip = if AcceptedEncodings::from_head(head).gzip { self.gzip() } else { None };
        let chosen = gzip.unwrap_or(&self.identity);
        let response = match Validators::new(&chosen.etag, None).check(head) {
            Verdict::Failed => return Response::text("the file has changed\n").with_status(412),
            Verdict::NotModified => Response::new(304),
            Verdict::Proceed => Response::new(200)
                .with_header("Content-Type", self.content_type)
                .with_header_if(gzip.is_some(), "Content-Encoding", || "gzip".into())
                .with_body(chosen.content.clone()),
        };
        let response = response.with_header("ETag", chosen.etag.clone()).with_header_if(
            self.gzip.is_some(),
            "Vary",
            || "Accept-Encoding".into(),
        );
        self.headers.iter().fold(response, |response, (name, value)| response.with_header(*name, *value))
    }
}

fn hash(content: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_request_for_gzip_compresses_for_all_clones() {
        let asset = Asset::new("text/css", &[b'a'; 1_000]);
        let clone = asset.clone();
        let is_compressed = |asset: &Asset| asset.gzip.as_ref().unwrap().get().is_some();
        assert!(!is_compressed(&asset));
        let compressed = asset.gzip().unwrap().content.as_ptr();
        assert!(is_compressed(&clone));
        assert_eq!(clone.gzip().unwrap().content.as_ptr(), compressed);
    }

    #[test]
    fn content_that_gzip_does_not_shrink_is_served_without() {
        assert!(Asset::new("text/css", b"a").gzip().is_none());
        assert!(Asset::new("image/png", &[0; 1_000]).gzip().is_none());
    }
}
