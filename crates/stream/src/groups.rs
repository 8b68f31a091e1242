//! Where groups of consumers go on: a small log of its own for each stream, written anew when most of it is old.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::disk::{self, File, append_all, is_shortage};
use crate::pending::Completer;
use crate::record::{self, BatchHeader, Kind, Malformed, RecordBuilder};
use crate::writer::{Pool, Work};
use crate::{AppendError, CommitError, Durability, Fsync, Loss, OpenError, Pending, StreamConfig};

/// Offsets of each group, by partition.
type Offsets = BTreeMap<Box<str>, BTreeMap<u32, u64>>;

/// What changes: the last word of each group and partition. None: it is forgotten.
type Changes = HashMap<(Box<str>, u32), Option<u64>>;

/// One of them.
type Change = ((Box<str>, u32), Option<u64>);

/// The offsets of a stream's groups.
pub(crate) struct Groups {
    stream: Arc<str>,
    dir: PathBuf,
    pool: Arc<Pool>,
    state: Mutex<State>,
}

struct State {
    fsync: Fsync,
    file: Arc<dyn File>,
    end: Position,
    /// How long the file may be before it is looked whether most of it is old.
    compact_at: u64,
    offsets: Offsets,
    changes: Changes,
    /// Changes on their way to the disk.
    under_way: Changes,
    /// Who waits for the changes.
    waiting: Waiting,
    /// The file has been given its name, and the disk has not said yet that it keeps that.
    is_unsettled: bool,
    busy: bool,
    closed: bool,
    failed: Option<Arc<str>>,
}

/// The end of the file: its length; and the records in it, and when the last were written, both of which a batch's
/// header wants to grow.
#[derive(Clone, Copy, Default)]
struct Position {
    bytes: u64,
    next: u64,
    time: u64,
}

/// Who waits, and for which offset to be stored.
type Waiting = Vec<(Completer, u64)>;

/// Changes on their way.
struct Write {
    file: Arc<dyn File>,
    start: u64,
    end: Position,
    pieces: Vec<Bytes>,
    waiting: Waiting,
    sync: bool,
}

enum Job {
    Write(Write),
    /// Everything that is known, as the whole file.
    Compact(Vec<u8>),
    /// The name of the file is to be made durable.
    Settle,
}

const NAME: &str = "groups.log";

/// A file below this is not written anew.
const COMPACT_LEAST: u64 = 256 << 10;

/// Commits of a stream that may wait to be written.
const WAITING_MAX: usize = 65_536;

/// What stands for an offset that is forgotten.
const FORGOTTEN: u64 = u64::MAX;

impl Groups {
    /// Opens what is in the stream's directory, or begins it.
    pub(crate) fn open(
        stream: Arc<str>,
        dir: PathBuf,
        pool: &Arc<Pool>,
        config: &StreamConfig,
    ) -> Result<(Arc<Self>, Vec<Loss>), OpenError> {
        let disk = &*pool.disk;
        let failed = |error| OpenError::Io(dir.join(NAME), error);
        let file = disk.create(&dir.join(NAME)).map_err(failed)?;
        disk.sync_dir(&dir).map_err(failed)?;
        let bytes = file.lend(0..file.bytes().map_err(failed)?).map_err(failed)?;
        let mut offsets = Offsets::new();
        let found = apply(&bytes, &mut offsets);
        let mut losses = Vec::new();
        let (mut file, mut end) = (file, position(&bytes[..found.right]));
        if let Some(wrong) = found.wrong {
            let path = dir.join(NAME);
            if wrong == Malformed::Reserved {
                return Err(OpenError::Unknown(path, "was written by a newer version".into()));
            }
            let how = if found.goes_on { "written anew without it" } else { "cut off" };
            let why = format!("{}: {wrong} at byte {}; {how}", path.display(), found.right);
            let lost = (bytes.len() - found.right) as u64;
            losses.push(Loss { stream: stream.to_string(), partition: None, offset: 0, bytes: lost, why });
            drop(bytes);
            if found.goes_on {
                let content = content(&offsets, (pool.clock)());
                disk::replace(disk, &dir, NAME, &content).map_err(failed)?;
                file = disk.open(&path).map_err(failed)?;
                end = position(&content);
            } else {
                file.truncate(end.bytes).map_err(failed)?;
            }
        }
        // A killed process may have left offsets that it did not sync, or failed to sync. Consumers are told them from now
        // on, so they must be durable.
        disk.rewrite(&dir.join(NAME), 0).map_err(failed)?;
        let state = State {
            fsync: config.fsync,
            file,
            end,
            compact_at: COMPACT_LEAST,
            offsets,
            changes: Changes::new(),
            under_way: Changes::new(),
            waiting: Vec::new(),
            is_unsettled: false,
            busy: false,
            closed: false,
            failed: None,
        };
        Ok((Arc::new(Self { stream, dir, pool: pool.clone(), state: Mutex::new(state) }), losses))
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let state = self.state();
        let stored = state.offsets.iter().filter(|(_, offsets)| !offsets.is_empty());
        stored.map(|(name, _)| name.to_string()).collect()
    }

