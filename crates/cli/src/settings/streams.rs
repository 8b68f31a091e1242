//! Settings of durable streams.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use sinews_server::{Listen, MessageRoute, Server, TlsConfig};
use sinews_stream::{Fsync, StreamConfig};

use super::Pick;
use super::store::{Place as Directory, StoreSettings, Unopened};
use crate::args::StreamArgs;
use crate::auth::pattern;
use crate::config::StreamValues;
use crate::config::network::Place;
use crate::config::units::{Bytes, FsyncWhen, OneOrMore, WaitOrOff};
use crate::streams::{CreationLimits, Rules, Store};

/// Storage settings of streams.
///
/// Without a directory, streams are disabled: a server without this setting writes no data to disk, so that trying it
/// leaves no files behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StreamSettings {
    directory: Option<PathBuf>,
    listen: Vec<Place>,
    /// Patterns of durable topics.
    topics: Vec<String>,
    partitions: u32,
    /// The default depends on whether a broker stores the streams.
    fsync: Option<Fsync>,
    retain_bytes: Option<usize>,
    retain_age: Option<Duration>,
    segment_bytes: usize,
    max_streams: usize,
    max_created: CreationLimits,
    expire_unused: Option<Duration>,
    /// The broker that stores the streams, if the directory is only a copy.
    store: Option<StoreSettings>,
}

