//! A simulated disk in memory that can be full, fail at any call, and lose power.
//!
//! Written bytes are visible at once, and durable after a sync. Between two syncs they may reach the disk in any order,
//! in part, or not at all; so may the names in a directory. After a failed sync, the bytes written since the last
//! successful sync can be read but never become durable unless they are rewritten, even if later syncs succeed: as with
//! Linux.

mod image;

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;

use super::{DirectoryLock, Disk, DiskFile, Lock};
use image::{DirEntry, DirNode, FileChange, FileNode, ImageKind, apply};

pub(crate) use image::SimRng;

/// A fault to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskFault {
    /// A short write.
    Short,
    /// The disk has this many bytes left.
    NoSpace(u64),
    /// One I/O operation fails.
    Failure,
    /// A quota is exceeded, once.
    Shortage,
    /// The disk is full, once: a sync fails although space was promised before.
    Full,
    /// The process ends during the call.
    Crash,
}

/// State of the disk after the process has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CrashKind {
    /// The operating system keeps running.
    Kill,
    /// The machine has lost power.
    PowerLoss,
}

#[derive(Clone)]
pub(crate) struct SimulatedDisk(Arc<Mutex<DiskState>>);

struct DiskState {
    nodes: Vec<FileNode>,
    dirs: BTreeMap<PathBuf, DirNode>,
    /// Directory renames since the last sync of their directory.
    moves: Vec<(PathBuf, PathBuf)>,
    calls: u64,
    syncs: u64,
    /// Bytes returned by reads.
    bytes_read: u64,
    faults: BTreeMap<u64, DiskFault>,
    /// Action to run just before a call.
    run_before: Option<(u64, Action)>,
    free_space: Option<u64>,
    crashed: bool,
    locked: bool,
    /// The path of the lock leads to another file.
    is_lock_replaced: bool,
    /// No file and no directory can be opened.
    lacks_descriptors: bool,
    chance: SimRng,
}

type Action = Box<dyn FnOnce() + Send>;

impl SimulatedDisk {
    pub(crate) fn new(seed: u64) -> Self {
        let state = DiskState {
            nodes: Vec::new(),
            dirs: [(PathBuf::from("/"), DirNode::default())].into(),
            moves: Vec::new(),
            calls: 0,
            syncs: 0,
            bytes_read: 0,
            faults: BTreeMap::new(),
            run_before: None,
            free_space: None,
            crashed: false,
            locked: false,
            is_lock_replaced: false,
            lacks_descriptors: false,
            chance: SimRng::new(seed),
        };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Injects a fault at the call with this number from now.
    pub(crate) fn plan(&self, calls: u64, fault: DiskFault) {
        let mut state = self.state();
        let at = state.calls + calls;
        state.faults.insert(at, fault);
    }

    /// Runs an action just before the call with this number from now.
    pub(crate) fn run_before(&self, calls: u64, what: impl FnOnce() + Send + 'static) {
        let mut state = self.state();
        state.run_before = Some((state.calls + calls, Box::new(what)));
    }

    pub(crate) fn has_crashed(&self) -> bool {
        self.state().crashed
    }

    /// Makes the path of the lock lead to another file.
    pub(crate) fn replace_lock(&self) {
        self.state().is_lock_replaced = true;
    }

    /// Sets the free bytes.
    pub(crate) fn set_free_space(&self, free_space: Option<u64>) {
        self.state().free_space = free_space;
    }

    /// Makes each call that needs a descriptor fail with EMFILE.
    pub(crate) fn set_lacks_descriptors(&self, lacks: bool) {
        self.state().lacks_descriptors = lacks;
    }

    /// Calls so far that changed the disk.
    pub(crate) fn calls(&self) -> u64 {
        self.state().calls
    }

    /// File and directory syncs so far.
    pub(crate) fn syncs(&self) -> u64 {
        self.state().syncs
    }

    /// Bytes read so far.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.state().bytes_read
    }