    pub(crate) fn committed(&self, group: &str, partition: u32) -> Option<u64> {
        self.state().offsets.get(group)?.get(&partition).copied()
    }

    pub(crate) fn commit(
        self: &Arc<Self>,
        group: &str,
        partition: u32,
        offset: u64,
    ) -> Result<Pending, CommitError> {
        if group.is_empty() || group.len() > usize::from(u8::MAX) {
            return Err(CommitError::Name);
        }
        let mut state = self.state();
        if !state.offsets.contains_key(group) {
            if state.offsets.len() >= self.pool.limits.max_groups {
                return Err(CommitError::TooMany);
            }
            // Its place is taken; it has no offset until that is stored.
            state.offsets.insert(group.into(), BTreeMap::new());
        }
        let offset = offset.min(FORGOTTEN - 1);
        self.change(state, [((group.into(), partition), Some(offset))].into(), offset)
            .map_err(CommitError::Append)
    }

    pub(crate) fn forget(self: &Arc<Self>, group: &str) -> Result<Option<Pending>, CommitError> {
        let state = self.state();
        let stored = state.offsets.get(group).into_iter().flat_map(|offsets| offsets.keys().copied());
        // What was committed before and is not stored yet goes, too.
        let coming = state.under_way.keys().chain(state.changes.keys());
        let coming = coming.filter(|(name, _)| **name == *group).map(|(_, partition)| *partition);
        let changes: Changes =
            stored.chain(coming).map(|partition| ((group.into(), partition), None)).collect();
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
        if let Some(why) = &state.failed {
            return Err(AppendError::Failed(why.clone()));
        }
        if state.waiting.len() >= WAITING_MAX {
            return Err(AppendError::Busy);
        }
        state.changes.extend(changes);
        let (completer, pending) = Pending::placed(offset, 1);
        state.waiting.push((completer, offset));
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

    /// Takes no more. What waits is still written.
    pub(crate) fn stop(&self) {
        self.state().closed = true;
    }

    /// Writes what came too late for the writers, which have ended, and syncs what was written.
    pub(crate) fn close(&self) {
        while self.step() {}
        let mut state = self.state();
        if state.failed.is_none()
            && let Err(error) = state.file.sync()
        {
            tracing::error!(stream = %self.stream, %error, "offsets of groups could not be synced");
            state.failed = Some(format!("syncing: {error}").into());
        }
    }

    /// Does one thing, if there is one to do.
    fn step(&self) -> bool {
        match self.begin() {
            Some(Job::Write(write)) => self.write(write),
            Some(Job::Compact(content)) => self.compact(&content),
            Some(Job::Settle) => self.settle(),
            None => return false,
        }
        true
    }

    fn begin(&self) -> Option<Job> {
        let now = (self.pool.clock)();
        let mut state = self.state();
        if state.failed.is_some() || state.changes.is_empty() {
            state.busy = false;
            return None;
        }
        if state.is_unsettled {
            return Some(Job::Settle);
        }
        if state.end.bytes >= state.compact_at {
            let content = content(&state.offsets, now);
            state.compact_at = COMPACT_LEAST.max(4 * content.len() as u64);
            if state.end.bytes >= state.compact_at {
                return Some(Job::Compact(content));
            }
        }
        state.under_way = std::mem::take(&mut state.changes);
        let entries =
            state.under_way.iter().map(|((group, partition), offset)| (&**group, *partition, *offset));
        let (pieces, end) = encode(entries, state.end, now);
        let write = Write {
            file: state.file.clone(),
            start: state.end.bytes,
            end,
            pieces,
            waiting: std::mem::take(&mut state.waiting),
            sync: state.fsync == Fsync::Batch,
        };
        Some(Job::Write(write))
    }

    fn write(&self, write: Write) {
        let result = append_all(&*write.file, &write.pieces).1;
        let result = match result {
            Err(error) if is_shortage(&error) => match write.file.truncate(write.start) {
                Ok(()) => Err(AppendError::NoSpace),
                Err(error) => Err(self.fail("cutting back", &error)),
            },
            Err(error) => Err(self.fail("writing", &error)),
            Ok(()) if write.sync => write.file.sync().map_err(|error| {
                // As a partition does: what could not be synced is not shown to the next process.
                let _ = write.file.truncate(write.start);
                self.fail("syncing", &error)
            }),
            Ok(()) => Ok(()),
        };
        let mut state = self.state();
        let changes = std::mem::take(&mut state.under_way);
        if result.is_ok() {
            state.end = write.end;
            store(&mut state.offsets, changes);
        }
        state.give_back_places();
        let late = if state.failed.is_some() { std::mem::take(&mut state.waiting) } else { Vec::new() };
        drop(state);
        for (completer, offset) in write.waiting.into_iter().chain(late) {
            match &result {
                Ok(()) => completer.reached(Durability::Broker, offset),
                Err(error) => completer.fail(error.clone()),
            }
        }
    }

    /// Writes the file anew. One that cannot be written leaves the old one as it is.
    fn compact(&self, content: &[u8]) {
        let disk = &*self.pool.disk;
        let file = match disk::prepare(disk, &self.dir, NAME, content) {
            Ok(file) => file,
            Err(error) => return self.put_off(&error),
        };
        match disk::rename(disk, &self.dir, NAME) {
            Ok(()) => {
                let mut state = self.state();
                state.file = file;
                state.end = position(content);
                state.is_unsettled = true;
            }
            Err(error) if is_shortage(&error) => self.put_off(&error),
            Err(error) => {
                // Which of both files has the name is not known.
                let error = self.fail("writing anew", &error);
                self.refuse(&error);
            }
        }
    }

    /// It is written anew when it is longer.
    fn put_off(&self, error: &io::Error) {
        tracing::warn!(stream = %self.stream, %error, "offsets of groups could not be written anew");
        self.state().compact_at *= 2;
    }

    /// Makes sure that the file which was written anew is the one that is found after a loss of power. Nothing is written
    /// to it before. If no more files can be opened, the next commit tries again.
    fn settle(&self) {
        match self.pool.disk.sync_dir(&self.dir) {
            Ok(()) => self.state().is_unsettled = false,
            Err(error) if is_shortage(&error) => self.refuse(&AppendError::NoSpace),
            Err(error) => {
                let error = self.fail("writing anew", &error);
                self.refuse(&error);
            }
        }
    }

    /// What waits is not stored.
    fn refuse(&self, error: &AppendError) {
        let mut state = self.state();
        state.changes.clear();
        state.give_back_places();
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(|(completer, _)| completer.fail(error.clone()));
    }

    fn fail(&self, what: &str, error: &io::Error) -> AppendError {
        let why: Arc<str> = format!("{what}: {error}").into();
        tracing::error!(stream = %self.stream, %why, "offsets of groups cannot be stored any more");
        self.state().failed = Some(why.clone());
        AppendError::Failed(why)
    }

    /// Nothing here panics while it is held.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Groups that have taken a place, and have stored nothing and want nothing, give it back.
    fn give_back_places(&mut self) {
        let changes = &self.changes;
        let wants = |name: &str| changes.keys().any(|(group, _)| **group == *name);
        self.offsets.retain(|name, stored| !stored.is_empty() || wants(name));
    }
}

impl Work for Groups {
    fn work(self: Arc<Self>) -> bool {
        self.step()
    }

