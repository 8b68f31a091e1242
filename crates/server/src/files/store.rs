//! Cache of files: small files in memory, large files open.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use cap_std::ambient_authority;
use cap_std::fs::Dir;
use parking_lot::{Mutex, MutexGuard};
use sinews_http::is_compressible;

use super::media_type::content_type;
use crate::compress::gzip;

/// Root directory and cache of its files.
#[derive(Debug)]
pub(super) struct FileStore {
    pub(super) root: PathBuf,
    pub(super) limits: FileLimits,
    cache: Mutex<FileCache>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct FileLimits {
    /// Limit of all files in memory, in bytes.
    pub(super) cache: usize,
    /// Limit of one file in memory, in bytes.
    pub(super) file: usize,
    /// How long a file is served without revalidation.
    pub(super) revalidate: Duration,
    /// Symbolic links may lead out of the root.
    pub(super) follow_links: bool,
    /// Serve precompressed files beside a file.
    pub(super) precompressed: bool,
    /// Compress text without a precompressed file.
    pub(super) compress: bool,
}

#[derive(Debug, Default)]
struct FileCache {
    known: HashMap<String, CacheEntry>,
    bytes: usize,
    /// Counts uses, for LRU eviction.
    uses: u64,
}

#[derive(Debug)]
struct CacheEntry {
    entry: Arc<CachedFile>,
    checked: Instant,
    used: u64,
}

/// File in all its codings.
#[derive(Debug)]
pub(super) struct CachedFile {
    stamps: Stamps,
    pub(super) content_type: String,
    pub(super) modified: SystemTime,
    pub(super) identity: Variant,
    pub(super) brotli: Option<Variant>,
    gzip: Option<Variant>,
    /// Compressed at the first request.
    compressed: OnceLock<Option<Variant>>,
    may_compress: bool,
}

/// One coding of a file.
#[derive(Debug)]
pub(super) struct Variant {
    pub(super) content: FileContent,
    /// Includes the quotes.
    pub(super) etag: String,
}

#[derive(Debug)]
pub(super) enum FileContent {
    Memory(Bytes),
    Open(Arc<File>, u64),
}

/// Stamps of a file, its brotli and its gzip; equal stamps mean unchanged files.
type Stamps = [Option<Stamp>; 3];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    len: u64,
    modified: SystemTime,
}

/// Reason why a file is not found.
#[derive(Debug)]
pub(super) enum LookupError {
    Directory,
    Error(io::Error),
}

impl From<io::Error> for LookupError {
    fn from(error: io::Error) -> Self {
        Self::Error(error)
    }
}

impl FileStore {
    pub(super) fn new(root: PathBuf) -> Self {
        let limits = FileLimits {
            cache: 16 << 20,
            file: 256 << 10,
            revalidate: Duration::from_secs(1),
            follow_links: false,
            precompressed: true,
            compress: true,
        };
        Self { root, limits, cache: Mutex::default() }
    }

    /// Returns the file at this path below the root, cached for at most the revalidation interval.
    pub(super) fn find(&self, path: &str) -> Result<Arc<CachedFile>, LookupError> {
        let now = Instant::now();
        let known = match self.known(path, now) {
            Some((entry, true)) => return Ok(entry),
            known => known.map(|(entry, _)| entry),
        };
        let tree = Tree::open(self)?;
        let stamps = self.stamps(&tree, path).inspect_err(|_| self.lock().evict(path))?;
        if let Some(entry) = known.filter(|entry| entry.stamps == stamps) {
            self.confirm(path, now);
            return Ok(entry);
        }
        let entry = Arc::new(self.load(&tree, path, stamps)?);
        self.cache_file(path, &entry, now);
        Ok(entry)
    }

    /// Returns the cached entry, and whether it is fresh.
    fn known(&self, path: &str, now: Instant) -> Option<(Arc<CachedFile>, bool)> {
        let mut cache = self.lock();
        cache.uses += 1;
        let uses = cache.uses;
        let known = cache.known.get_mut(path)?;
        known.used = uses;
        let is_fresh = now.saturating_duration_since(known.checked) < self.limits.revalidate;
        Some((Arc::clone(&known.entry), is_fresh))
    }