    /// Changes a byte of a file without the log's knowledge.
    pub(crate) fn damage(&self, path: &str, at: usize) {
        let mut state = self.state();
        let Some(DirEntry::File(node)) = state.find(Path::new(path)) else { panic!("{path}") };
        for image in [ImageKind::Seen, ImageKind::Durable] {
            if let Some(byte) = state.nodes[node].image(image).get_mut(at) {
                *byte ^= 0x10;
            }
        }
    }

    /// The files in a directory, with their lengths.
    pub(crate) fn files(&self, dir: &str) -> Vec<(String, usize)> {
        let state = self.state();
        let names = state.dirs[Path::new(dir)].seen.iter();
        let files = names.filter_map(|(name, entry)| match entry {
            DirEntry::File(node) => Some((name.clone(), state.nodes[*node].seen.len())),
            DirEntry::Directory => None,
        });
        files.collect()
    }

    /// The disk as the next process finds it.
    pub(crate) fn after(&self, after: CrashKind) -> Self {
        let mut state = self.state();
        let mut chance = SimRng::new(state.chance.below(u64::MAX));
        let (mut nodes, mut dirs) = (state.nodes.clone(), state.dirs.clone());
        if after == CrashKind::PowerLoss {
            nodes.iter_mut().for_each(|node| node.lose_power(&mut chance));
            dirs.values_mut().for_each(|dir| dir.lose_power(&mut chance));
            for (from, to) in state.moves.iter().rev() {
                let (parent, name) = split(from);
                if dirs.get(parent).is_some_and(|dir| dir.seen.contains_key(&name)) {
                    move_dirs(&mut dirs, to, from);
                }
            }
            // A directory whose removal is not durable still exists, and is empty.
            let entry: Vec<PathBuf> = dirs
                .iter()
                .flat_map(|(path, dir)| dir.seen.iter().map(move |(name, entry)| (path.join(name), *entry)))
                .filter_map(|(path, entry)| (entry == DirEntry::Directory).then_some(path))
                .collect();
            entry.into_iter().for_each(|path| {
                dirs.entry(path).or_default();
            });
            let there: Vec<PathBuf> = dirs.keys().cloned().collect();
            for path in there {
                let mut above = path.ancestors().zip(path.ancestors().skip(1));
                let is_reachable = above.all(|(path, parent)| {
                    let name = path.file_name().unwrap().to_str().unwrap();
                    dirs.get(parent).is_some_and(|dir| dir.seen.get(name) == Some(&DirEntry::Directory))
                });
                if !is_reachable {
                    dirs.remove(&path);
                }
            }
        }
        let state = DiskState {
            nodes,
            dirs,
            moves: Vec::new(),
            calls: 0,
            syncs: 0,
            bytes_read: 0,
            faults: BTreeMap::new(),
            run_before: None,
            free_space: None,
            crashed: false,
            locked: false,
            is_lock_replaced: false,
            lacks_descriptors: false,
            chance,
        };
        Self(Arc::new(Mutex::new(state)))
    }

    fn state(&self) -> MutexGuard<'_, DiskState> {
        self.0.lock().unwrap()
    }

    /// Locks the world for a call that changes it, and runs a due action.
    fn changing(&self) -> MutexGuard<'_, DiskState> {
        let mut state = self.state();
        let next = state.calls + 1;
        if let Some((_, what)) = state.run_before.take_if(|(at, _)| *at == next) {
            drop(state);
            what();
            state = self.state();
        }
        state
    }
}

impl DiskState {
    /// Counts one call that changes the disk. Returns the planned fault; a crash takes effect after part of the call.
    fn call(&mut self) -> io::Result<Option<DiskFault>> {
        if self.crashed {
            return Err(io::Error::other("the process has ended"));
        }
        self.calls += 1;
        let fault = self.faults.remove(&self.calls);
        match fault {
            Some(DiskFault::Failure) => return Err(io::Error::from_raw_os_error(5)),
            Some(DiskFault::Shortage) => return Err(io::ErrorKind::QuotaExceeded.into()),
            Some(DiskFault::Full) => return Err(io::ErrorKind::StorageFull.into()),
            Some(DiskFault::NoSpace(free_space)) => self.free_space = Some(free_space),
            Some(DiskFault::Crash) => self.crashed = true,
            Some(DiskFault::Short) | None => {}
        }
        Ok(fault)
    }

