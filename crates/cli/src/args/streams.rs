//! What is kept on disk.

use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::Args;

use crate::config::network::Place;
use crate::config::units::{Bytes, FsyncWhen, Hidden, WaitOrOff};

/// `[streams]` of the configuration file.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Durable streams")]
pub(crate) struct StreamArgs {
    /// Directory in which streams are kept; it is made if it is not there. Without it there are none, and nothing is
    /// written to disk
    #[arg(long, visible_alias = "streams", value_name = "DIR", env = "SINEWS_STREAMS_DIRECTORY")]
    pub(crate) streams_directory: Option<PathBuf>,

    /// Address at which streams are spoken to in binary messages over plain TCP, or `unix:` and a path; may be given
    /// several times
    #[arg(long, value_name = "ADDRESS", env = "SINEWS_STREAMS_LISTEN", value_delimiter = ',')]
    pub(crate) streams_listen: Option<Vec<Place>>,

    /// Topics that are kept in streams of their names, as a name or a pattern: `chat.>`. What is published to them is
    /// heard when it is on disk, and read from there by those who come back; with a broker, when that has it, on all
    /// nodes. May be given several times
    #[arg(long, value_name = "PATTERN", env = "SINEWS_STREAMS_TOPICS", value_delimiter = ',')]
    pub(crate) streams_topics: Option<Vec<String>>,

    /// Partitions of a stream that comes into being by being published to [default: 1]
    #[arg(long, value_name = "N", env = "SINEWS_STREAMS_PARTITIONS")]
    pub(crate) streams_partitions: Option<NonZeroU32>,

    /// When what is published is synced to the disk: `batch`, before it is acknowledged; a time, so long after at the
    /// latest; `never`, when the system does [default: batch, and never with a broker]
    #[arg(long, value_name = "WHEN", env = "SINEWS_STREAMS_FSYNC")]
    pub(crate) streams_fsync: Option<FsyncWhen>,

    /// Bytes of each partition that are kept at least before the oldest go; without it, all are kept
    #[arg(long, value_name = "BYTES", env = "SINEWS_STREAMS_RETAIN_BYTES")]
    pub(crate) streams_retain_bytes: Option<Bytes>,

    /// How long what is published is kept; `off` keeps it for ever [default: off]
    #[arg(long, value_name = "TIME", env = "SINEWS_STREAMS_RETAIN_AGE")]
    pub(crate) streams_retain_age: Option<WaitOrOff>,

    /// Bytes of a file of a partition: what is removed at once [default: 256m]
    #[arg(long, value_name = "BYTES", env = "SINEWS_STREAMS_SEGMENT_BYTES")]
    pub(crate) streams_segment_bytes: Option<Bytes>,

    /// Maximum number of streams; further ones are rejected with 429 [default: 10000]
    #[arg(long, value_name = "N", env = "SINEWS_STREAMS_MAX_STREAMS")]
    pub(crate) streams_max_streams: Option<NonZeroU32>,

    /// Streams that one client may create by using them, less those that were deleted; a client is the subject of a
    /// token, or an address [default: 256]
    #[arg(long, value_name = "N", env = "SINEWS_STREAMS_MAX_CREATED_PER_CLIENT")]
    pub(crate) streams_max_created_per_client: Option<NonZeroU32>,

    /// Streams that one client may create within a minute [default: 256]
    #[arg(long, value_name = "N", env = "SINEWS_STREAMS_MAX_CREATED_PER_MINUTE")]
    pub(crate) streams_max_created_per_minute: Option<NonZeroU32>,

    /// Time after which a stream that its first use has created is deleted, with its records, if no client appends to
    /// it or reads it; `off` keeps it [default: off]
    #[arg(long, value_name = "TIME", env = "SINEWS_STREAMS_EXPIRE_UNUSED")]
    pub(crate) streams_expire_unused: Option<WaitOrOff>,

    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// The broker that keeps the streams.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Streams that a broker keeps")]
pub(crate) struct StoreArgs {
    /// Broker that keeps the streams: kafka://host:9092,host, redis://host or nats://host; with TLS kafka+tls://,
    /// rediss:// and nats+tls://. The directory then has a copy, made anew at each start unless it is given
    #[arg(
        long,
        visible_alias = "store",
        value_name = "URL",
        env = "SINEWS_STREAMS_STORE",
        hide_env_values = true
    )]
    pub(crate) streams_store: Option<Hidden>,

    /// Setting of the broker's client, such as linger.ms=5; may be given several times, or with blanks between them
    #[arg(
        long,
        visible_alias = "store-setting",
        value_name = "NAME=VALUE",
        env = "SINEWS_STREAMS_STORE_SETTINGS",
        hide_env_values = true,
        value_delimiter = ' '
    )]
    pub(crate) streams_store_settings: Option<Vec<Hidden>>,

    /// Password at the broker, of the user that the URL names. Others on this machine can read a command line:
    /// `--streams-store-password-file` is better
    #[arg(long, value_name = "PASSWORD", env = "SINEWS_STREAMS_STORE_PASSWORD", hide_env_values = true)]
    pub(crate) streams_store_password: Option<Hidden>,

    /// File with that password
    #[arg(long, value_name = "FILE", env = "SINEWS_STREAMS_STORE_PASSWORD_FILE")]
    pub(crate) streams_store_password_file: Option<PathBuf>,
}
