//! What is kept on disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use sinews_server::{Listen, MessageRoute, Server, TlsConfig};
use sinews_stream::{Fsync, OpenError, StreamConfig, Streams, StreamsConfig};

use super::Pick;
use crate::args::StreamArgs;
use crate::auth::pattern;
use crate::config::StreamValues;
use crate::config::network::Place;
use crate::config::units::{Bytes, FsyncWhen, OneOrMore, WaitOrOff};
use crate::streams::Store;

/// Where streams are kept, and how.
///
/// Without a directory there are none: a server that was not told to writes nothing to disk, neither where it was
/// started nor elsewhere, so that trying it out leaves nothing behind and nobody looks for what grows there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StreamSettings {
    directory: Option<PathBuf>,
    listen: Vec<Place>,
    /// Patterns of topics that are kept in streams of their names.
    topics: Vec<String>,
    partitions: u32,
    fsync: Fsync,
    retain_bytes: Option<usize>,
    retain_age: Option<Duration>,
    segment_bytes: usize,
}

impl StreamSettings {
    pub(super) fn merge(args: &StreamArgs, file: &StreamValues, pick: &mut Pick<'_>) -> Result<Self, String> {
        let places = file.listen.clone().map(|OneOrMore(list)| list);
        let settings = Self {
            directory: pick.one("streams.directory", &args.streams_directory, file.directory.clone()),
            listen: pick.one(LISTEN, &args.streams_listen, places).unwrap_or_default(),
            topics: pick
                .one(TOPICS, &args.streams_topics, file.topics.clone().map(|OneOrMore(list)| list))
                .unwrap_or_default(),
            partitions: pick
                .one(PARTITIONS, &args.streams_partitions, file.partitions)
                .map_or(1, |it| it.get()),
            fsync: pick
                .one("streams.fsync", &args.streams_fsync, file.fsync)
                .map_or(Fsync::Batch, |FsyncWhen(fsync)| fsync),
            retain_bytes: pick
                .one("streams.retain_bytes", &args.streams_retain_bytes, file.retain_bytes)
                .map(|Bytes(bytes)| bytes),
            retain_age: pick
                .one("streams.retain_age", &args.streams_retain_age, file.retain_age)
                .and_then(|WaitOrOff(age)| age),
            segment_bytes: pick
                .one("streams.segment_bytes", &args.streams_segment_bytes, file.segment_bytes)
                .map_or(256 << 20, |Bytes(bytes)| bytes),
        };
        let needs_one = [(LISTEN, settings.listen.is_empty()), (TOPICS, settings.topics.is_empty())];
        if let (None, Some((name, _))) = (&settings.directory, needs_one.iter().find(|(_, empty)| !empty)) {
            let name = pick.names.of(name);
            return Err(format!(
                "{name}: there are no streams without streams.directory (--streams-directory)"
            ));
        }
        if let Some(wrong) = settings.topics.iter().find(|pattern| !pattern::is_valid(pattern)) {
            let name = pick.names.of(TOPICS);
            return Err(format!("{name}: {wrong:?} is no pattern of topics"));
        }
        if settings.partitions > StreamConfig::PARTITIONS_MAX {
            let name = pick.names.of(PARTITIONS);
            return Err(format!("{name}: a stream has at most {} partitions", StreamConfig::PARTITIONS_MAX));
        }
        Ok(settings)
    }