    fn confirm(&self, path: &str, now: Instant) {
        if let Some(known) = self.lock().known.get_mut(path) {
            known.checked = now;
        }
    }

    fn stamps(&self, tree: &Tree<'_>, path: &str) -> Result<Stamps, LookupError> {
        let identity = tree.stamp(path)?;
        let beside = |ending| {
            let stamp = tree.stamp(&format!("{path}{ending}")).ok()?;
            // An older file belongs to another version.
            (stamp.modified >= identity.modified).then_some(stamp)
        };
        if !self.limits.precompressed {
            return Ok([Some(identity), None, None]);
        }
        Ok([Some(identity), beside(".br"), beside(".gz")])
    }

    fn load(&self, tree: &Tree<'_>, path: &str, stamps: Stamps) -> Result<CachedFile, LookupError> {
        let [_, brotli, zipped] = stamps;
        let beside = |stamp: Option<Stamp>, ending: &str, coding| {
            stamp.and_then(|_| self.variant(tree, &format!("{path}{ending}"), coding).ok())
        };
        let identity = self.variant(tree, path, "")?;
        let content_type = content_type(path);
        let gzip = beside(zipped, ".gz", "-gz");
        let may_compress = self.limits.compress && gzip.is_none() && is_compressible(&content_type);
        Ok(CachedFile {
            stamps,
            content_type,
            modified: stamps[0].map_or(UNIX_EPOCH, |stamp| stamp.modified),
            identity,
            brotli: beside(brotli, ".br", "-br"),
            gzip,
            compressed: OnceLock::new(),
            may_compress,
        })
    }

    fn variant(&self, tree: &Tree<'_>, path: &str, coding: &str) -> io::Result<Variant> {
        let file = tree.open_file(path)?;
        let stamp = Stamp::from_metadata(file.metadata()?)?;
        let content = if stamp.len <= self.limits.file as u64 {
            let mut bytes = Vec::with_capacity(stamp.len as usize);
            file.take(stamp.len).read_to_end(&mut bytes)?;
            FileContent::Memory(bytes.into())
        } else {
            FileContent::Open(Arc::new(file), stamp.len)
        };
        let nanos = stamp.modified.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        let etag = format!("\"{nanos:x}-{:x}{coding}\"", stamp.len);
        Ok(Variant { content, etag })
    }

    /// Caches entries that are completely in memory, and evicts the least recently used.
    fn cache_file(&self, path: &str, entry: &Arc<CachedFile>, now: Instant) {
        let Some(bytes) = entry.bytes().filter(|bytes| *bytes <= self.limits.cache) else {
            self.lock().evict(path);
            return;
        };
        let mut cache = self.lock();
        cache.evict(path);
        while cache.bytes + bytes > self.limits.cache || cache.known.len() >= ENTRIES_MAX {
            let Some(oldest) = cache.oldest() else { break };
            cache.evict(&oldest);
        }
        cache.bytes += bytes;
        let used = cache.uses;
        cache.known.insert(path.to_owned(), CacheEntry { entry: Arc::clone(entry), checked: now, used });
    }

    /// Locks the cache. No code panics under this lock.
    fn lock(&self) -> MutexGuard<'_, FileCache> {
        self.cache.lock()
    }

    #[cfg(test)]
    fn usage(&self) -> (usize, usize) {
        let cache = self.lock();
        (cache.known.len(), cache.bytes)
    }
}

impl FileCache {
    fn oldest(&self) -> Option<String> {
        self.known.iter().min_by_key(|(_, known)| known.used).map(|(path, _)| path.clone())
    }

    fn evict(&mut self, path: &str) {
        if let Some(evicted) = self.known.remove(path) {
            self.bytes -= evicted.entry.bytes().unwrap_or(0);
        }
    }
}

