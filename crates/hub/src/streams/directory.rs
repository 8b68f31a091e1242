//! The stream directory: its owner, and its takeover from a predecessor process.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, fs, io, thread};

use sinews_stream::{OpenError, Streams, StreamsConfig};

use super::options::{BrokerIdentity, StreamOptions};
use super::service::{StreamPatterns, StreamService};
use super::temporary::TemporaryDirectory;
use crate::background::Background;
use crate::error::{HubError, HubErrorKind};

/// A directory of streams.
enum StreamDirectory {
    Configured(PathBuf, Option<BrokerIdentity>),
    /// Temporary, for the lifetime of this process.
    Temporary(TemporaryDirectory),
}

/// Reason why a directory cannot be opened.
enum OpenDirectoryError {
    /// Another process has it open.
    Locked,
    Failed(HubError),
}

impl fmt::Display for OpenDirectoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Locked => f.write_str("another process has it open"),
            Self::Failed(why) => why.fmt(f),
        }
    }
}

/// Opens the directory. During a handover, it opens once the predecessor has released the directory; until then, stream
/// requests are answered with "retry later".
///
/// # Errors
/// The reason why the directory cannot be opened.
pub(crate) fn open(
    mut options: StreamOptions,
    max_message: usize,
    has_predecessor: bool,
    background: &Background,
) -> Result<Arc<StreamService>, HubError> {
    let of_keys = options.take_keys();
    let store = open_one(options, max_message, has_predecessor, background)?;
    if let Some(of_keys) = of_keys {
        store.set_keys(open_one(of_keys, max_message, has_predecessor, background)?);
    }
    Ok(store)
}

fn open_one(
    options: StreamOptions,
    max_message: usize,
    has_predecessor: bool,
    background: &Background,
) -> Result<Arc<StreamService>, HubError> {
    let directory = match options.directory() {
        Some(directory) => StreamDirectory::Configured(
            directory.to_owned(),
            options.broker.as_ref().map(|(_, identity)| identity.clone()),
        ),
        None => {
            let made = TemporaryDirectory::create();
            StreamDirectory::Temporary(made.map_err(|error| HubError::file(&std::env::temp_dir(), error))?)
        }
    };
    let (topics, keyed_topics) = (options.durable(), options.keyed());
    let StreamOptions { broker, compacted, config, max_streams, rules, timestamps, .. } = options;
    let broker = broker.map(|(broker, _)| broker);
    let patterns = StreamPatterns { topics, keyed_topics, compacted, timestamps };
    let store = StreamService::new(config, patterns, max_message, broker, rules, background.clone());
    match directory.open(max_streams) {
        Ok(streams) => store.install(streams),
        Err(OpenDirectoryError::Locked) if has_predecessor => {
            let waiting = Arc::clone(&store);
            let wait = move || take_over(&directory, max_streams, &waiting);
            let spawned = background.spawn_blocking("streams-takeover", wait);
            let fault = |error| HubError::caused(HubErrorKind::System, error);
            return spawned.map(|_| store).map_err(fault);
        }
        Err(OpenDirectoryError::Failed(why)) => return Err(why),
        Err(locked) => return Err(HubError::new(HubErrorKind::File, locked.to_string())),
    }
    if let StreamDirectory::Temporary(made) = directory {
        store.own_directory(made);
    }
    Ok(store)
}

impl StreamDirectory {
    fn path(&self) -> &Path {
        match self {
            Self::Configured(path, _) => path,
            Self::Temporary(temporary) => temporary.path(),
        }
    }

    /// Opens the directory. A copy of one broker is never mixed with another broker's, nor with local streams.
    fn open(&self, max_streams: usize) -> Result<Streams, OpenDirectoryError> {
        let path = self.path();
        // Losses are reported in the log.
        let config = StreamsConfig::default().with_max_waiters(READERS_MAX).with_max_streams(max_streams);
        let (streams, _) = Streams::open(path, config).map_err(|error| match error {
            OpenError::Locked(_) => OpenDirectoryError::Locked,
            error => OpenDirectoryError::Failed(HubError::caused(HubErrorKind::File, error)),
        })?;
        if let Self::Configured(_, broker) = self {
            check_marker(path, broker.as_ref(), &streams).map_err(OpenDirectoryError::Failed)?;
        }
        Ok(streams)
    }
}

fn check_marker(path: &Path, broker: Option<&BrokerIdentity>, streams: &Streams) -> Result<(), HubError> {
    let marker = path.join(MARKER);
    let found = match fs::read_to_string(&marker) {
        Ok(found) => Some(found),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(HubError::file(&marker, error)),
    };
    let location = |found: &str| found.lines().next().unwrap_or_default().to_owned();
    let foreign = |text: String| Err(HubError::new(HubErrorKind::File, text));
    match (found, broker) {
        (None, None) => Ok(()),
        (Some(found), Some(broker)) if found == broker.marker() => Ok(()),
        (Some(found), _) => foreign(format!(
            "{} has a copy of the streams of {}: name that broker with --store, or remove the directory",
            path.display(),
            location(&found)
        )),
        (None, Some(broker)) if streams.count() == 0 => {
            write_whole(&marker, &broker.marker()).map_err(|error| HubError::file(&marker, error))
        }
        (None, Some(_)) => foreign(format!(
            "{} has streams that are not copies of a broker's: name another directory, and copy them with `sinews streams copy`",
            path.display()
        )),
    }
}

