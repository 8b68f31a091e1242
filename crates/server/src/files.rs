//! Static files of a directory.

mod media_type;
mod path;
mod store;

use std::borrow::Cow;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sinews_http::{AcceptedEncodings, RequestedRange, Validators, Verdict};

use self::path::FilePath;
use self::store::{CachedFile, FileContent, FileStore, LookupError, Variant};
use crate::request::{FilePart, Request, Response, ResponseBody};
use crate::router::Router;

/// Directory served as static files, by [`Router::files`](crate::Router::files).
///
/// Small files are cached in memory, within a limit, and revalidated. Larger files are read in pieces of 128 KiB as
/// the peer takes them, on the connection's thread, as most servers do: the disk should answer quickly.
///
/// * A path that ends in a slash means the index file of that directory; a directory path without the slash is
///   redirected to the path with it. Directories are not listed.
/// * `ETag` and `Last-Modified` are sent, and all conditions of RFC 9110 section 13 are honored. One range is served
///   (206, 416); a request for several ranges gets the whole file, as section 14.2 permits.
/// * A client that accepts brotli or gzip gets `name.br` or `name.gz`, if that file exists and is not older.
///   Otherwise it gets text that is in memory in gzip. A range request gets a range of the uncompressed file.
/// * `Content-Type` follows from the extension of the name. Files with an unknown extension are
///   `application/octet-stream`.
/// * Names that begin with a dot are not found, except `.well-known`. No path and no symbolic link leads out of the
///   directory. Only regular files are served.
/// * An unreadable file is answered with 403. Disk errors are answered with 500 and logged.
///
/// ```
/// use std::time::Duration;
///
/// use sinews_server::{Files, Router};
///
/// # let directory = std::env::temp_dir();
/// let files = Files::open(directory)?
///     .with_cache_control("public, max-age=3600")
///     .with_revalidation(Duration::from_secs(5));
/// let router = Router::new().files("/static", files);
/// # drop(router);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Files {
    store: FileStore,
    index: Option<String>,
    cache_control: Cow<'static, str>,
    dotfiles: bool,
}

impl Files {
    /// Serves the files of this directory. Its path is resolved again for each lookup, so that another directory may
    /// replace it.
    ///
    /// # Errors
    /// If the path is no directory or cannot be read.
    pub fn open(directory: impl Into<PathBuf>) -> io::Result<Self> {
        let root = directory.into();
        std::fs::read_dir(&root)?;
        let (index, cache_control) = (Some("index.html".to_owned()), Cow::Borrowed("no-cache"));
        Ok(Self { store: FileStore::new(root), index, cache_control, dotfiles: false })
    }

    /// Index file of a directory. `None`: directories are not found. Default `index.html`.
    #[must_use]
    pub fn with_index(mut self, name: Option<&str>) -> Self {
        self.index = name.map(str::to_owned);
        self
    }

    /// Value of `Cache-Control`. Default `no-cache`: clients cache files and revalidate them, which is always correct
    /// and costs a 304. Empty: no such header.
    #[must_use]
    pub fn with_cache_control(mut self, value: impl Into<Cow<'static, str>>) -> Self {
        self.cache_control = value.into();
        self
    }

    /// Serves names that begin with a dot too. Default: no, since they are seldom meant for publication (`.git`,
    /// `.env`).
    #[must_use]
    pub fn with_dotfiles(mut self, serve: bool) -> Self {
        self.dotfiles = serve;
        self
    }

    /// Follows all symbolic links. Default: only relative links inside the directory.
    #[must_use]
    pub fn with_links_followed(mut self, follow: bool) -> Self {
        self.store.limits.follow_links = follow;
        self
    }

    /// Compresses text without a precompressed file. Default: yes; each version of a file in memory is compressed
    /// once, at its first request.
    #[must_use]
    pub fn with_compression(mut self, compress: bool) -> Self {
        self.store.limits.compress = compress;
        self
    }

    /// Looks for `name.br` and `name.gz` beside each file. Default: yes.
    #[must_use]
    pub fn with_precompressed(mut self, look: bool) -> Self {
        self.store.limits.precompressed = look;
        self
    }

    /// Size of the file cache in bytes, in total and for one file. Default 16 MiB and 256 KiB: room for a site's
    /// pages and scripts, not for its films. At most 4,096 files are cached. With zero for one file, every request
    /// reads from disk.
    #[must_use]
    pub fn with_cache(mut self, bytes: usize, of_one: usize) -> Self {
        (self.store.limits.cache, self.store.limits.file) = (bytes, of_one);
        self
    }

    /// How long a cached file is served before it is revalidated by its length and its time of modification. Default
    /// 1 s.
    #[must_use]
    pub fn with_revalidation(mut self, after: Duration) -> Self {
        self.store.limits.revalidate = after;
        self
    }

    /// Answers a GET or HEAD of a path below the prefix.
    fn answer(&self, request: &Request<'_>) -> Response {
        let rest = request.raw_param(REST).unwrap_or_default();
        let found = FilePath::new(rest, self.dotfiles).ok_or_else(|| io::ErrorKind::NotFound.into());
        match found.map_err(LookupError::Error).and_then(|file_path| self.find(&file_path)) {
            Ok(entry) => self.serve(request, &entry),
            Err(LookupError::Directory)
                if !rest.is_empty() && !rest.ends_with('/') && self.index.is_some() =>
            {
                to_directory(request)
            }
            Err(LookupError::Directory) => not_found(),
            Err(LookupError::Error(error)) => failed(rest, &error),
        }
    }