impl CachedFile {
    /// Returns the gzip variant: a file beside it, or compressed here.
    pub(super) fn gzip(&self) -> Option<&Variant> {
        self.gzip.as_ref().or_else(|| self.compressed.get_or_init(|| self.compress()).as_ref())
    }

    fn compress(&self) -> Option<Variant> {
        let FileContent::Memory(content) = &self.identity.content else { return None };
        if !self.may_compress || content.len() < GZIP_MIN {
            return None;
        }
        let content = FileContent::Memory(gzip(content, GZIP_LEVEL)?);
        Some(Variant { content, etag: format!("{}-gz\"", self.identity.etag.trim_end_matches('"')) })
    }

    /// Returns whether the response depends on `Accept-Encoding`.
    pub(super) fn varies(&self) -> bool {
        self.brotli.is_some() || self.gzip.is_some() || self.may_compress
    }

    /// Returns the maximum memory of the entry; `None` if a variant is open and not in memory.
    fn bytes(&self) -> Option<usize> {
        let compressed = self.identity.content.in_memory().filter(|_| self.may_compress).unwrap_or(0);
        let beside =
            [&self.brotli, &self.gzip].into_iter().flatten().map(|variant| variant.content.in_memory());
        let beside = beside.sum::<Option<usize>>()?;
        Some(self.identity.content.in_memory()? + compressed + beside + ENTRY_BYTES)
    }
}

impl FileContent {
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Memory(bytes) => bytes.len() as u64,
            Self::Open(_, len) => *len,
        }
    }

    fn in_memory(&self) -> Option<usize> {
        match self {
            Self::Memory(bytes) => Some(bytes.len()),
            Self::Open(..) => None,
        }
    }
}

impl Stamp {
    fn from_metadata(metadata: std::fs::Metadata) -> io::Result<Self> {
        if !metadata.is_file() {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(Self { len: metadata.len(), modified: metadata.modified()? })
    }
}

/// Root directory, resolved for each lookup, since a new version may replace it as a whole.
enum Tree<'a> {
    /// The kernel rejects links that lead out of it.
    Inside(Dir),
    Anywhere(&'a FileStore),
}

impl<'a> Tree<'a> {
    fn open(store: &'a FileStore) -> io::Result<Self> {
        if store.limits.follow_links {
            return Ok(Self::Anywhere(store));
        }
        Dir::open_ambient_dir(&store.root, ambient_authority()).map(Tree::Inside)
    }

    /// Returns the stamp of a regular file. Other kinds are not opened: a FIFO could block forever.
    fn stamp(&self, path: &str) -> Result<Stamp, LookupError> {
        let (is_directory, is_file, len, modified) = match self {
            Self::Inside(dir) => {
                let found = dir.metadata(if path.is_empty() { "." } else { path })?;
                (found.is_dir(), found.is_file(), found.len(), found.modified()?.into_std())
            }
            Self::Anywhere(store) => {
                let found = std::fs::metadata(store.root.join(path))?;
                (found.is_dir(), found.is_file(), found.len(), found.modified()?)
            }
        };
        match (is_directory, is_file) {
            (true, _) => Err(LookupError::Directory),
            (false, true) => Ok(Stamp { len, modified }),
            (false, false) => Err(io::Error::from(io::ErrorKind::NotFound).into()),
        }
    }

    fn open_file(&self, path: &str) -> io::Result<File> {
        match self {
            Self::Inside(dir) => dir.open(path).map(cap_std::fs::File::into_std),
            Self::Anywhere(store) => File::open(store.root.join(path)),
        }
    }
}

/// Limit of the number of files in memory.
const ENTRIES_MAX: usize = 4_096;

/// Approximate overhead of a file in memory, in bytes.
const ENTRY_BYTES: usize = 512;

/// Smaller files gain too little to save a packet.
const GZIP_MIN: usize = 512;

/// zlib's default level. Each version of a file is compressed once.
const GZIP_LEVEL: u32 = 6;

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    struct Site(TempDir);

    impl Site {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn store(&self, limits: impl FnOnce(&mut FileLimits)) -> FileStore {
            let mut store = FileStore::new(self.0.path().to_owned());
            limits(&mut store.limits);
            store
        }

