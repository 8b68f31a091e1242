//! Durable streams.

use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::Args;

use crate::config::network::Place;
use crate::config::units::{Bytes, FsyncWhen, Hidden, WaitOrOff};

/// `[streams]` of the configuration file.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Durable streams")]
pub(crate) struct StreamArgs {
    /// Directory of durable streams; created if missing. Without a directory, streams are disabled, and no data is
    /// written to disk
    #[arg(long, visible_alias = "streams", value_name = "DIR", env = "SINEWS_STREAMS_DIRECTORY")]
    pub(crate) streams_directory: Option<PathBuf>,

    /// Address to listen on for the binary stream protocol over plain TCP, `HOST:PORT` or `unix:PATH`; repeatable
    #[arg(long, value_name = "ADDRESS", env = "SINEWS_STREAMS_LISTEN", value_delimiter = ',')]
    pub(crate) streams_listen: Option<Vec<Place>>,

    /// Durable topics, each stored in a stream of the same name, as a name or a pattern: `chat.>`. Publications are
    /// delivered once they are on disk, and are replayed from there; with a broker, once the broker has acknowledged
    /// them, on all nodes. Repeatable
    #[arg(long, value_name = "PATTERN", env = "SINEWS_STREAMS_TOPICS", value_delimiter = ',')]
    pub(crate) streams_topics: Option<Vec<String>>,

    /// Partitions of a stream that is created by its first use, at most 1024 [default: 1]
    #[arg(long, value_name = "N", env = "SINEWS_STREAMS_PARTITIONS")]
    pub(crate) streams_partitions: Option<NonZeroU32>,

    /// Sync records to disk: `batch` before they are acknowledged; a time is the maximum delay; `never` leaves it to
    /// the operating system [default: batch, and never with a broker]
    #[arg(long, value_name = "WHEN", env = "SINEWS_STREAMS_FSYNC")]
    pub(crate) streams_fsync: Option<FsyncWhen>,

    /// Minimum size of each partition to retain before the oldest records are deleted, in bytes [default: no deletion
    /// by size, and 1g with a broker]
    #[arg(long, value_name = "BYTES", env = "SINEWS_STREAMS_RETAIN_BYTES")]
    pub(crate) streams_retain_bytes: Option<Bytes>,

    /// Retention time of records; `off` retains them forever [default: off]
    #[arg(long, value_name = "TIME", env = "SINEWS_STREAMS_RETAIN_AGE")]
    pub(crate) streams_retain_age: Option<WaitOrOff>,

    /// Segment file size of a partition in bytes, from 64k to 1g; retention deletes whole segments [default: 256m]
    #[arg(long, value_name = "BYTES", env = "SINEWS_STREAMS_SEGMENT_BYTES")]
    pub(crate) streams_segment_bytes: Option<Bytes>,

    /// Maximum number of streams, up to 100000; further streams are rejected with 429 [default: 10000]
    #[arg(long, value_name = "N", env = "SINEWS_STREAMS_MAX_STREAMS")]
    pub(crate) streams_max_streams: Option<NonZeroU32>,

    /// Maximum number of streams that one client may create by using them, less deleted streams. A client is the
    /// subject of a token, or an address [default: 256]
    #[arg(long, value_name = "N", env = "SINEWS_STREAMS_MAX_CREATED_PER_CLIENT")]
    pub(crate) streams_max_created_per_client: Option<NonZeroU32>,

    /// Maximum number of streams that one client may create per minute [default: 256]
    #[arg(long, value_name = "N", env = "SINEWS_STREAMS_MAX_CREATED_PER_MINUTE")]
    pub(crate) streams_max_created_per_minute: Option<NonZeroU32>,

    /// Time without appends and reads after which a stream created by its first use is deleted, with its records;
    /// `off` keeps it [default: off]
    #[arg(long, value_name = "TIME", env = "SINEWS_STREAMS_EXPIRE_UNUSED")]
    pub(crate) streams_expire_unused: Option<WaitOrOff>,

    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// The broker that stores the streams.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Streams of a broker")]
pub(crate) struct StoreArgs {
    /// Broker that stores the streams: kafka://host:9092,host, redis://host or nats://host; with TLS kafka+tls://,
    /// rediss:// and nats+tls://. --streams-directory then holds a copy; without it, the copy is rebuilt at each
    /// start
    #[arg(
        long,
        visible_alias = "store",
        value_name = "URL",
        env = "SINEWS_STREAMS_STORE",
        hide_env_values = true
    )]
    pub(crate) streams_store: Option<Hidden>,

    /// Setting of the broker's client library, such as linger.ms=5; repeatable, or separated by blanks
    #[arg(
        long,
        visible_alias = "store-setting",
        value_name = "NAME=VALUE",
        env = "SINEWS_STREAMS_STORE_SETTINGS",
        hide_env_values = true,
        value_delimiter = ' '
    )]
    pub(crate) streams_store_settings: Option<Vec<Hidden>>,

    /// Password of the broker's user in --streams-store. Other users of this machine can read a command line: prefer
    /// `--streams-store-password-file`
    #[arg(long, value_name = "PASSWORD", env = "SINEWS_STREAMS_STORE_PASSWORD", hide_env_values = true)]
    pub(crate) streams_store_password: Option<Hidden>,

    /// File with the password of the broker's user
    #[arg(long, value_name = "FILE", env = "SINEWS_STREAMS_STORE_PASSWORD_FILE")]
    pub(crate) streams_store_password_file: Option<PathBuf>,
}
