//! Files that are part of the program: entity tags, conditional requests and gzip.

use std::hash::{DefaultHasher, Hash, Hasher};

use bytes::Bytes;

use crate::compress::{self, Accepted};
use crate::files::conditions::{Validators, Verdict};
use crate::{Request, Response};

/// File that is compiled into the program, such as a page. Answers GET and HEAD with an `ETag` and conditional
/// requests with 304 or 412 (RFC 9110 section 13). Compresses the content once, on construction.
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
    gzip: Option<Representation>,
    headers: Vec<(&'static str, &'static str)>,
}

#[derive(Clone, Debug)]
struct Representation {
    content: Bytes,
    /// Includes the quotes.
    etag: String,
}

impl Asset {
    /// Creates an asset with this content type. Text, scripts, style sheets and JSON are also stored in gzip, if that
    /// is smaller.
    #[must_use]
    pub fn new(content_type: &'static str, content: &'static [u8]) -> Self {
        let mut hasher = DefaultHasher::new();
        content.hash(&mut hasher);
        let hash = hasher.finish();
        let is_compressible = compress::is_compressible(content_type);
        let gzip = is_compressible.then(|| compress::gzip(content, GZIP_LEVEL)).flatten();
        Self {
            content_type,
            identity: Representation { content: content.into(), etag: format!("\"{hash:016x}\"") },
            gzip: gzip.map(|content| Representation { content, etag: format!("\"{hash:016x}-gzip\"") }),
            headers: Vec::new(),
        }
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
        let gzip = self.gzip.as_ref().filter(|_| Accepted::of(head).gzip);
        let chosen = gzip.unwrap_or(&self.identity);
        let response = match (Validators { etag: &chosen.etag, modified: None }).check(head) {
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

/// Compression runs once, so it takes the best level.
const GZIP_LEVEL: u32 = 9;
