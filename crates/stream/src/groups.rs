//! Committed offsets of consumer groups: a small log for each stream, rewritten when most of it is obsolete.

mod file;
mod sync;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::catalog::GroupOffsets;
use crate::disk::{self, Disk, DiskFile, append_all, is_shortage};
use crate::pending::Completer;
use crate::writer::{WorkUnit, WriterPool};
use crate::{AppendError, CommitError, Durability, Fsync, Loss, OpenError, Pending, StreamConfig};

/// Each group's offsets, by partition.
type Offsets = BTreeMap<Box<str>, BTreeMap<u32, CommittedOffset>>;

/// A committed offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CommittedOffset {
    offset: u64,
    /// The file was damaged behind this commit: a later commit may be lost.
    is_doubtful: bool,
}

impl CommittedOffset {
    fn mark_certain(&mut self) {
        self.is_doubtful = false;
    }

    fn mark_doubtful(&mut self) {
        self.is_doubtful = true;
    }
}

/// Pending changes: the last value for each group and partition. None: the offset is removed.
type Changes = HashMap<(Box<str>, u32), Option<u64>>;

/// A pending change.
type Change = ((Box<str>, u32), Option<u64>);

/// A stream's group offsets.
pub(crate) struct ConsumerGroups {
    stream: Arc<str>,
    dir: PathBuf,
    pool: Arc<WriterPool>,
    state: Mutex<State>,
}

struct State {
    fsync: Fsync,
    file: Arc<dyn DiskFile>,
    /// Bytes of the file.
    end: u64,
    /// The tag of the file.
    tag: file::Tag,
    /// Length of the file above which compaction is considered.
    compact_at: u64,
    offsets: Offsets,
    /// Time since which group offsets may be missing because the file was damaged, in microseconds since 1970.
    doubt: Option<u64>,
    changes: Changes,
    /// Changes that are being written.
    in_flight: Changes,
    /// Completers of the pending changes.
    waiters: CommitWaiters,
    /// The file was renamed, and its directory is not synced yet.
    needs_dir_sync: bool,
    busy: bool,
    /// Time since which some written bytes are not synced, in microseconds since 1970.
    dirty_since: Option<u64>,
    /// The file is outdated, or a sync has found no space: the system may count its pages as written, so the file is
    /// rewritten in place of a sync.
    needs_rewrite: bool,
    /// Time before which no sync is tried, after one that found no space.
    retry_at: u64,
    closed: bool,
    failed: Option<Arc<str>>,
}

/// Result of opening a stream's group offsets.
pub(crate) struct OpenedGroups {
    pub(crate) groups: Arc<ConsumerGroups>,
    pub(crate) losses: Vec<Loss>,
    /// Whether the file is as the last close left it.
    pub(crate) is_clean: bool,
}

/// Completers with the offset whose commit they report.
type CommitWaiters = Vec<(Completer, u64)>;

/// Changes being written.
struct OffsetsWrite {
    file: Arc<dyn DiskFile>,
    start: u64,
    end: u64,
    pieces: Vec<Bytes>,
    waiters: CommitWaiters,
    sync: bool,
    /// All earlier bytes are synced.
    is_first_unsynced: bool,
}

enum GroupsJob {
    Write(OffsetsWrite),
    /// Rewrites the whole file with this content, which has this tag.
    Compact(file::Tag, Vec<u8>),
    /// Makes the name of the file durable.
    SyncDir,
    /// Syncs the earlier changes.
    Sync(Arc<dyn DiskFile>),
}

pub(crate) const NAME: &str = "groups.log";

/// A shorter file is not rewritten.
const COMPACT_MIN: u64 = 256 << 10;

/// Maximum pending commits for a stream.
const PENDING_MAX: usize = 65_536;