        fn write(&self, name: &str, content: &str) {
            std::fs::write(self.0.path().join(name), content).unwrap();
        }

        /// Sets the modification time, in seconds.
        fn date(&self, name: &str, seconds: u64) {
            let file = File::options().write(true).open(self.0.path().join(name)).unwrap();
            file.set_modified(UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
        }
    }

    fn text(variant: &Variant) -> &str {
        match &variant.content {
            FileContent::Memory(bytes) => std::str::from_utf8(bytes).unwrap_or("no text"),
            FileContent::Open(..) => "open",
        }
    }

    #[test]
    fn changed_file_is_read_again() {
        let site = Site::new();
        let store = site.store(|limits| limits.revalidate = Duration::ZERO);
        site.write("a", "first");
        site.date("a", 1);
        let first = store.find("a").unwrap();
        assert!(Arc::ptr_eq(&first, &store.find("a").unwrap()), "from memory");
        site.write("a", "other");
        site.date("a", 1);
        assert!(Arc::ptr_eq(&first, &store.find("a").unwrap()), "nothing tells it");
        site.date("a", 2);
        let second = store.find("a").unwrap();
        assert_eq!((text(&first.identity), text(&second.identity)), ("first", "other"));
        assert_ne!(first.identity.etag, second.identity.etag);
        assert_eq!(store.usage(), (1, 5 + ENTRY_BYTES));
    }

    #[test]
    fn file_is_not_revalidated_within_the_interval() {
        let site = Site::new();
        let store = site.store(|limits| limits.revalidate = Duration::from_secs(3_600));
        site.write("a", "first");
        store.find("a").unwrap();
        std::fs::remove_file(site.0.path().join("a")).unwrap();
        assert_eq!(text(&store.find("a").unwrap().identity), "first");
        assert!(
            matches!(store.find("b"), Err(LookupError::Error(error)) if error.kind() == io::ErrorKind::NotFound)
        );
    }

    #[test]
    fn cache_is_bounded_and_evicts_the_least_recently_used() {
        let site = Site::new();
        let each = 100 + ENTRY_BYTES;
        let store = site.store(|limits| (limits.cache, limits.file) = (3 * each, 100));
        for name in ["a", "b", "c", "d", "large"] {
            site.write(name, &"x".repeat(if name == "large" { 101 } else { 100 }));
        }
        let [a, b, c] = ["a", "b", "c"].map(|name| store.find(name).unwrap());
        store.find("a").unwrap();
        store.find("d").unwrap();
        assert_eq!(store.usage(), (3, 3 * each));
        assert!(Arc::ptr_eq(&a, &store.find("a").unwrap()) && Arc::ptr_eq(&c, &store.find("c").unwrap()));
        assert!(!Arc::ptr_eq(&b, &store.find("b").unwrap()));
        assert_eq!(text(&store.find("large").unwrap().identity), "open");
        assert_eq!(store.usage(), (3, 3 * each));
    }

    #[test]
    fn precompressed_files_are_found_when_added_and_ignored_when_old() {
        let site = Site::new();
        let store = site.store(|limits| limits.revalidate = Duration::ZERO);
        site.write("a.txt", &"text ".repeat(500));
        site.date("a.txt", 10);
        let compressed = store.find("a.txt").unwrap();
        assert!(
            compressed.brotli.is_none() && compressed.gzip().is_some_and(|gzip| gzip.content.len() < 200)
        );
        assert_ne!(compressed.gzip().unwrap().etag, compressed.identity.etag);
        site.write("a.txt.br", "brotli");
        site.write("a.txt.gz", "gzip");
        site.date("a.txt.gz", 9);
        let found = store.find("a.txt").unwrap();
        assert_eq!(found.brotli.as_ref().map(text), Some("brotli"));
        assert_ne!(text(found.gzip().unwrap()), "gzip", "of an older version");
        site.date("a.txt.gz", 10);
        assert_eq!(store.find("a.txt").unwrap().gzip().map(text), Some("gzip"));
    }
}
