//! The revocations on disk: a file to which a task appends. An answer waits for the sync of its revocation.
//!
//! ```text
//!   file    head · records
//!   record  length 4 B · first 8 bytes of the payload's SHA-256 · payload: a revocation in JSON
//! ```
//!
//! Reads follow the lengths and end at the first damaged record, so no name within a payload can pass for a record.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures_channel::oneshot;
use parking_lot::{Mutex, MutexGuard};
use ring::digest::{SHA256, digest};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::spawn_blocking;

use crate::access::auth::revocations::{REVOCATIONS_MAX, Revocation, Revocations};
use crate::background::{Background, Task};
use crate::error::HubError;

/// Name of the file in the directory of the streams.
const NAME: &str = "revocations";

const HEAD: &[u8] = b"sinews revocations 1\n";

/// Bytes before a record's payload: its length and hash.
const PREFIX: usize = 12;

/// Longest payload: a name as long as a topic's, in which JSON may escape each byte, and some numbers.
const PAYLOAD_MAX: usize = 6 * crate::model::NAME_MAX + 256;

/// Maximum writes that wait for the disk.
const QUEUE_MAX: usize = 1_024;

/// Records in the file above which it is written anew with the revocations in effect.
const RECORDS_MAX: usize = 2 * REVOCATIONS_MAX;

/// The result of a write, once it is synced.
pub(crate) type RevocationStored = oneshot::Receiver<Result<(), String>>;

/// Revocations that a write adds.
struct RevocationWrite {
    records: Vec<u8>,
    count: usize,
    done: oneshot::Sender<Result<(), String>>,
}

/// Queue to the file's task.
#[derive(Debug)]
pub(super) struct RevocationFile {
    writes: Mutex<Option<Sender<RevocationWrite>>>,
    task: Mutex<Option<Task>>,
    /// Another process appends to the file, too: it is not replaced.
    is_shared: Arc<AtomicBool>,
}