impl ConsumerGroups {
    /// Opens the file in the stream's directory, or creates it. `clean` is the file's length at its last clean close,
    /// if there was one: then the file is durable.
    pub(crate) fn open(
        stream: Arc<str>,
        dir: PathBuf,
        pool: &Arc<WriterPool>,
        config: &StreamConfig,
        clean: Option<u64>,
    ) -> Result<OpenedGroups, OpenError> {
        let disk = &*pool.disk;
        let failed = |error| OpenError::Io(dir.join(NAME), error);
        let closed = clean.and_then(|bytes| cleanly_closed_file(disk, &dir, bytes));
        let mut is_clean = closed.is_some();
        let file = match closed {
            Some(file) => file,
            None => {
                let file = disk.create(&dir.join(NAME)).map_err(failed)?;
                disk.sync_dir(&dir).map_err(failed)?;
                file
            }
        };
        let bytes = file.read_shared(0..file.bytes().map_err(failed)?).map_err(failed)?;
        let path = dir.join(NAME);
        let found = file::read(&bytes, (pool.clock)()).map_err(|file::NewerVersion| {
            OpenError::Unknown(path.clone(), "was written by a newer version".into())
        })?;
        let new_tag = file::random_tag().map_err(failed)?;
        let (mut file, mut end, mut tag) = (file, bytes.len() as u64, found.tag.unwrap_or(new_tag));
        drop(bytes);
        let replacement = replace_old(disk, &dir, &found, new_tag).map_err(failed)?;
        let needs_rewrite = found.is_outdated && replacement.is_none();
        let losses = losses(&found, &stream, &path);
        is_clean &= found.problem.is_none() && replacement.is_none();
        if let Some((new, bytes)) = replacement {
            (file, end, tag) = (new, bytes, new_tag);
        }
        if !is_clean {
            // A killed process may have left offsets that it did not sync, or failed to sync. Consumers see them from
            // now on, so they must be durable.
            disk.rewrite(&dir.join(NAME), 0).map_err(failed)?;
        }
        let state = State {
            fsync: config.fsync,
            file,
            end,
            tag,
            compact_at: COMPACT_MIN,
            offsets: found.offsets,
            doubt: found.doubt,
            changes: Changes::new(),
            in_flight: Changes::new(),
            waiters: Vec::new(),
            needs_dir_sync: false,
            busy: false,
            dirty_since: None,
            needs_rewrite,
            retry_at: 0,
            closed: false,
            failed: None,
        };
        let groups = Arc::new(Self { stream, dir, pool: pool.clone(), state: Mutex::new(state) });
        Ok(OpenedGroups { groups, losses, is_clean })
    }

    /// The file's length, if it was closed and is fully durable.
    pub(crate) fn clean_bytes(&self) -> Option<u64> {
        let state = self.state();
        let is_clean = state.closed && state.failed.is_none() && !state.needs_dir_sync;
        let is_clean = is_clean && state.dirty_since.is_none();
        is_clean.then_some(state.end)
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let state = self.state();
        let stored = state.offsets.iter().filter(|(_, offsets)| !offsets.is_empty());
        stored.map(|(name, _)| name.to_string()).collect()
    }

    /// The groups with their offsets, by name.
    pub(crate) fn all(&self) -> Vec<GroupOffsets> {
        let state = self.state();
        let stored = state.offsets.iter().filter(|(_, offsets)| !offsets.is_empty());
        let offsets = stored.map(|(name, offsets)| {
            (name.clone(), offsets.iter().map(|(number, stored)| (*number, stored.offset)).collect())
        });
        offsets.collect()
    }

    pub(crate) fn committed(&self, group: &str, partition: u32) -> Option<u64> {
        Some(self.state().offsets.get(group)?.get(&partition)?.offset)
    }

    /// Whether a commit for this group and partition may have been lost with a damaged part of the file.
    pub(crate) fn is_doubtful(&self, group: &str, partition: u32) -> bool {
        let state = self.state();
        let stored = state.offsets.get(group).and_then(|stored| stored.get(&partition));
        stored.map_or_else(|| state.doubt.is_some(), |stored| stored.is_doubtful)
    }