    /// Answers a GET or HEAD of the prefix without its trailing slash.
    fn answer_prefix(request: &Request<'_>) -> Response {
        to_directory(request)
    }

    fn find(&self, file_path: &FilePath) -> Result<Arc<CachedFile>, LookupError> {
        match &self.index {
            _ if !file_path.is_directory => self.store.find(&file_path.path),
            Some(index) if file_path.path.is_empty() => self.store.find(index),
            Some(index) => self.store.find(&format!("{}/{index}", file_path.path)),
            None => Err(LookupError::Directory),
        }
    }

    fn serve(&self, request: &Request<'_>, entry: &CachedFile) -> Response {
        let head = request.head();
        let (variant, coding) = choose(request, entry);
        // RFC 9110 section 8.8.2.1 forbids dates in the future.
        let modified = entry.modified.min(SystemTime::now());
        let validators = Validators::new(&variant.etag, Some(modified));
        let len = variant.content.len();
        let response = match (validators.check(head), validators.requested_range(head, len)) {
            (Verdict::Failed, _) => return Response::text("the file has changed\n").with_status(412),
            (Verdict::NotModified, _) => Response::new(304),
            (Verdict::Proceed, RequestedRange::Unsatisfiable) => {
                return Response::text("not that many bytes\n")
                    .with_status(416)
                    .with_header("Content-Range", format!("bytes */{len}"));
            }
            (Verdict::Proceed, RequestedRange::Part((first, count))) => Response::new(206)
                .with_header("Content-Range", format!("bytes {first}-{}/{len}", first + count - 1))
                .with_content(variant.content.part(first, count)),
            (Verdict::Proceed, RequestedRange::Whole) => {
                Response::new(200).with_content(variant.content.part(0, len))
            }
        };
        let response = response
            .with_header("ETag", variant.etag.clone())
            .with_header("Last-Modified", httpdate::fmt_http_date(modified))
            .with_header("Accept-Ranges", "bytes")
            .with_header("X-Content-Type-Options", "nosniff")
            .with_header_if(!self.cache_control.is_empty(), "Cache-Control", || self.cache_control.clone())
            .with_header_if(entry.varies(), "Vary", || "Accept-Encoding".into());
        if response.status == 304 {
            return response;
        }
        response.with_header("Content-Type", entry.content_type.clone()).with_header_if(
            coding.is_some(),
            "Content-Encoding",
            || coding.unwrap_or_default().into(),
        )
    }
}

impl Router {
    /// Answers GET and HEAD below `prefix` with the files of a directory. The prefix `/` covers every path without a
    /// route of its own.
    ///
    /// # Panics
    /// As [`route`](Self::route).
    #[must_use]
    pub fn files(self, prefix: &str, files: Files) -> Self {
        let prefix = prefix.trim_end_matches('/');
        let files = Arc::new(files);
        let in_root = Arc::clone(&files);
        let router =
            if prefix.is_empty() { self } else { self.get(prefix, |request| Files::answer_prefix(request)) };
        router
            .get(&format!("{prefix}/"), move |request| in_root.answer(request))
            .get(&format!("{prefix}/{{*{REST}}}"), move |request| files.answer(request))
    }
}

/// Route parameter that holds the path below the prefix.
const REST: &str = "file";

/// Chooses the coding of the response. A range is of the uncompressed file, so that ranges fit together.
fn choose<'a>(request: &Request<'_>, entry: &'a CachedFile) -> (&'a Variant, Option<&'static str>) {
    if !entry.varies() || request.head().header("range").next().is_some() {
        return (&entry.identity, None);
    }
    let accepted = AcceptedEncodings::from_head(request.head());
    let brotli = || entry.brotli.as_ref().filter(|_| accepted.brotli).map(|variant| (variant, Some("br")));
    let gzip = || {
        Some(accepted.gzip)
            .filter(|taken| *taken)
            .and_then(|_| entry.gzip())
            .map(|variant| (variant, Some("gzip")))
    };
    brotli().or_else(gzip).unwrap_or((&entry.identity, None))
}

impl FileContent {
    fn part(&self, first: u64, count: u64) -> ResponseBody {
        match self {
            // `choose` has checked that the range is inside the file.
            Self::Memory(bytes) => ResponseBody::Bytes(bytes.slice(first as usize..(first + count) as usize)),
            Self::Open(file, _) => {
                ResponseBody::File(FilePart { file: Arc::clone(file), at: first, len: count })
            }
        }
    }
}

/// Redirects to the path with a trailing slash, which relative links on the page need.
fn to_directory(request: &Request<'_>) -> Response {
    let head = request.head();
    let query = head.query().map_or_else(String::new, |query| format!("?{query}"));
    Response::new(301).with_header("Location", format!("{}/{query}", head.path()))
}

fn not_found() -> Response {
    Response::text("not found\n").with_status(404)
}

fn failed(path: &str, error: &io::Error) -> Response {
    use io::ErrorKind::{InvalidFilename, NotADirectory, NotFound, PermissionDenied};
    match error.kind() {
        NotFound | NotADirectory | InvalidFilename => not_found(),
        PermissionDenied => Response::text("forbidden\n").with_status(403),
        _ => {
            tracing::error!(path, %error, "failed to read file");
            Response::text("the file cannot be read\n").with_status(500)
        }
    }
}