impl RevocationFile {
    /// Reads a directory's file into `revocations`, and starts the task. A predecessor process appends to the file
    /// meanwhile; then it is not written anew.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub(super) fn open(
        directory: &Path,
        revocations: &Arc<Revocations>,
        has_predecessor: bool,
        background: &Background,
    ) -> Result<Self, HubError> {
        let path = directory.join(NAME);
        let fault = |error: io::Error| HubError::file(&path, error);
        let mut records = 0;
        let damaged_at = read(&path, |revocation| {
            records += 1;
            revocations.insert(&revocation);
        })
        .map_err(fault)?;
        if let Some(at) = damaged_at.filter(|_| !has_predecessor) {
            let path = path.display();
            tracing::error!(%path, at, "a revocation is incomplete or damaged: it and later ones are lost");
        }
        // A predecessor from an earlier version has none.
        if !has_predecessor || !path.exists() {
            write_anew(&path, &revocations.all()).map_err(fault)?;
            records = revocations.all().len();
        }
        let (writes, receiver) = channel(QUEUE_MAX);
        let is_shared = Arc::new(AtomicBool::new(has_predecessor));
        let writer = RevocationWriter {
            path: path.clone(),
            revocations: Arc::downgrade(revocations),
            records: AtomicUsize::new(records),
            is_incomplete: AtomicBool::new(false),
            is_shared: Arc::clone(&is_shared),
        };
        let task = background.spawn("revocations", run(Arc::new(writer), receiver)).map_err(fault)?;
        Ok(Self { writes: Mutex::new(Some(writes)), task: Mutex::new(Some(task)), is_shared })
    }

    /// Appends revocations.
    ///
    /// # Errors
    /// The queue is full.
    pub(super) fn append(&self, revocations: &[Revocation]) -> Result<RevocationStored, String> {
        let (done, stored) = oneshot::channel();
        let records = revocations.iter().flat_map(record).collect();
        let write = RevocationWrite { records, count: revocations.len(), done };
        let writes = lock(&self.writes);
        let Some(queue) = &*writes else { return Err("the server is shutting down".to_owned()) };
        match queue.try_send(write) {
            Ok(()) => Ok(stored),
            Err(TrySendError::Full(_)) => {
                Err(format!("queue of revocations for the disk is full (limit {QUEUE_MAX})"))
            }
            Err(TrySendError::Closed(_)) => Err("the task of revocations has ended".to_owned()),
        }
    }

    /// Sets whether another process appends to the file.
    pub(super) fn set_shared(&self, is_shared: bool) {
        self.is_shared.store(is_shared, Ordering::Release);
    }

    /// Waits until all revocations are stored, and ends the task.
    pub(super) fn close(&self) {
        *lock(&self.writes) = None;
        if let Some(task) = lock(&self.task).take() {
            task.wait();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

/// The task's side.
struct RevocationWriter {
    path: PathBuf,
    revocations: std::sync::Weak<Revocations>,
    /// Records in the file.
    records: AtomicUsize,
    /// A write has failed, and may have left a partial record.
    is_incomplete: AtomicBool,
    is_shared: Arc<AtomicBool>,
}

/// Stores revocations until the file is closed.
async fn run(writer: Arc<RevocationWriter>, mut writes: Receiver<RevocationWrite>) {
    let mut waiting = Vec::new();
    while writes.recv_many(&mut waiting, QUEUE_MAX).await > 0 {
        let (writer, all) = (Arc::clone(&writer), std::mem::take(&mut waiting));
        // The requests of a write that has panicked see the end of their senders.
        let _ = spawn_blocking(move || writer.store(all)).await;
    }
}

impl RevocationWriter {
    /// Stores revocations, which share a sync.
    fn store(&self, all: Vec<RevocationWrite>) {
        let written = self.write(&all).map_err(|error| format!("{}: {error}", self.path.display()));
        if let Err(error) = &written {
            tracing::error!("revocations cannot be stored: {error}");
        }
        for write in all {
            // The request may have ended.
            let _ = write.done.send(written.clone());
        }
    }

    fn write(&self, all: &[RevocationWrite]) -> io::Result<()> {
        let is_large = self.records.load(Ordering::Relaxed) > RECORDS_MAX;
        let is_replaced = is_large && !self.is_shared.load(Ordering::Acquire);
        if let Some(revocations) = self.revocations.upgrade()
            && (is_replaced || self.is_incomplete.load(Ordering::Relaxed))
        {
            // The revocations of these writes are in effect already.
            let all = revocations.all();
            write_anew(&self.path, &all)?;
            self.is_incomplete.store(false, Ordering::Relaxed);
            self.records.store(all.len(), Ordering::Relaxed);
            return Ok(());
        }
        let records: Vec<u8> = all.iter().flat_map(|write| &write.records).copied().collect();
        // Opened anew: another process may have replaced the file.
        let file = OpenOptions::new().append(true).open(&self.path);
        let appended = file.and_then(|mut file| {
            file.write_all(&records)?;
            file.sync_data()
        });
        self.is_incomplete.store(appended.is_err(), Ordering::Relaxed);
        self.records.fetch_add(all.iter().map(|write| write.count).sum(), Ordering::Relaxed);
        appended
    }
}

/// Encodes a record.
fn record(revocation: &Revocation) -> Vec<u8> {
    // A struct with texts and numbers can always be encoded, and names are shorter than 4 GiB.
    let payload = serde_json::to_vec(revocation).unwrap_or_default();
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    [&length.to_le_bytes(), &hash(&payload)[..], &payload].concat()
}

fn hash(payload: &[u8]) -> [u8; 8] {
    let whole = digest(&SHA256, payload);
    whole.as_ref().first_chunk().copied().unwrap_or_default()
}

/// Reads a file's records. Returns the position of an incomplete or damaged record, which ends the reading.
fn read(path: &Path, mut each: impl FnMut(Revocation)) -> io::Result<Option<u64>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut input = BufReader::new(file);
    let mut head = Vec::new();
    input.by_ref().take(HEAD.len() as u64).read_to_end(&mut head)?;
    if head != HEAD {
        let text = "it is no file of revocations of this version: move it away";
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    let mut at = HEAD.len() as u64;
    loop {
        let mut prefix = Vec::new();
        input.by_ref().take(PREFIX as u64).read_to_end(&mut prefix)?;
        if prefix.is_empty() {
            return Ok(None);
        }
        let Some(([length @ .., _, _, _, _, _, _, _, _], _)) = prefix.split_first_chunk::<PREFIX>() else {
            return Ok(Some(at));
        };
        let length = length.first_chunk().map_or(0, |length| u32::from_le_bytes(*length)) as usize;
        if length > PAYLOAD_MAX {
            return Ok(Some(at));
        }
        let mut payload = Vec::new();
        input.by_ref().take(length as u64).read_to_end(&mut payload)?;
        if payload.len() < length || hash(&payload) != prefix[4..] {
            return Ok(Some(at));
        }
        let Ok(revocation) = serde_json::from_slice(&payload) else { return Ok(Some(at)) };
        each(revocation);
        at += (PREFIX + length) as u64;
    }
}

/// Replaces the file: after a crash, it is the former file or the new one.
fn write_anew(path: &Path, all: &[Revocation]) -> io::Result<()> {
    let temporary = path.with_extension("new");
    let mut file = File::create(&temporary)?;
    let records: Vec<u8> = all.iter().flat_map(record).collect();
    file.write_all(HEAD)?;
    file.write_all(&records)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    match path.parent() {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;
    use std::thread;

    use super::*;
    use crate::access::auth::revocations::{RevokedTokens, now};

    static BACKGROUND: LazyLock<Background> = LazyLock::new(Background::default);

    fn open(directory: &Path, has_predecessor: bool) -> Arc<Revocations> {
        let revocations = Arc::new(Revocations::default());
        revocations.store_in(directory, has_predecessor, &BACKGROUND).unwrap();
        revocations
    }

    fn revoke(revocations: &Revocations, id: &str) {
        let revocation = Revocation::new(RevokedTokens::WithId(id.into()), now() + 60.0);
        let stored = revocations.revoke_all(&[revocation]).1.unwrap();
        assert_eq!(futures_executor(stored), Ok(()));
    }

    /// Returns a write's result, which arrives from the file's task.
    fn futures_executor(stored: Option<RevocationStored>) -> Result<(), String> {
        let mut stored = stored.expect("a file");
        loop {
            if let Some(result) = stored.try_recv().expect("a result") {
                return result;
            }
            thread::yield_now();
        }
    }

    fn ids(revocations: &Revocations) -> Vec<String> {
        let mut ids: Vec<String> =
            revocations.all().into_iter().map(|one| format!("{:?}", one.tokens)).collect();
        ids.sort();
        ids
    }

    #[test]
    fn revocations_survive_a_restart_whatever_their_names() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let first = open(path, false);
        // A name with the bytes of a record revokes nothing else.
        let forged = record(&Revocation::new(RevokedTokens::WithId("forged".into()), now() + 60.0));
        let forged = String::from_utf8_lossy(&forged).into_owned();
        for id in ["a", &forged, "b\n", &"ü".repeat(100)] {
            revoke(&first, id);
        }
        let known = ids(&first);
        first.close_file();
        let second = open(path, false);
        assert_eq!(ids(&second), known);
        assert!(!known.iter().any(|id| id.contains("WithId(\"forged\")")));
        second.close_file();
    }

    #[test]
    fn incomplete_and_damaged_records_end_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let first = open(path, false);
        revoke(&first, "a");
        revoke(&first, "b");
        first.close_file();
        let file = path.join(NAME);
        let whole = fs::read(&file).unwrap();
        for end in HEAD.len()..whole.len() {
            fs::write(&file, &whole[..end]).unwrap();
            let read = open(path, false);
            assert!(ids(&read).len() < 2, "{end}");
            // The file is whole again.
            revoke(&read, "c");
            read.close_file();
            let again = open(path, false);
            assert_eq!(ids(&again), ids(&read));
            again.close_file();
        }
        for at in HEAD.len()..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&file, &damaged).unwrap();
            let read = open(path, false);
            assert!(ids(&read).len() < 2, "{at}");
            read.close_file();
        }
        fs::write(&file, "another program's file\n").unwrap();
        let error =
            Arc::new(Revocations::default()).store_in(path, false, &BACKGROUND).unwrap_err().to_string();
        assert!(error.contains("no file of revocations"), "{error}");
    }

    #[test]
    fn two_processes_append_during_a_handover() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let old = open(path, false);
        revoke(&old, "a");
        old.set_file_shared(true);
        let new = open(path, true);
        assert_eq!(ids(&new).len(), 1);
        revoke(&old, "b");
        revoke(&new, "c");
        old.close_file();
        new.close_file();
        assert_eq!(ids(&open(path, false)).len(), 3);
    }

    #[test]
    fn failed_write_is_reported_and_repaired() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("removed");
        fs::create_dir(&path).unwrap();
        let revocations = open(&path, false);
        fs::remove_dir_all(&path).unwrap();
        let revocation = Revocation::new(RevokedTokens::WithId("a".into()), now() + 60.0);
        let stored = revocations.revoke_all(&[revocation]).1.unwrap();
        assert!(futures_executor(stored).unwrap_err().contains("removed"));
        assert!(revocations.all().len() == 1, "it is in effect");
        revocations.close_file();
    }
}