    /// Opens the directory, if there is one to open. If it is another process's whose place this one takes, that is done
    /// once it has let go; until then whoever wants something of streams is told to come again.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub(crate) fn open(&self, max_message: usize, has_former: bool) -> Result<Option<Arc<Store>>, String> {
        let Some(directory) = &self.directory else { return Ok(None) };
        let store = Store::new(self.config(), self.topics.clone(), max_message);
        match Streams::open(directory, StreamsConfig::default()) {
            // What was lost is in the log.
            Ok((streams, _)) => store.begin(streams),
            Err(OpenError::Locked(_)) if has_former => {
                let (directory, store) = (directory.clone(), Arc::clone(&store));
                let thread = thread::Builder::new().name("streams".to_owned());
                let spawned = thread.spawn(move || take_over(&directory, &store));
                spawned.map_err(|error| format!("streams.directory: {error}"))?;
            }
            Err(error) => return Err(format!("streams.directory: {error}")),
        }
        Ok(Some(store))
    }

    /// Patterns of topics that are kept in streams.
    pub(crate) fn topics(&self) -> &[String] {
        &self.topics
    }

    fn config(&self) -> StreamConfig {
        StreamConfig::default()
            .partitions(self.partitions)
            .fsync(self.fsync)
            .segment_bytes(self.segment_bytes as u64)
            .retain_bytes(self.retain_bytes.map(|bytes| bytes as u64))
            .retain_age(self.retain_age)
    }

    /// Adds the places of plain messages; those that are TCP speak TLS, if there is any.
    pub(crate) fn apply(
        &self,
        mut server: Server,
        tls: Option<&TlsConfig>,
        route: impl Fn() -> MessageRoute,
    ) -> Server {
        for place in &self.listen {
            let listen = match (place, tls) {
                (Place::Tcp(address), Some(tls)) => Listen::tcp(*address).with_tls(tls.clone()),
                (Place::Tcp(address), None) => Listen::tcp(*address),
                (Place::Unix(path), _) => Listen::unix(path, UNIX_MODE),
            };
            server = server.listen_on(listen.with_messages(route()));
        }
        server
    }

    /// How many of the places have an address.
    pub(crate) fn addresses(&self) -> usize {
        self.listen.iter().filter(|place| matches!(place, Place::Tcp(_))).count()
    }

    pub(super) fn differs(&self, new: &Self) -> [(&'static str, bool); 8] {
        [
            ("streams.directory", self.directory != new.directory),
            (LISTEN, self.listen != new.listen),
            (TOPICS, self.topics != new.topics),
            (PARTITIONS, self.partitions != new.partitions),
            ("streams.fsync", self.fsync != new.fsync),
            ("streams.retain_bytes", self.retain_bytes != new.retain_bytes),
            ("streams.retain_age", self.retain_age != new.retain_age),
            ("streams.segment_bytes", self.segment_bytes != new.segment_bytes),
        ]
    }
}

/// Waits until the process that has the directory lets go of it.
fn take_over(directory: &Path, store: &Store) {
    loop {
        match Streams::open(directory, StreamsConfig::default()) {
            Ok((streams, _)) => {
                store.begin(streams);
                return tracing::info!("the streams are this process's now");
            }
            Err(OpenError::Locked(_)) => thread::sleep(TAKE_OVER_INTERVAL),
            Err(error) => return tracing::error!("streams.directory: {error}"),
        }
    }
}

/// How often it is looked whether the former process has let go: nobody is served of streams meanwhile.
const TAKE_OVER_INTERVAL: Duration = Duration::from_millis(5);

const LISTEN: &str = "streams.listen";
const TOPICS: &str = "streams.topics";
const PARTITIONS: &str = "streams.partitions";

/// Permissions of the sockets: the user and the group of the process.
const UNIX_MODE: u32 = 0o660;

#[cfg(test)]
mod tests {
    use super::super::tests::settings;
    use super::*;

    #[test]
    fn there_are_none_unless_a_directory_is_named() {
        let plain = settings(&[], "").unwrap().streams;
        assert!(plain.open(1, false).unwrap().is_none());
        assert_eq!(plain.config(), StreamConfig::default());
        let alone = settings(&["--streams-listen", "127.0.0.1:0"], "").unwrap_err();
        assert!(alone.contains("--streams-listen") && alone.contains("streams.directory"), "{alone}");
        let alone = settings(&["--streams-topics", "a"], "").unwrap_err();
        assert!(alone.contains("--streams-topics") && alone.contains("streams.directory"), "{alone}");
        let wrong = settings(&["--streams", "d", "--streams-topics", "a.>.b"], "").unwrap_err();
        assert!(wrong.contains("--streams-topics") && wrong.contains("a.>.b"), "{wrong}");
    }

    #[test]
    fn how_they_are_kept_comes_from_file_and_flags() {
        let file = "[streams]\ndirectory = \"a\"\nlisten = \"127.0.0.1:1\"\npartitions = 4\nfsync = \"100ms\"\n\
                    retain_bytes = \"1g\"\nretain_age = \"7d\"\nsegment_bytes = \"64m\"";
        let from_file = settings(&[], file).unwrap().streams;
        let expected = StreamConfig::default()
            .partitions(4)
            .fsync(Fsync::Interval(Duration::from_millis(100)))
            .segment_bytes(64 << 20)
            .retain_bytes(Some(1 << 30))
            .retain_age(Some(Duration::from_secs(7 * 86_400)));
        assert_eq!((from_file.config(), from_file.addresses()), (expected, 1));
        let flags = ["--streams", "b", "--streams-fsync", "never", "--streams-retain-age", "off"];
        let from_flags = settings(&flags, file).unwrap().streams;
        assert_eq!(from_flags.directory, Some("b".into()));
        assert_eq!((from_flags.fsync, from_flags.retain_age), (Fsync::Never, None));
        let many = settings(&["--streams-partitions", "1025"], "").unwrap_err();
        assert!(many.contains("--streams-partitions"), "{many}");
    }
}