    pub(crate) fn commit(
        self: &Arc<Self>,
        group: &str,
        partition: u32,
        offset: u64,
    ) -> Result<Pending, CommitError> {
        if group.is_empty() || group.len() > usize::from(u8::MAX) || group.chars().any(char::is_control) {
            return Err(CommitError::Name);
        }
        let mut state = self.state();
        if !state.offsets.contains_key(group) {
            if state.offsets.len() >= self.pool.limits.max_groups {
                return Err(CommitError::TooMany);
            }
            // Reserves the group's slot; it has no offset until that is stored.
            state.offsets.insert(group.into(), BTreeMap::new());
        }
        let offset = offset.min(file::REMOVED - 1);
        self.change(state, [((group.into(), partition), Some(offset))].into(), offset)
            .map_err(CommitError::Append)
    }

    pub(crate) fn remove_group(self: &Arc<Self>, group: &str) -> Result<Option<Pending>, CommitError> {
        let state = self.state();
        let stored = state.offsets.get(group).into_iter().flat_map(|offsets| offsets.keys().copied());
        // Also removes commits that are not stored yet.
        let pending = state.in_flight.keys().chain(state.changes.keys());
        let pending = pending.filter(|(name, _)| **name == *group).map(|(_, partition)| *partition);
        let changes: Changes =
            stored.chain(pending).map(|partition| ((group.into(), partition), None)).collect();
        if changes.is_empty() {
            return Ok(None);
        }
        self.change(state, changes, 0).map(Some).map_err(CommitError::Append)
    }

    fn change(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, State>,
        changes: Changes,
        offset: u64,
    ) -> Result<Pending, AppendError> {
        if state.closed {
            return Err(AppendError::Closed);
        }
        if let Some(reason) = &state.failed {
            return Err(AppendError::Failed(reason.clone()));
        }
        if state.waiters.len() >= PENDING_MAX {
            return Err(AppendError::Busy);
        }
        state.changes.extend(changes);
        let (completer, pending) = Pending::with_offset(offset, 1);
        state.waiters.push((completer, offset));
        let was_busy = std::mem::replace(&mut state.busy, true);
        drop(state);
        if !was_busy {
            self.pool.push(self.clone());
        }
        Ok(pending)
    }

    pub(crate) fn set_config(&self, config: &StreamConfig) {
        self.state().fsync = config.fsync;
    }

    /// Whether a thread writes to the file or is scheduled to.
    pub(crate) fn is_busy(&self) -> bool {
        self.state().busy
    }

    /// Reason of the failure, if the groups have failed and reject commits.
    pub(crate) fn failure(&self) -> Option<Arc<str>> {
        self.state().failed.clone()
    }

    /// Rejects further commits for good, and fails pending commits.
    pub(crate) fn fail_permanently(&self, reason: &Arc<str>) {
        self.state().failed = Some(reason.clone());
        self.fail_pending(&AppendError::Failed(reason.clone()));
    }

    /// Rejects further commits. Pending commits are still written.
    pub(crate) fn stop(&self) {
        self.state().closed = true;
    }

    /// Does one step, if work is pending.
    fn step(&self) -> bool {
        match self.begin() {
            Some(GroupsJob::Write(write)) => self.write(write),
            Some(GroupsJob::Compact(tag, content)) => self.compact(tag, &content),
            Some(GroupsJob::SyncDir) => self.sync_dir(),
            Some(GroupsJob::Sync(file)) => self.sync(&*file),
            None => return false,
        }
        true
    }