/// Writes atomically: after a crash, the file is complete or missing.
fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    let temporary = path.with_extension("new");
    let mut file = fs::File::create(&temporary)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(temporary, path)?;
    // Before the first stream: a directory with streams and without a marker is rejected at the next start.
    path.parent().map_or(Ok(()), |directory| fs::File::open(directory)?.sync_all())
}

/// Waits until the predecessor releases the directory, or this process stops.
fn take_over(directory: &StreamDirectory, max_streams: usize, store: &StreamService) {
    let (since, mut interval) = (Instant::now(), TAKE_OVER_INTERVAL);
    while !store.is_closed() {
        match directory.open(max_streams) {
            Ok(streams) => {
                store.install(streams);
                if store.is_closed() {
                    // It closed during the opening, and has not seen the streams.
                    return store.close();
                }
                return tracing::info!("streams taken over from the predecessor");
            }
            Err(OpenDirectoryError::Locked)
                if interval < TAKE_OVER_LATER && since.elapsed() > TAKE_OVER_WITHIN =>
            {
                let path = directory.path().display();
                tracing::error!("streams.directory: {path}: the predecessor does not release the directory");
                interval = TAKE_OVER_LATER;
            }
            Err(OpenDirectoryError::Locked) => thread::sleep(interval),
            Err(why) => return tracing::error!("streams.directory: {why}"),
        }
    }
}

/// Interval between attempts to open the directory: streams are unavailable meanwhile.
const TAKE_OVER_INTERVAL: Duration = Duration::from_millis(5);

/// Time until the log reports an error. The takeover still succeeds once the predecessor exits.
const TAKE_OVER_WITHIN: Duration = Duration::from_secs(30);

/// Interval between attempts after the error.
const TAKE_OVER_LATER: Duration = Duration::from_secs(1);

/// Maximum readers that wait for one partition. Another reader would evict a waiting reader, which returns immediately:
/// with fewer slots than readers, this never ends. A slot takes about 40 bytes, only while in use.
const READERS_MAX: usize = 1 << 20;

/// The file that identifies a copy's broker.
const MARKER: &str = "store";

#[cfg(test)]
mod tests {
    use sinews_stream::StreamConfig;

    use super::super::options::CreationRules;
    use super::*;

    #[test]
    fn stopping_process_abandons_waiting_for_the_directory() {
        let directory = tempfile::tempdir().unwrap();
        let other = StreamDirectory::Configured(directory.path().to_owned(), None).open(10);
        let store = StreamService::new(
            StreamConfig::default(),
            Default::default(),
            1 << 20,
            None,
            CreationRules::default(),
            Default::default(),
        );
        let (waiting, path) = (Arc::clone(&store), directory.path().to_owned());
        let (over, is_over) = std::sync::mpsc::channel();
        thread::spawn(move || {
            take_over(&StreamDirectory::Configured(path, None), 10, &waiting);
            over.send(()).unwrap();
        });
        store.close();
        is_over.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(other.is_ok_and(|streams| streams.has_room()), "the other process still has it open");
    }

    #[test]
    fn directory_belongs_to_one_broker() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_owned();
        let open = |broker: Option<&BrokerIdentity>| {
            StreamDirectory::Configured(path.clone(), broker.cloned())
                .open(10)
                .map(|streams| streams.close())
                .map_err(|why| why.to_string())
        };
        let broker = |location: &str, prefix: &str| BrokerIdentity {
            location: location.to_owned(),
            prefix: prefix.to_owned(),
        };
        let one = broker("redis://one", "a");
        assert_eq!(open(Some(&one)), Ok(()));
        assert_eq!(open(Some(&broker("redis://one", "a"))), Ok(()));
        for other in [None, Some(broker("redis://two", "")), Some(broker("redis://one", ""))] {
            let error = open(other.as_ref()).unwrap_err();
            assert!(error.contains("a copy of the streams of redis://one"), "{error}");
        }
        let own = tempfile::tempdir().unwrap();
        let streams = StreamDirectory::Configured(own.path().to_owned(), None).open(10).ok().unwrap();
        streams.create("s", &StreamConfig::default()).unwrap();
        streams.close();
        let error =
            StreamDirectory::Configured(own.path().to_owned(), Some(one)).open(10).err().unwrap().to_string();
        assert!(error.contains("streams that are not copies of a broker's"), "{error}");
    }
}
