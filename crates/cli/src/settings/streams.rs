//! Durable stream settings.

use std::num::NonZeroU32;
use std::path::PathBuf;

use sinews_hub::{CreationLimits, StreamOptions, check_pattern};
use sinews_server::{Listen, MessageRoute, Server, TlsConfig};
use sinews_stream::{Fsync, StreamConfig};

use super::store::StoreSettings;
use crate::config::network::ListenEndpoint;
use crate::config::resolver::SettingNames;
use crate::config::schema::settings;
use crate::config::units::{ByteSize, DurationOrOff, FsyncPolicy};
use crate::config::value::Count;

settings! {
    /// Durable streams, stored on disk. Changes of this table need a restart. Without a directory, streams are
    /// disabled: a server without these settings writes no data to disk, so that trying it leaves no files behind.
    pub(crate) struct StreamSettings in "streams", "Durable streams" {
        /// Directory of durable streams; created if missing. Without a directory, streams are disabled, and no data is
        /// written to disk.
        directory: Option<PathBuf> {
            placeholder: "DIR",
            expected: "the path of a directory",
            example: "/var/lib/sinews",
            alias: "streams",
        }

        /// Addresses to listen on for the binary stream protocol over plain TCP, without HTTP: `HOST:PORT` or
        /// `unix:PATH`.
        listen: Vec<ListenEndpoint> {}

        /// Durable topics, each stored in a stream of the same name, as a name or a pattern: `chat.>`. Publications are
        /// delivered once they are on disk; clients that reconnect or subscribe later replay messages from disk, also
        /// after a restart. Durable topics need no {history}. With a broker, messages are delivered once the broker has
        /// acknowledged them, on all nodes.
        durable_topics: Vec<String> { placeholder: "PATTERN", expected: "a pattern of topics such as \"chat.>\"" }

        /// Topics with durable keys, as a name or a pattern: `prices.>`. The keys of a topic are stored in a compacted
        /// stream, so that they survive a restart; a write is acknowledged once it is on disk. Needs
        /// {streams.directory}; with {streams.store}, too, since a broker stores no keys: then the keys are in its folder
        /// `keys`, always synced as `batch`. Not in a cluster ({cluster.url}), and not with {cluster.store}, which has the
        /// keys.
        durable_keys: Vec<String> { placeholder: "PATTERN", expected: "a pattern of topics such as \"prices.>\"" }

        /// Streams that are compacted, as a name or a pattern: the newest record of each key is retained, and older
        /// records of the key are deleted. Records without a key are rejected, so a pattern that matches durable
        /// topics ({streams.durable_topics}, or `durable` of a namespace) is an error. Applies to new streams that their first
        /// use creates. Needs {streams.directory}, and no {streams.store}.
        compact: Vec<String> { placeholder: "PATTERN", expected: "a pattern of streams such as \"devices.>\"" }

        /// Partitions of a stream that is created by its first use, at most 1024.
        partitions: Count<{ StreamConfig::PARTITIONS_MAX }> { default: "1" }

        /// Sync records to disk: `batch` before they are acknowledged and delivered, so that they survive a power
        /// failure; a time is the maximum delay; `never` leaves it to the operating system. Records survive a crash of
        /// the process in any case.
        fsync: Option<FsyncPolicy> { unset: "batch, or never with a broker", example: "batch" }

        /// Minimum size of each partition to retain before the oldest records are deleted, in bytes.
        retain_bytes: Option<ByteSize> { unset: "no deletion by size, or 1g with a broker", example: "10g" }

        /// Retention time of records; `off` retains them forever.
        retain_age: DurationOrOff { default: "off" }

        /// Segment file size of a partition in bytes, from 64k to 1g; retention deletes whole segments.
        segment_bytes: ByteSize { default: "256m" }

        /// Maximum number of streams, up to 100000; further streams are rejected with 429. An unused stream takes half
        /// a kilobyte of memory and no open file.
        max_streams: Count<STREAMS_MAX> { default: "10000" }

        /// Maximum number of streams that one client may create by using them since the start of the server, less
        /// deleted streams: no client can exhaust {streams.max_streams}. A client is the subject (`sub`) of a token, an
        /// app of the Pusher protocol, or an address. Further streams are rejected with 429.
        max_created_per_client: NonZeroU32 { default: "256" }

        /// Maximum number of streams that one client may create per minute. Further streams are rejected with 429.
        max_created_per_minute: NonZeroU32 { default: "256" }

        /// Time without appends and reads after which a stream created by its first use is deleted, with its records.
        /// `off` keeps it: acknowledged records are never deleted unless configured.
        expire_unused: DurationOrOff { default: "off" }
    }
    with {
        store: Option<StoreSettings>,
    }
}