    fn begin(&self) -> Option<GroupsJob> {
        let now = (self.pool.clock)();
        let mut state = self.state();
        let is_sync_due = state.sync_is_due(now);
        if state.failed.is_some() || state.changes.is_empty() && !is_sync_due {
            state.busy = false;
            return None;
        }
        if state.needs_dir_sync {
            return Some(GroupsJob::SyncDir);
        }
        let is_synced = state.fsync == Fsync::Batch;
        let needs_rewrite = state.needs_rewrite && (is_synced || now >= state.retry_at);
        // Without a random number, a necessary rewrite keeps the tag: a sync may succeed without the bytes of a failed one.
        if (needs_rewrite || state.end >= state.compact_at)
            && let Some(tag) = file::random_tag().ok().or_else(|| needs_rewrite.then_some(state.tag))
        {
            let content = file::whole(tag, &state.offsets, state.doubt);
            state.compact_at = COMPACT_MIN.max(4 * content.len() as u64);
            if needs_rewrite || state.end >= state.compact_at {
                return Some(GroupsJob::Compact(tag, content));
            }
        }
        if state.changes.is_empty() {
            return Some(GroupsJob::Sync(state.file.clone()));
        }
        state.in_flight = std::mem::take(&mut state.changes);
        let entries =
            state.in_flight.iter().map(|((group, partition), offset)| (&**group, *partition, *offset));
        let mut pieces = file::chunks(state.tag, entries);
        if state.end == 0 {
            pieces.insert(0, Bytes::copy_from_slice(&file::preamble(0, state.tag)));
        }
        let write = OffsetsWrite {
            file: state.file.clone(),
            start: state.end,
            end: state.end + pieces.iter().map(|piece| piece.len() as u64).sum::<u64>(),
            pieces,
            waiters: std::mem::take(&mut state.waiters),
            sync: is_synced,
            is_first_unsynced: state.dirty_since.is_none(),
        };
        Some(GroupsJob::Write(write))
    }

    fn write(&self, write: OffsetsWrite) {
        let result = match append_all(&*write.file, &write.pieces) {
            // The file may be closed, and the shortage may be one of descriptors.
            (0, Err(error)) if is_shortage(&error) => Err(AppendError::NoSpace),
            (_, Err(error)) if is_shortage(&error) => match write.file.truncate(write.start) {
                Ok(()) => Err(AppendError::NoSpace),
                Err(error) => Err(self.fail("cutting back", &error)),
            },
            (_, Err(error)) => Err(self.fail("writing", &error)),
            (_, Ok(())) if write.sync => write.file.sync().map_err(|error| self.cut_unsynced(&write, &error)),
            (_, Ok(())) => Ok(()),
        };
        let now = (self.pool.clock)();
        let mut state = self.state();
        let changes = std::mem::take(&mut state.in_flight);
        if result.is_ok() {
            if write.sync {
                // It includes all earlier bytes.
                state.dirty_since = None;
            } else {
                state.dirty_since.get_or_insert(now);
            }
            state.end = write.end;
            store(&mut state.offsets, changes);
        }
        state.release_unused_groups();
        let late = if state.failed.is_some() { std::mem::take(&mut state.waiters) } else { Vec::new() };
        drop(state);
        for (completer, offset) in write.waiters.into_iter().chain(late) {
            match &result {
                Ok(()) => completer.reached(Durability::Broker, offset),
                Err(error) => completer.fail(error.clone()),
            }
        }
    }

    /// Cuts off changes that could not be synced, as in a partition: the next process must not see them. On a full disk, later
    /// commits go on if that is synced: the pages of the failed sync no longer belong to the file. Earlier bytes must be
    /// durable, because a second sync may succeed without those of the failed one.
    fn cut_unsynced(&self, write: &OffsetsWrite, error: &io::Error) -> AppendError {
        let cut = write.file.truncate(write.start);
        if !is_shortage(error) || !write.is_first_unsynced {
            return self.fail("syncing", error);
        }
        match cut.and_then(|()| write.file.sync()) {
            Ok(()) => AppendError::NoSpace,
            Err(error) => self.fail("cutting off offsets that could not be synced", &error),
        }
    }

    /// Rewrites the file. On failure the old file remains unchanged.
    fn compact(&self, tag: file::Tag, content: &[u8]) {
        let disk = &*self.pool.disk;
        let file = match disk::prepare(disk, &self.dir, NAME, content) {
            Ok(file) => file,
            Err(error) => return self.postpone_compaction(&error),
        };
        match disk::rename(disk, &self.dir, NAME) {
            Ok(()) => {
                let mut state = self.state();
                (state.file, state.tag) = (file, tag);
                state.end = content.len() as u64;
                (state.needs_dir_sync, state.needs_rewrite) = (true, false);
            }
            Err(error) if is_shortage(&error) => self.postpone_compaction(&error),
            Err(error) => {
                // Either file may have the name.
                let error = self.fail("rewriting the file", &error);
                self.fail_pending(&error);
            }
        }
    }