    fn tick(&self, _: u64) -> bool {
        false
    }

    fn rest(&self) {}
}

/// The file that says all of this and nothing else.
fn content(offsets: &Offsets, now: u64) -> Vec<u8> {
    let entries = offsets.iter().flat_map(|(group, offsets)| {
        offsets.iter().map(move |(&partition, &offset)| (&**group, partition, Some(offset)))
    });
    encode(entries, Position::default(), now).0.concat()
}

/// The end of a file of this content, which is right.
fn position(content: &[u8]) -> Position {
    let bytes = content.len() as u64;
    let last = record::iter(content).filter_map(Result::ok).last();
    last.map_or_else(Position::default, |batch| Position {
        bytes,
        next: batch.header().end(),
        time: batch.header().appended,
    })
}

/// Batches of entries, and the end behind them.
fn encode<'a>(
    entries: impl Iterator<Item = (&'a str, u32, Option<u64>)>,
    mut end: Position,
    now: u64,
) -> (Vec<Bytes>, Position) {
    let time = end.time.max(now);
    let mut pieces = Vec::new();
    let mut builder = RecordBuilder::new();
    let mut finish = |builder: &mut RecordBuilder| {
        if let Some(records) = builder.finish() {
            let header = BatchHeader::plain(&records, end.next, time);
            end = Position { bytes: end.bytes + u64::from(header.length), next: header.end(), time };
            let head = Bytes::copy_from_slice(&header.encode()[..header.size()]);
            pieces.extend([head, records.into_bytes()]);
        }
    };
    for (group, partition, offset) in entries {
        let mut value = [0; 12];
        value[..4].copy_from_slice(&partition.to_le_bytes());
        value[4..].copy_from_slice(&offset.unwrap_or(FORGOTTEN).to_le_bytes());
        if builder.push(time, group.as_bytes(), &value, Kind::Bytes).is_err() {
            finish(&mut builder);
            // A name has 255 bytes at most, so that one record fits.
            let _ = builder.push(time, group.as_bytes(), &value, Kind::Bytes);
        }
    }
    finish(&mut builder);
    (pieces, end)
}

/// What a file was found to be.
struct Found {
    /// Bytes before what is wrong.
    right: usize,
    wrong: Option<Malformed>,
    /// Whether something right comes behind it.
    goes_on: bool,
}

/// Takes over what a file says, also behind what is wrong.
fn apply(bytes: &[u8], offsets: &mut Offsets) -> Found {
    let checked = record::walk(bytes, (0, 0), |_, _| ());
    store_all(offsets, &bytes[..checked.bytes]);
    let mut rest = &bytes[checked.bytes..];
    let mut goes_on = false;
    let mut next = position(&bytes[..checked.bytes]).next;
    while let Some((at, header)) = record::find_batch(rest, next) {
        next = header.end();
        let end = at + header.length as usize;
        store_all(offsets, &rest[at..end]);
        rest = &rest[end..];
        goes_on = true;
    }
    Found { right: checked.bytes, wrong: checked.wrong, goes_on }
}

fn store_all(offsets: &mut Offsets, batches: &[u8]) {
    for batch in record::iter(batches).flatten() {
        let records = batch.records().flatten();
        store(offsets, records.filter_map(|record| change(record.key, record.value)));
    }
}

/// One entry; none, if it is not ours.
fn change(group: &[u8], value: &[u8]) -> Option<Change> {
    let (partition, offset) = value.split_first_chunk::<4>()?;
    let offset = u64::from_le_bytes(offset.try_into().ok()?);
    let group = std::str::from_utf8(group).ok()?;
    Some(((group.into(), u32::from_le_bytes(*partition)), (offset != FORGOTTEN).then_some(offset)))
}

fn store(offsets: &mut Offsets, changes: impl IntoIterator<Item = Change>) {
    for ((group, partition), offset) in changes {
        let stored = offsets.entry(group).or_default();
        match offset {
            Some(offset) => stored.insert(partition, offset),
            None => stored.remove(&partition),
        };
    }
}