impl StreamSettings {
    pub(super) fn merge(args: &StreamArgs, file: &StreamValues, pick: &mut Pick<'_>) -> Result<Self, String> {
        let store = StoreSettings::merge(&args.store, file, pick)?;
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
            fsync: pick.one("streams.fsync", &args.streams_fsync, file.fsync).map(|FsyncWhen(fsync)| fsync),
            retain_bytes: pick
                .one("streams.retain_bytes", &args.streams_retain_bytes, file.retain_bytes)
                .map(|Bytes(bytes)| bytes),
            retain_age: pick
                .one("streams.retain_age", &args.streams_retain_age, file.retain_age)
                .and_then(|WaitOrOff(age)| age),
            segment_bytes: pick
                .one("streams.segment_bytes", &args.streams_segment_bytes, file.segment_bytes)
                .map_or(256 << 20, |Bytes(bytes)| bytes),
            max_streams: pick
                .one(MAX_STREAMS, &args.streams_max_streams, file.max_streams)
                .map_or(MAX_STREAMS_DEFAULT, |count| count.get() as usize),
            max_created: creation_limits(args, file, pick),
            expire_unused: pick
                .one("streams.expire_unused", &args.streams_expire_unused, file.expire_unused)
                .and_then(|WaitOrOff(time)| time),
            store,
        };
        if settings.max_streams > STREAMS_MAX {
            let name = pick.names.of(MAX_STREAMS);
            return Err(format!("{name}: {} exceeds the limit of {STREAMS_MAX}", settings.max_streams));
        }
        let needs_one = [(LISTEN, settings.listen.is_empty()), (TOPICS, settings.topics.is_empty())];
        let has_none = settings.directory.is_none() && settings.store.is_none();
        if let (true, Some((name, _))) = (has_none, needs_one.iter().find(|(_, empty)| !empty)) {
            let name = pick.names.of(name);
            return Err(format!(
                "{name}: needs streams.directory (--streams-directory) or streams.store (--store)"
            ));
        }
        if let Some(wrong) = settings.topics.iter().find(|pattern| !pattern::is_valid(pattern)) {
            let name = pick.names.of(TOPICS);
            return Err(format!("{name}: {wrong:?} is not a valid topic pattern"));
        }
        if settings.partitions > StreamConfig::PARTITIONS_MAX {
            let name = pick.names.of(PARTITIONS);
            return Err(format!("{name}: a stream has at most {} partitions", StreamConfig::PARTITIONS_MAX));
        }
        Ok(settings)
    }

    /// Opens the directory, if configured. During a handover, it opens once the predecessor has released the
    /// directory; until then, stream requests are answered with "retry later".
    ///
    /// # Errors
    /// Returns the reason why the directory cannot be opened.
    pub(crate) fn open(&self, max_message: usize, has_former: bool) -> Result<Option<Arc<Store>>, String> {
        let broker = self.store.as_ref().map(|store| store.connect(self.partitions)).transpose()?;
        let directory = match (&self.directory, &self.store) {
            (Some(directory), store) => Directory::Given(directory.clone(), store.as_ref()),
            (None, Some(_)) => {
                let made = tempfile::Builder::new().prefix("sinews-").tempdir();
                Directory::Made(made.map_err(|error| format!("{}: {error}", std::env::temp_dir().display()))?)
            }
            (None, None) => return Ok(None),
        };
        let store = Store::new(self.config(), self.topics.clone(), max_message, broker, self.rules());
        match directory.open(self.max_streams) {
            Ok(streams) => store.begin(streams),
            Err(Unopened::Locked) if has_former => {
                let store = Arc::clone(&store);
                let (directory, marker) = (directory.path().to_owned(), self.store.clone());
                let max_streams = self.max_streams;
                let thread = thread::Builder::new().name("streams".to_owned());
                let spawned = thread.spawn(move || {
                    take_over(&Directory::Given(directory, marker.as_ref()), max_streams, &store);
                });
                spawned.map_err(|error| format!("streams.directory: {error}"))?;
            }
            Err(why) => return Err(format!("streams.directory: {why}")),
        }
        if let Directory::Made(made) = directory {
            store.own(made);
        }
        store.start_expiry().map_err(|error| format!("streams.expire_unused: {error}"))?;
        Ok(Some(store))
    }

    /// Patterns of durable topics.
    pub(crate) fn topics(&self) -> &[String] {
        &self.topics
    }

    fn rules(&self) -> Rules {
        Rules { creation: self.max_created, expire_unused: self.expire_unused }
    }

    fn config(&self) -> StreamConfig {
        // The broker has the rest of a copied stream.
        let (fsync, retain_bytes) = match self.store {
            Some(_) => (Fsync::Never, Some(COPY_BYTES)),
            None => (Fsync::Batch, None),
        };
        StreamConfig::default()
            .partitions(self.partitions)
            .fsync(self.fsync.unwrap_or(fsync))
            .segment_bytes(self.segment_bytes as u64)
            .retain_bytes(self.retain_bytes.or(retain_bytes).map(|bytes| bytes as u64))
            .retain_age(self.retain_age)
    }

    /// Adds the plain TCP listeners; they use TLS if configured.
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

    #[cfg(test)]
    pub(super) fn store(&self) -> Option<&StoreSettings> {
        self.store.as_ref()
    }

    /// Location of the streams for output: the directory, or the broker without its credentials.
    pub(crate) fn place(&self) -> String {
        match (&self.store, &self.directory) {
            (Some(store), _) => store.place(),
            (None, Some(directory)) => directory.display().to_string(),
            (None, None) => "no streams".to_owned(),
        }
    }

    /// Number of listeners with an address.
    pub(crate) fn addresses(&self) -> usize {
        self.listen.iter().filter(|place| matches!(place, Place::Tcp(_))).count()
    }

    pub(super) fn differs(&self, new: &Self) -> [(&'static str, bool); 15] {
        let [store, settings, password] = StoreSettings::differ(self.store.as_ref(), new.store.as_ref());
        [
            store,
            settings,
            password,
            ("streams.directory", self.directory != new.directory),
            (LISTEN, self.listen != new.listen),
            (TOPICS, self.topics != new.topics),
            (PARTITIONS, self.partitions != new.partitions),
            ("streams.fsync", self.fsync != new.fsync),
            ("streams.retain_bytes", self.retain_bytes != new.retain_bytes),
            ("streams.retain_age", self.retain_age != new.retain_age),
            ("streams.segment_bytes", self.segment_bytes != new.segment_bytes),
            (MAX_STREAMS, self.max_streams != new.max_streams),
            (PER_CLIENT, self.max_created.per_client != new.max_created.per_client),
            (PER_MINUTE, self.max_created.per_minute != new.max_created.per_minute),
            ("streams.expire_unused", self.expire_unused != new.expire_unused),
        ]
    }
}

fn creation_limits(args: &StreamArgs, file: &StreamValues, pick: &mut Pick<'_>) -> CreationLimits {
    let default = CreationLimits::default();
    CreationLimits {
        per_client: pick
            .one(PER_CLIENT, &args.streams_max_created_per_client, file.max_created_per_client)
            .map_or(default.per_client, |it| it.get()),
        per_minute: pick
            .one(PER_MINUTE, &args.streams_max_created_per_minute, file.max_created_per_minute)
            .map_or(default.per_minute, |it| it.get()),
    }
}