    /// Postpones the next attempt until the file has doubled.
    fn postpone_compaction(&self, error: &io::Error) {
        tracing::warn!(stream = %self.stream, %error, "offsets of groups could not be rewritten");
        let now = (self.pool.clock)();
        let mut state = self.state();
        state.compact_at *= 2;
        state.retry_at = now + sync::RETRY_AFTER_SHORTAGE;
        let needs_sync = state.needs_rewrite && state.fsync == Fsync::Batch;
        drop(state);
        if needs_sync {
            self.fail_pending(&AppendError::NoSpace);
        }
    }

    /// Fails the pending commits.
    fn fail_pending(&self, error: &AppendError) {
        let mut state = self.state();
        state.changes.clear();
        state.release_unused_groups();
        let waiters = std::mem::take(&mut state.waiters);
        drop(state);
        waiters.into_iter().for_each(|(completer, _)| completer.fail(error.clone()));
    }

    fn fail(&self, what: &str, error: &io::Error) -> AppendError {
        let reason: Arc<str> = format!("{what}: {error}").into();
        tracing::error!(stream = %self.stream, %reason, "offsets of groups can no longer be stored");
        self.state().failed = Some(reason.clone());
        AppendError::Failed(reason)
    }

    /// No code panics while holding the lock.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Releases the slots for groups without stored offsets and without pending commits.
    fn release_unused_groups(&mut self) {
        let changes = &self.changes;
        let wants = |name: &str| changes.keys().any(|(group, _)| **group == *name);
        self.offsets.retain(|name, stored| !stored.is_empty() || wants(name));
    }
}

impl WorkUnit for ConsumerGroups {
    fn work(self: Arc<Self>) -> bool {
        self.step()
    }

    fn tick(&self, now: u64) -> bool {
        let mut state = self.state();
        let is_due = state.sync_is_due(now) && state.failed.is_none() && !state.closed;
        is_due && !std::mem::replace(&mut state.busy, true)
    }

    fn release_unused(&self) {}
}

/// Replaces a file that is stale or outdated. Returns the new file and its length. On a full disk, an outdated file
/// remains.
fn replace_old(
    disk: &dyn Disk,
    dir: &Path,
    found: &file::GroupsFile,
    tag: file::Tag,
) -> io::Result<Option<(Arc<dyn DiskFile>, u64)>> {
    if !found.is_stale && !found.is_outdated {
        return Ok(None);
    }
    let content = file::whole(tag, &found.offsets, found.doubt);
    match disk::prepare(disk, dir, NAME, &content) {
        Err(error) if is_shortage(&error) && !found.is_stale => return Ok(None),
        prepared => prepared?,
    };
    disk::rename(disk, dir, NAME)?;
    disk.sync_dir(dir)?;
    Ok(Some((disk.open(&dir.join(NAME))?, content.len() as u64)))
}

/// The loss of committed offsets, if any. Damage without a loss is logged.
fn losses(found: &file::GroupsFile, stream: &str, path: &Path) -> Vec<Loss> {
    let Some(problem) = &found.problem else { return Vec::new() };
    let (reason, bytes) = (format!("{}: {problem}", path.display()), found.lost as u64);
    if bytes > 0 {
        return vec![Loss { stream: stream.to_owned(), partition: None, offset: 0, bytes, reason }];
    }
    tracing::warn!(%stream, "committed offsets repaired: {reason}");
    Vec::new()
}

/// The file, if it is as long as at its last close.
fn cleanly_closed_file(disk: &dyn Disk, dir: &Path, bytes: u64) -> Option<Arc<dyn DiskFile>> {
    let file = disk.open(&dir.join(NAME)).ok()?;
    file.bytes().is_ok_and(|found| found == bytes).then_some(file)
}

fn store(offsets: &mut Offsets, changes: impl IntoIterator<Item = Change>) {
    for ((group, partition), offset) in changes {
        let stored = offsets.entry(group).or_default();
        match offset {
            Some(offset) => stored.insert(partition, CommittedOffset { offset, is_doubtful: false }),
            None => stored.remove(&partition),
        };
    }
}