impl StreamSettings {
    /// Whether there are streams.
    pub(super) fn are_on(&self) -> bool {
        self.directory.is_some() || self.store.is_some()
    }

    /// Checks settings that depend on others.
    ///
    /// # Errors
    /// Returns an invalid value, or a missing setting.
    pub(super) fn check(&self, names: &SettingNames) -> Result<(), String> {
        let patterns = [
            (DURABLE_TOPICS, &self.durable_topics),
            (DURABLE_KEYS, &self.durable_keys),
            (COMPACT, &self.compact),
        ];
        let needs_one = patterns.map(|(name, patterns)| (name, patterns.is_empty()));
        let needs_one = [&[(LISTEN, self.listen.is_empty())][..], &needs_one].concat();
        let has_none = self.directory.is_none() && self.store.is_none();
        if let (true, Some((name, _))) = (has_none, needs_one.iter().find(|(_, empty)| !empty)) {
            let name = names.resolve(name);
            return Err(format!(
                "{name}: needs streams.directory (--streams-directory) or streams.store (--store)"
            ));
        }
        for (name, patterns) in patterns {
            for pattern in patterns {
                let fault = |error| {
                    format!("{}: {pattern:?} is not a valid topic pattern: {error}", names.resolve(name))
                };
                check_pattern(pattern).map_err(fault)?;
            }
            if name == COMPACT && !patterns.is_empty() && self.store.is_some() {
                return Err(format!(
                    "{}: needs streams.directory without streams.store",
                    names.resolve(name)
                ));
            }
            if name == DURABLE_KEYS && !patterns.is_empty() && self.directory.is_none() {
                let text = "needs streams.directory (--streams-directory): a broker stores no keys";
                return Err(format!("{}: {text}", names.resolve(name)));
            }
        }
        Ok(())
    }

    /// Returns the options for the hub's streams, if they are configured. Connects to the broker in the background.
    ///
    /// # Errors
    /// Returns the reason why the broker's address is invalid.
    pub(crate) fn options(&self) -> Result<Option<StreamOptions>, String> {
        let options = match (&self.directory, &self.store) {
            (directory, Some(store)) => {
                let broker = store.connect(self.partitions)?;
                let options = StreamOptions::at_broker(broker, &store.location(), store.prefix());
                match directory {
                    Some(directory) => options.with_directory(directory),
                    None => options,
                }
            }
            (Some(directory), None) => StreamOptions::in_directory(directory),
            (None, None) => return Ok(None),
        };
        let creation =
            CreationLimits::new(self.max_created_per_client.get(), self.max_created_per_minute.get());
        let options = options
            .with_durable_topics(self.durable_topics.iter().cloned())
            .with_durable_keys(self.durable_keys.iter().cloned())
            .with_compaction(self.compact.iter().cloned())
            .with_stream(self.config())
            .with_max_streams(self.max_streams as usize)
            .with_creation_limits(creation)
            .with_expiry_of_unused(self.expire_unused);
        Ok(Some(options))
    }

    fn config(&self) -> StreamConfig {
        // The broker has the rest of a copied stream.
        let (fsync, retain_bytes) = match self.store {
            Some(_) => (Fsync::Never, Some(COPY_BYTES)),
            None => (Fsync::Batch, None),
        };
        StreamConfig::default()
            .with_partitions(self.partitions)
            .with_fsync(self.fsync.unwrap_or(fsync))
            .with_segment_bytes(self.segment_bytes as u64)
            .with_retain_bytes(self.retain_bytes.or(retain_bytes).map(|bytes| bytes as u64))
            .with_retain_age(self.retain_age)
    }

    /// Adds the plain TCP listeners; they use TLS if configured.
    pub(crate) fn apply(
        &self,
        mut server: Server,
        tls: Option<&TlsConfig>,
        route: impl Fn() -> Option<MessageRoute>,
    ) -> Server {
        for endpoint in &self.listen {
            let listen = match (endpoint, tls) {
                (ListenEndpoint::Tcp(address), Some(tls)) => Listen::tcp(*address).with_tls(tls.clone()),
                (ListenEndpoint::Tcp(address), None) => Listen::tcp(*address),
                (ListenEndpoint::Unix(path), _) => Listen::unix(path, UNIX_MODE),
            };
            // Listeners need streams.
            let Some(route) = route() else { return server };
            server = server.listen_on(listen.with_messages(route));
        }
        server
    }

    #[cfg(test)]
    pub(super) fn store(&self) -> Option<&StoreSettings> {
        self.store.as_ref()
    }

    /// Returns how many listeners have an address.
    pub(crate) fn addresses(&self) -> usize {
        self.listen.iter().filter(|endpoint| matches!(endpoint, ListenEndpoint::Tcp(_))).count()
    }
}

