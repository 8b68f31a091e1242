//! A stream's metadata file: a few lines of text, readable by people.

use std::fmt::Write;
use std::time::Duration;

use crate::{Fsync, StreamConfig};

/// Name of the file. A directory without it is an unfinished creation, and no stream.
pub(crate) const NAME: &str = "stream";

const FIRST: &str = "sinews-stream 1";

/// Line for a stream that was created by its first use.
const AUTOMATIC: &str = "automatic";

/// Line for a compacted stream, before the tombstone retention in microseconds.
const COMPACT: &str = "compact ";

pub(crate) fn encode(config: &StreamConfig, created: u64) -> Vec<u8> {
    let fsync = match config.fsync {
        Fsync::Batch => "batch".to_owned(),
        Fsync::Never => "never".to_owned(),
        Fsync::Interval(interval) => interval.as_micros().to_string(),
    };
    let bytes = config.retain_bytes.map_or_else(|| "all".to_owned(), |bytes| bytes.to_string());
    let age = config.retain_age.map_or_else(|| "all".to_owned(), |age| age.as_micros().to_string());
    let mut text = format!(
        "{FIRST}\npartitions {}\nfsync {fsync}\nsegment-bytes {}\nretain-bytes {bytes}\nretain-age {age}\n\
         created {created}\n",
        config.partitions, config.segment_bytes
    );
    if config.automatic {
        text.push_str(AUTOMATIC);
        text.push('\n');
    }
    // Writing into a string does not fail.
    if let Some(retention) = config.compact {
        let _ = writeln!(text, "{COMPACT}{}", retention.as_micros());
    }
    let crc = crc32c::crc32c(text.as_bytes());
    let _ = writeln!(text, "crc32c {crc:08x}");
    text.into_bytes()
}

/// Decodes the configuration and the creation time. None: the file is damaged, or from a newer version.
pub(crate) fn decode(bytes: &[u8]) -> Option<(StreamConfig, u64)> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (body, crc) = text.split_at_checked(text.rfind("crc32c ")?)?;
    if crc.trim_end().strip_prefix("crc32c ")? != format!("{:08x}", crc32c::crc32c(body.as_bytes())) {
        return None;
    }
    let mut lines = body.lines();
    (lines.next() == Some(FIRST)).then_some(())?;
    let mut value = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
    let partitions = value("partitions")?.parse().ok()?;
    let fsync = match value("fsync")? {
        "batch" => Fsync::Batch,
        "never" => Fsync::Never,
        interval => Fsync::Interval(Duration::from_micros(interval.parse().ok()?)),
    };
    let segment_bytes = value("segment-bytes")?.parse().ok()?;
    let mut limit = |name| match value(name)? {
        "all" => Some(None),
        number => number.parse::<u64>().ok().map(Some),
    };
    let retain_bytes = limit("retain-bytes")?;
    let retain_age = limit("retain-age")?.map(Duration::from_micros);
    // The first version did not store the creation time.
    let created = lines.next().map_or(Some(0), |line| line.strip_prefix("created ")?.parse().ok())?;
    // Versions before a setting ignore its line.
    let (mut automatic, mut compact) = (false, None);
    for line in lines {
        match line.strip_prefix(COMPACT) {
            Some(retention) => compact = Some(Duration::from_micros(retention.parse().ok()?)),
            None => automatic |= line == AUTOMATIC,
        }
    }
    Some((
        StreamConfig { partitions, fsync, segment_bytes, retain_bytes, retain_age, automatic, compact },
        created,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_metadata_decodes_to_the_same_values() {
        let plain = StreamConfig::default().with_partitions(3);
        let other =
            plain.clone().with_fsync(Fsync::Interval(Duration::from_millis(5))).with_segment_bytes(1 << 20);
        let kept = other
            .clone()
            .with_fsync(Fsync::Never)
            .with_retain_bytes(Some(7))
            .with_retain_age(Some(Duration::from_secs(9)));
        let compact = kept.clone().with_compaction(Some(Duration::from_secs(3)));
        for config in [plain, other, kept.clone(), kept.with_automatic(true), compact] {
            let bytes = encode(&config, 77);
            assert_eq!(decode(&bytes), Some((config, 77)));
            for at in 0..bytes.len() - 1 {
                let mut bad = bytes.clone();
                bad[at] ^= 1;
                assert_eq!((decode(&bad), decode(&bytes[..at])), (None, None), "{at}");
            }
        }
    }
}
