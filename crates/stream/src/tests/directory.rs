//! The directory is removed or replaced while it is open.

use super::{TestLog, numbered, poll, read_all};
use crate::{AppendError, CommitError, CreateError, DeleteError, Durability, StreamConfig};

#[test]
fn appends_are_rejected_after_the_lock_file_is_replaced() {
    let one = TestLog::new(&StreamConfig::default());
    one.fill(0..3, 10);
    let mut waits = one.partition.append(numbered([3], 10)).unwrap();
    let mut commit = one.stream.commit("group", 0, 1).unwrap();
    one.disk.replace_lock();
    let calls = one.disk.calls();
    one.streams.tick();
    one.work();
    assert_eq!(one.disk.calls(), calls, "no write to a directory of another process");
    let reason = one.streams.failure().expect("the directory was replaced");
    assert!(reason.contains("/log was removed or replaced"), "{reason}");
    let failed = AppendError::Failed(reason.clone());
    assert_eq!(poll(&mut waits, Durability::Disk), Some(Err(failed.clone())));
    assert_eq!(poll(&mut commit, Durability::Disk), Some(Err(failed.clone())));
    assert_eq!(one.partition.append(numbered([3], 10)).unwrap_err(), failed);
    assert_eq!(one.stream.commit("group", 0, 1).unwrap_err(), CommitError::Append(failed));
    let refused = |text: String| assert!(text.contains("/log was removed or replaced"), "{text}");
    refused(one.streams.create("t", &StreamConfig::default()).unwrap_err().to_string());
    refused(one.streams.delete("s").unwrap_err().to_string());
    assert!(matches!(one.streams.delete("s"), Err(DeleteError::Io(_))));
    assert!(matches!(one.streams.create("s", &StreamConfig::default()), Err(CreateError::Io(_))));
    assert_eq!(read_all(&one.partition, 100).0.len(), 3, "existing records can be read");
    one.streams.close();
    assert_eq!(one.disk.calls(), calls, "no write when the log is closed either");
}