const LISTEN: &str = "streams.listen";
const DURABLE_TOPICS: &str = "streams.durable_topics";
const DURABLE_KEYS: &str = "streams.durable_keys";
const COMPACT: &str = "streams.compact";

/// Maximum streams, up to which startup and handover were measured.
const STREAMS_MAX: u32 = 100_000;

/// Default size for a node's copy of each partition, in bytes.
const COPY_BYTES: usize = 1 << 30;

/// Socket permissions: the process's user and group.
const UNIX_MODE: u32 = 0o660;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::tests::settings;
    use super::*;

    #[test]
    fn streams_need_a_directory() {
        let plain = settings(&[], "").unwrap().streams;
        assert!(plain.options().unwrap().is_none());
        assert_eq!(plain.config(), StreamConfig::default());
        let alone = settings(&["--streams-listen", "127.0.0.1:0"], "").unwrap_err();
        assert!(alone.contains("--streams-listen") && alone.contains("streams.directory"), "{alone}");
        let alone = settings(&["--streams-durable-topics", "a"], "").unwrap_err();
        assert!(alone.contains("--streams-durable-topics") && alone.contains("streams.directory"), "{alone}");
        let wrong = settings(&["--streams", "d", "--streams-durable-topics", "a.>.b"], "").unwrap_err();
        assert!(wrong.contains("--streams-durable-topics") && wrong.contains("a.>.b"), "{wrong}");
        for (flag, needed) in [
            ("--streams-durable-keys", "needs streams.directory"),
            ("--streams-compact", "without streams.store"),
        ] {
            let wrong = settings(&["--streams", "d", flag, "a.>.b"], "").unwrap_err();
            assert!(wrong.contains(flag) && wrong.contains("a.>.b"), "{wrong}");
            let at_broker = settings(&["--store", "redis://a", flag, "a"], "").unwrap_err();
            assert!(at_broker.contains(flag) && at_broker.contains(needed), "{at_broker}");
        }
        let both = ["--store", "redis://a", "--streams", "d", "--streams-durable-keys", "a"];
        assert_eq!(settings(&both, "").unwrap().streams.durable_keys, ["a"]);
    }

    #[test]
    fn storage_settings_come_from_file_and_flags() {
        let file = "[streams]\ndirectory = \"a\"\nlisten = \"127.0.0.1:1\"\npartitions = 4\nfsync = \"100ms\"\n\
                    retain_bytes = \"1g\"\nretain_age = \"7d\"\nsegment_bytes = \"64m\"";
        let from_file = settings(&[], file).unwrap().streams;
        let expected = StreamConfig::default()
            .with_partitions(4)
            .with_fsync(Fsync::Interval(Duration::from_millis(100)))
            .with_segment_bytes(64 << 20)
            .with_retain_bytes(Some(1 << 30))
            .with_retain_age(Some(Duration::from_secs(7 * 86_400)));
        assert_eq!((from_file.config(), from_file.addresses()), (expected, 1));
        let flags = ["--streams", "b", "--streams-fsync", "never", "--streams-retain-age", "off"];
        let from_flags = settings(&flags, file).unwrap().streams;
        assert_eq!(from_flags.directory, Some("b".into()));
        assert_eq!((from_flags.fsync, from_flags.retain_age), (Some(Fsync::Never), None));
        assert_eq!((from_flags.max_streams, from_flags.expire_unused), (10_000, None));
        let limits = "[streams]\nmax_streams = 9\nmax_created_per_client = 8\nmax_created_per_minute = 7\n\
                      expire_unused = \"30d\"";
        let limited = settings(&[], limits).unwrap().streams;
        let created = [limited.max_created_per_client, limited.max_created_per_minute].map(NonZeroU32::get);
        assert_eq!((limited.max_streams, created), (9, [8, 7]));
        assert_eq!(limited.expire_unused, Some(Duration::from_secs(30 * 86_400)));
        let many = settings(&["--streams-max-streams", "100001"], "").unwrap_err();
        assert!(many.contains("--streams-max-streams") && many.contains("100000"), "{many}");
        let many = settings(&["--streams-partitions", "1025"], "").unwrap_err();
        assert!(many.contains("--streams-partitions"), "{many}");
    }

    #[test]
    fn broker_copy_is_limited_and_not_synced() {
        let copy = settings(&["--store", "redis://a"], "").unwrap().streams.config();
        let expected =
            StreamConfig::default().with_fsync(Fsync::Never).with_retain_bytes(Some(COPY_BYTES as u64));
        assert_eq!(copy, expected);
        let file = "[streams]\nstore = \"redis://a\"\nfsync = \"batch\"\nretain_bytes = \"1m\"";
        let configured = settings(&[], file).unwrap().streams.config();
        assert_eq!(
            configured,
            StreamConfig::default().with_fsync(Fsync::Batch).with_retain_bytes(Some(1 << 20))
        );
    }
}