/// Waits until the predecessor releases the directory, or this process stops.
fn take_over(directory: &Directory<'_>, max_streams: usize, store: &Store) {
    let (since, mut interval) = (Instant::now(), TAKE_OVER_INTERVAL);
    while !store.is_closed() {
        match directory.open(max_streams) {
            Ok(streams) => {
                store.begin(streams);
                if store.is_closed() {
                    // It closed during the opening, and has not seen the streams.
                    return store.close();
                }
                return tracing::info!("streams taken over from the predecessor");
            }
            Err(Unopened::Locked) if interval < TAKE_OVER_LATER && since.elapsed() > TAKE_OVER_WITHIN => {
                let path = directory.path().display();
                tracing::error!("streams.directory: {path}: the predecessor does not release the directory");
                interval = TAKE_OVER_LATER;
            }
            Err(Unopened::Locked) => thread::sleep(interval),
            Err(why) => return tracing::error!("streams.directory: {why}"),
        }
    }
}

/// Interval of attempts to open the directory: streams are unavailable meanwhile.
const TAKE_OVER_INTERVAL: Duration = Duration::from_millis(5);

/// Time until the log reports an error. The takeover still succeeds once the predecessor exits.
const TAKE_OVER_WITHIN: Duration = Duration::from_secs(30);

/// Interval of attempts after the error.
const TAKE_OVER_LATER: Duration = Duration::from_secs(1);

const LISTEN: &str = "streams.listen";
const MAX_STREAMS: &str = "streams.max_streams";

/// The default of [`StreamsConfig`](sinews_stream::StreamsConfig).
const MAX_STREAMS_DEFAULT: usize = 10_000;
const TOPICS: &str = "streams.topics";
const PARTITIONS: &str = "streams.partitions";
const PER_CLIENT: &str = "streams.max_created_per_client";
const PER_MINUTE: &str = "streams.max_created_per_minute";

/// Maximum number of streams, up to which startup and handover were measured.
const STREAMS_MAX: usize = 100_000;

/// Default size of a node's copy of each partition, in bytes.
const COPY_BYTES: usize = 1 << 30;

/// Permissions of the sockets: the user and the group of the process.
const UNIX_MODE: u32 = 0o660;

#[cfg(test)]
mod tests {
    use super::super::tests::settings;
    use super::*;

    #[test]
    fn streams_need_a_directory() {
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
    fn stopping_process_abandons_waiting_for_the_directory() {
        let directory = tempfile::tempdir().unwrap();
        let other = Directory::Given(directory.path().to_owned(), None).open(10);
        let store = Store::new(StreamConfig::default(), Vec::new(), 1 << 20, None, Rules::default());
        let (waiting, path) = (Arc::clone(&store), directory.path().to_owned());
        let (over, is_over) = std::sync::mpsc::channel();
        thread::spawn(move || {
            take_over(&Directory::Given(path, None), 10, &waiting);
            over.send(()).unwrap();
        });
        store.close();
        is_over.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(other.is_ok_and(|streams| streams.has_room()), "the other process still has it open");
    }

    #[test]
    fn storage_settings_come_from_file_and_flags() {
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
        assert_eq!((from_flags.fsync, from_flags.retain_age), (Some(Fsync::Never), None));
        assert_eq!((from_flags.max_streams, from_flags.expire_unused), (MAX_STREAMS_DEFAULT, None));
        assert_eq!(from_flags.rules().creation, CreationLimits::default());
        let limits = "[streams]\nmax_streams = 9\nmax_created_per_client = 8\nmax_created_per_minute = 7\n\
                      expire_unused = \"30d\"";
        let limited = settings(&[], limits).unwrap().streams;
        let Rules { creation, expire_unused } = limited.rules();
        assert_eq!((limited.max_streams, creation.per_client, creation.per_minute), (9, 8, 7));
        assert_eq!(expire_unused, Some(Duration::from_secs(30 * 86_400)));
        let many = settings(&["--streams-max-streams", "100001"], "").unwrap_err();
        assert!(many.contains("--streams-max-streams") && many.contains("100000"), "{many}");
        let many = settings(&["--streams-partitions", "1025"], "").unwrap_err();
        assert!(many.contains("--streams-partitions"), "{many}");
    }

    #[test]
    fn broker_copy_is_limited_and_not_synced() {
        let copy = settings(&["--store", "redis://a"], "").unwrap().streams.config();
        let expected = StreamConfig::default().fsync(Fsync::Never).retain_bytes(Some(COPY_BYTES as u64));
        assert_eq!(copy, expected);
        let file = "[streams]\nstore = \"redis://a\"\nfsync = \"batch\"\nretain_bytes = \"1m\"";
        let told = settings(&[], file).unwrap().streams.config();
        assert_eq!(told, StreamConfig::default().fsync(Fsync::Batch).retain_bytes(Some(1 << 20)));
    }
}