    /// A call that is applied as a whole or not at all.
    fn whole_call(&mut self) -> io::Result<()> {
        let crash = self.call()? == Some(DiskFault::Crash);
        if crash && self.chance.one_in(2) { Err(io::Error::other("the process has ended")) } else { Ok(()) }
    }

    /// Takes a descriptor for the time of a call.
    fn descriptor(&self) -> io::Result<()> {
        if self.lacks_descriptors { Err(io::Error::from_raw_os_error(24)) } else { Ok(()) }
    }

    fn dir(&mut self, path: &Path) -> io::Result<&mut DirNode> {
        self.dirs.get_mut(path).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn find(&self, path: &Path) -> Option<DirEntry> {
        let (dir, name) = split(path);
        self.dirs.get(dir)?.seen.get(&name).copied()
    }
}

/// Moves the directories at and below a path to another path.
fn move_dirs(dirs: &mut BTreeMap<PathBuf, DirNode>, from: &Path, to: &Path) {
    let below: Vec<PathBuf> = dirs.keys().filter(|path| path.starts_with(from)).cloned().collect();
    for path in below {
        let dir = dirs.remove(&path).expect("a key of the map");
        let rest = path.strip_prefix(from).expect("filtered by the prefix");
        dirs.insert(if rest.as_os_str().is_empty() { to.into() } else { to.join(rest) }, dir);
    }
}

fn split(path: &Path) -> (&Path, String) {
    (path.parent().unwrap(), path.file_name().unwrap().to_str().unwrap().to_owned())
}

impl Disk for SimulatedDisk {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.changing();
        if state.dirs.contains_key(path) {
            return Ok(());
        }
        state.whole_call()?;
        let (parent, name) = split(path);
        state.dir(parent)?.change(vec![(name, Some(DirEntry::Directory))]);
        state.dirs.insert(path.to_owned(), DirNode::default());
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut state = self.state();
        state.descriptor()?;
        Ok(state.dir(dir)?.seen.keys().cloned().collect())
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.changing();
        state.descriptor()?;
        if let Some(DirEntry::File(node)) = state.find(path) {
            return Ok(Arc::new(SimulatedFile(self.clone(), node)));
        }
        state.whole_call()?;
        if state.free_space == Some(0) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let node = state.nodes.len();
        state.nodes.push(FileNode::default());
        let (dir, name) = split(path);
        state.dir(dir)?.change(vec![(name, Some(DirEntry::File(node)))]);
        Ok(Arc::new(SimulatedFile(self.clone(), node)))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let state = self.state();
        state.descriptor()?;
        match state.find(path) {
            Some(DirEntry::File(node)) => Ok(Arc::new(SimulatedFile(self.clone(), node))),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.changing();
        state.whole_call()?;
        let entry = state.find(from).ok_or(io::ErrorKind::NotFound)?;
        let ((dir, from_name), (_, to_name)) = (split(from), split(to));
        state.dir(dir)?.change(vec![(from_name, None), (to_name, Some(entry))]);
        if entry == DirEntry::Directory {
            state.moves.push((from.to_owned(), to.to_owned()));
            move_dirs(&mut state.dirs, from, to);
        }
        Ok(())
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.changing();
        state.whole_call()?;
        if !state.dir(path)?.seen.is_empty() {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        state.dirs.remove(path);
        let (dir, name) = split(path);
        state.dir(dir)?.change(vec![(name, None)]);
        Ok(())
    }

    fn is_dir(&self, path: &Path) -> bool {
        self.state().find(path) == Some(DirEntry::Directory)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.changing();
        state.whole_call()?;
        state.find(path).ok_or(io::ErrorKind::NotFound)?;
        let (dir, name) = split(path);
        state.dir(dir)?.change(vec![(name, None)]);
        Ok(())
    }

    fn rewrite(&self, path: &Path, from: u64) -> io::Result<()> {
        let mut state = self.changing();
        state.descriptor()?;
        let Some(DirEntry::File(node)) = state.find(path) else { return Err(io::ErrorKind::NotFound.into()) };
        let has_crashed = state.call()? == Some(DiskFault::Crash);
        let mut bytes = state.nodes[node].seen.get(from as usize..).unwrap_or_default().to_vec();
        if has_crashed {
            let most = state.chance.below(bytes.len() as u64 + 1);
            bytes.truncate(most as usize);
        }
        state.nodes[node].change(FileChange::Write(from as usize, bytes));
        drop(state);
        if has_crashed {
            return Err(io::Error::other("the process has ended"));
        }
        SimulatedFile(self.clone(), node).sync()
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.changing();
        state.descriptor()?;
        state.syncs += 1;
        state.whole_call()?;
        let dir = state.dir(path)?;
        for change in std::mem::take(&mut dir.changes) {
            apply(&mut dir.durable, &change);
        }
        state.moves.retain(|(from, _)| from.parent() != Some(path));
        Ok(())
    }

    fn lock(&self, _: &Path) -> io::Result<Option<Lock>> {
        struct SimulatedLock(SimulatedDisk);
        impl Drop for SimulatedLock {
            fn drop(&mut self) {
                self.0.state().locked = false;
            }
        }
        impl DirectoryLock for SimulatedLock {
            fn is_replaced(&self) -> bool {
                self.0.state().is_lock_replaced
            }
        }
        let was_locked = std::mem::replace(&mut self.state().locked, true);
        Ok((!was_locked).then(|| Arc::new(SimulatedLock(self.clone())) as Lock))
    }
}

struct SimulatedFile(SimulatedDisk, usize);

impl DiskFile for SimulatedFile {
    fn append(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut state = self.0.changing();
        let fault = state.call()?;
        let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
        let mut most = bytes.len() as u64;
        if matches!(fault, Some(DiskFault::Short | DiskFault::Crash)) {
            most = state.chance.below(most + 1).max(u64::from(fault == Some(DiskFault::Short)));
        }
        if let Some(free_space) = &mut state.free_space {
            most = most.min(*free_space);
            *free_space -= most;
            if most == 0 && !bytes.is_empty() {
                return Err(io::ErrorKind::StorageFull.into());
            }
        }
        let node = &mut state.nodes[self.1];
        let at = node.seen.len();
        node.change(FileChange::Write(at, bytes[..most as usize].to_vec()));
        if fault == Some(DiskFault::Crash) {
            Err(io::Error::other("the process has ended"))
        } else {
            Ok(most as usize)
        }
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.0.changing();
        state.syncs += 1;
        let result = state.whole_call();
        let mut chance = state.chance.clone();
        let has_crashed = state.crashed;
        let node = &mut state.nodes[self.1];
        match &result {
            Ok(()) => {
                let changes = std::mem::take(&mut node.changes);
                changes.iter().for_each(|change| change.apply(&mut node.durable));
            }
            // The pages count as written, though some are not.
            Err(_) if !has_crashed => {
                let seen = node.seen.clone();
                node.lose_power(&mut chance);
                node.seen = seen;
            }
            Err(_) => {}
        }
        result
    }

    fn truncate(&self, bytes: u64) -> io::Result<()> {
        let mut state = self.0.changing();
        if state.nodes[self.1].seen.len() as u64 <= bytes {
            return Ok(());
        }
        state.whole_call()?;
        state.nodes[self.1].change(FileChange::Truncate(bytes as usize));
        Ok(())
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.0.state().nodes[self.1].seen.len() as u64)
    }

    fn read_shared(&self, range: Range<u64>) -> io::Result<Bytes> {
        let mut state = self.0.state();
        let seen = &state.nodes[self.1].seen;
        let part = seen.get(range.start as usize..range.end as usize).ok_or(io::ErrorKind::UnexpectedEof)?;
        let bytes_read = Bytes::copy_from_slice(part);
        state.bytes_read += bytes_read.len() as u64;
        Ok(bytes_read)
    }
}
