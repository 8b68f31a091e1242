//! A simulated disk in memory that can be full, fail at any call, and lose power.
//!
//! Written bytes are visible at once, and durable after a sync. Between two syncs they may reach the disk in any order,
//! in part, or not at all; so may the names in a directory. After a failed sync, the bytes written since the last
//! successful sync can be read but never become durable unless they are rewritten, even if later syncs succeed: as with
//! Linux.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;

use super::{Disk, File, HeldLock, Lock};

/// Pseudo-random numbers, determined by the seed.
#[derive(Clone)]
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bf0_3635)
    }

    /// SplitMix64.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end.max(1)
    }

    pub(crate) fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }
}

/// A fault to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
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
pub(crate) enum After {
    /// The operating system keeps running.
    Kill,
    /// The machine has lost power.
    PowerLoss,
}

#[derive(Clone)]
pub(crate) struct Simulated(Arc<Mutex<World>>);

struct World {
    nodes: Vec<Node>,
    dirs: BTreeMap<PathBuf, Dir>,
    /// Renames of directories since the last sync of their directory.
    moves: Vec<(PathBuf, PathBuf)>,
    calls: u64,
    syncs: u64,
    /// Bytes returned by reads.
    lent: u64,
    faults: BTreeMap<u64, Fault>,
    /// Action to run just before a call.
    meanwhile: Option<(u64, Meanwhile)>,
    room: Option<u64>,
    crashed: bool,
    locked: bool,
    /// The path of the lock leads to another file.
    is_lock_replaced: bool,
    chance: Chance,
}

type Meanwhile = Box<dyn FnOnce() + Send>;

#[derive(Clone, Default)]
struct Node {
    seen: Vec<u8>,
    durable: Vec<u8>,
    /// Changes since the last sync.
    changes: Vec<Change>,
}

#[derive(Clone)]
enum Change {
    Write(usize, Vec<u8>),
    Truncate(usize),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Named {
    File(usize),
    Dir,
}

type Names = BTreeMap<String, Named>;

#[derive(Clone, Default)]
struct Dir {
    seen: Names,
    durable: Names,
    /// Changes since the last sync: each is applied as a whole or not at all.
    changes: Vec<Vec<(String, Option<Named>)>>,
}

impl Simulated {
    pub(crate) fn new(seed: u64) -> Self {
        let world = World {
            nodes: Vec::new(),
            dirs: [(PathBuf::from("/"), Dir::default())].into(),
            moves: Vec::new(),
            calls: 0,
            syncs: 0,
            lent: 0,
            faults: BTreeMap::new(),
            meanwhile: None,
            room: None,
            crashed: false,
            locked: false,
            is_lock_replaced: false,
            chance: Chance::new(seed),
        };
        Self(Arc::new(Mutex::new(world)))
    }

    /// Injects a fault at the call with this number from now.
    pub(crate) fn plan(&self, calls: u64, fault: Fault) {
        let mut world = self.world();
        let at = world.calls + calls;
        world.faults.insert(at, fault);
    }

    /// Runs an action just before the call with this number from now.
    pub(crate) fn meanwhile(&self, calls: u64, what: impl FnOnce() + Send + 'static) {
        let mut world = self.world();
        world.meanwhile = Some((world.calls + calls, Box::new(what)));
    }

    pub(crate) fn has_crashed(&self) -> bool {
        self.world().crashed
    }

    /// Makes the path of the lock lead to another file.
    pub(crate) fn replace_lock(&self) {
        self.world().is_lock_replaced = true;
    }

    /// Sets the number of free bytes.
    pub(crate) fn set_room(&self, room: Option<u64>) {
        self.world().room = room;
    }

    /// Number of calls so far that changed the disk.
    pub(crate) fn calls(&self) -> u64 {
        self.world().calls
    }

    /// Number of syncs of files and directories so far.
    pub(crate) fn syncs(&self) -> u64 {
        self.world().syncs
    }

    /// Number of bytes read so far.
    pub(crate) fn lent(&self) -> u64 {
        self.world().lent
    }

    /// Changes a byte of a file without the log's knowledge.
    pub(crate) fn damage(&self, path: &str, at: usize) {
        let mut world = self.world();
        let Some(Named::File(node)) = world.find(Path::new(path)) else { panic!("{path}") };
        for image in [Image::Seen, Image::Durable] {
            if let Some(byte) = world.nodes[node].image(image).get_mut(at) {
                *byte ^= 0x10;
            }
        }
    }

    /// The files in a directory, with their lengths.
    pub(crate) fn files(&self, dir: &str) -> Vec<(String, usize)> {
        let world = self.world();
        let names = world.dirs[Path::new(dir)].seen.iter();
        let files = names.filter_map(|(name, named)| match named {
            Named::File(node) => Some((name.clone(), world.nodes[*node].seen.len())),
            Named::Dir => None,
        });
        files.collect()
    }

    /// The disk as the next process finds it.
    pub(crate) fn after(&self, after: After) -> Self {
        let mut world = self.world();
        let mut chance = Chance::new(world.chance.below(u64::MAX));
        let (mut nodes, mut dirs) = (world.nodes.clone(), world.dirs.clone());
        if after == After::PowerLoss {
            nodes.iter_mut().for_each(|node| node.lose_power(&mut chance));
            dirs.values_mut().for_each(|dir| dir.lose_power(&mut chance));
            for (from, to) in world.moves.iter().rev() {
                let (parent, name) = split(from);
                if dirs.get(parent).is_some_and(|dir| dir.seen.contains_key(&name)) {
                    move_dirs(&mut dirs, to, from);
                }
            }
            // A directory whose removal is not durable still exists, and is empty.
            let named: Vec<PathBuf> = dirs
                .iter()
                .flat_map(|(path, dir)| dir.seen.iter().map(move |(name, named)| (path.join(name), *named)))
                .filter_map(|(path, named)| (named == Named::Dir).then_some(path))
                .collect();
            named.into_iter().for_each(|path| {
                dirs.entry(path).or_default();
            });
            let there: Vec<PathBuf> = dirs.keys().cloned().collect();
            for path in there {
                let mut above = path.ancestors().zip(path.ancestors().skip(1));
                let is_reachable = above.all(|(path, parent)| {
                    let name = path.file_name().unwrap().to_str().unwrap();
                    dirs.get(parent).is_some_and(|dir| dir.seen.get(name) == Some(&Named::Dir))
                });
                if !is_reachable {
                    dirs.remove(&path);
                }
            }
        }
        let world = World {
            nodes,
            dirs,
            moves: Vec::new(),
            calls: 0,
            syncs: 0,
            lent: 0,
            faults: BTreeMap::new(),
            meanwhile: None,
            room: None,
            crashed: false,
            locked: false,
            is_lock_replaced: false,
            chance,
        };
        Self(Arc::new(Mutex::new(world)))
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap()
    }

    /// Locks the world for a call that changes it, and runs a due action.
    fn changing(&self) -> MutexGuard<'_, World> {
        let mut world = self.world();
        let next = world.calls + 1;
        if let Some((_, what)) = world.meanwhile.take_if(|(at, _)| *at == next) {
            drop(world);
            what();
            world = self.world();
        }
        world
    }
}

enum Image {
    Seen,
    Durable,
}

impl Node {
    fn image(&mut self, image: Image) -> &mut Vec<u8> {
        match image {
            Image::Seen => &mut self.seen,
            Image::Durable => &mut self.durable,
        }
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.seen);
        self.changes.push(change);
    }

    /// Applies a random part of the changes since the last sync, in random order.
    fn lose_power(&mut self, chance: &mut Chance) {
        let most = chance.below(3);
        for change in std::mem::take(&mut self.changes) {
            match (most, change) {
                (0, _) => break,
                (1, change) => change.apply(&mut self.durable),
                (_, Change::Truncate(bytes)) if chance.one_in(2) => {
                    Change::Truncate(bytes).apply(&mut self.durable)
                }
                (_, Change::Truncate(_)) => {}
                (_, Change::Write(at, bytes)) => {
                    // In pieces, like pages.
                    let mut start = 0;
                    while start < bytes.len() {
                        let end = bytes.len().min(start + 1 + chance.below(200) as usize);
                        if !chance.one_in(3) {
                            Change::Write(at + start, bytes[start..end].to_vec()).apply(&mut self.durable);
                        }
                        start = end;
                    }
                }
            }
            if chance.one_in(8) {
                break;
            }
        }
        self.changes.clear();
        self.seen = self.durable.clone();
    }
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Write(at, written) => {
                let end = at + written.len();
                bytes.resize(bytes.len().max(end), 0);
                bytes[*at..end].copy_from_slice(written);
            }
            Self::Truncate(length) => bytes.truncate(*length),
        }
    }
}

impl Dir {
    fn change(&mut self, change: Vec<(String, Option<Named>)>) {
        apply(&mut self.seen, &change);
        self.changes.push(change);
    }

    fn lose_power(&mut self, chance: &mut Chance) {
        for change in std::mem::take(&mut self.changes) {
            if chance.one_in(2) {
                apply(&mut self.durable, &change);
            }
        }
        self.seen = self.durable.clone();
    }
}

fn apply(names: &mut Names, change: &[(String, Option<Named>)]) {
    for (name, named) in change {
        match named {
            Some(named) => names.insert(name.clone(), *named),
            None => names.remove(name),
        };
    }
}

impl World {
    /// Counts one call that changes the disk. Returns the planned fault; a crash takes effect after part of the call.
    fn call(&mut self) -> io::Result<Option<Fault>> {
        if self.crashed {
            return Err(io::Error::other("the process has ended"));
        }
        self.calls += 1;
        let fault = self.faults.remove(&self.calls);
        match fault {
            Some(Fault::Failure) => return Err(io::Error::from_raw_os_error(5)),
            Some(Fault::Shortage) => return Err(io::ErrorKind::QuotaExceeded.into()),
            Some(Fault::Full) => return Err(io::ErrorKind::StorageFull.into()),
            Some(Fault::NoSpace(room)) => self.room = Some(room),
            Some(Fault::Crash) => self.crashed = true,
            Some(Fault::Short) | None => {}
        }
        Ok(fault)
    }

    /// A call that is applied as a whole or not at all.
    fn whole_call(&mut self) -> io::Result<()> {
        let crash = self.call()? == Some(Fault::Crash);
        if crash && self.chance.one_in(2) { Err(io::Error::other("the process has ended")) } else { Ok(()) }
    }

    fn dir(&mut self, path: &Path) -> io::Result<&mut Dir> {
        self.dirs.get_mut(path).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn find(&self, path: &Path) -> Option<Named> {
        let (dir, name) = split(path);
        self.dirs.get(dir)?.seen.get(&name).copied()
    }
}

/// Moves the directories at and below a path to another path.
fn move_dirs(dirs: &mut BTreeMap<PathBuf, Dir>, from: &Path, to: &Path) {
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

impl Disk for Simulated {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let mut world = self.changing();
        if world.dirs.contains_key(path) {
            return Ok(());
        }
        world.whole_call()?;
        let (parent, name) = split(path);
        world.dir(parent)?.change(vec![(name, Some(Named::Dir))]);
        world.dirs.insert(path.to_owned(), Dir::default());
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        Ok(self.world().dir(dir)?.seen.keys().cloned().collect())
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let mut world = self.changing();
        if let Some(Named::File(node)) = world.find(path) {
            return Ok(Arc::new(SimulatedFile(self.clone(), node)));
        }
        world.whole_call()?;
        if world.room == Some(0) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let node = world.nodes.len();
        world.nodes.push(Node::default());
        let (dir, name) = split(path);
        world.dir(dir)?.change(vec![(name, Some(Named::File(node)))]);
        Ok(Arc::new(SimulatedFile(self.clone(), node)))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        match self.world().find(path) {
            Some(Named::File(node)) => Ok(Arc::new(SimulatedFile(self.clone(), node))),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut world = self.changing();
        world.whole_call()?;
        let named = world.find(from).ok_or(io::ErrorKind::NotFound)?;
        let ((dir, from_name), (_, to_name)) = (split(from), split(to));
        world.dir(dir)?.change(vec![(from_name, None), (to_name, Some(named))]);
        if named == Named::Dir {
            world.moves.push((from.to_owned(), to.to_owned()));
            move_dirs(&mut world.dirs, from, to);
        }
        Ok(())
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let mut world = self.changing();
        world.whole_call()?;
        if !world.dir(path)?.seen.is_empty() {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        world.dirs.remove(path);
        let (dir, name) = split(path);
        world.dir(dir)?.change(vec![(name, None)]);
        Ok(())
    }

    fn is_dir(&self, path: &Path) -> bool {
        self.world().find(path) == Some(Named::Dir)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut world = self.changing();
        world.whole_call()?;
        world.find(path).ok_or(io::ErrorKind::NotFound)?;
        let (dir, name) = split(path);
        world.dir(dir)?.change(vec![(name, None)]);
        Ok(())
    }

    fn rewrite(&self, path: &Path, from: u64) -> io::Result<()> {
        let mut world = self.changing();
        let Some(Named::File(node)) = world.find(path) else { return Err(io::ErrorKind::NotFound.into()) };
        let has_crashed = world.call()? == Some(Fault::Crash);
        let mut bytes = world.nodes[node].seen.get(from as usize..).unwrap_or_default().to_vec();
        if has_crashed {
            let most = world.chance.below(bytes.len() as u64 + 1);
            bytes.truncate(most as usize);
        }
        world.nodes[node].change(Change::Write(from as usize, bytes));
        drop(world);
        if has_crashed {
            return Err(io::Error::other("the process has ended"));
        }
        SimulatedFile(self.clone(), node).sync()
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut world = self.changing();
        world.syncs += 1;
        world.whole_call()?;
        let dir = world.dir(path)?;
        for change in std::mem::take(&mut dir.changes) {
            apply(&mut dir.durable, &change);
        }
        world.moves.retain(|(from, _)| from.parent() != Some(path));
        Ok(())
    }

    fn lock(&self, _: &Path) -> io::Result<Option<Lock>> {
        struct Unlock(Simulated);
        impl Drop for Unlock {
            fn drop(&mut self) {
                self.0.world().locked = false;
            }
        }
        impl HeldLock for Unlock {
            fn is_replaced(&self) -> bool {
                self.0.world().is_lock_replaced
            }
        }
        let was_locked = std::mem::replace(&mut self.world().locked, true);
        Ok((!was_locked).then(|| Arc::new(Unlock(self.clone())) as Lock))
    }
}

struct SimulatedFile(Simulated, usize);

impl File for SimulatedFile {
    fn append(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut world = self.0.changing();
        let fault = world.call()?;
        let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
        let mut most = bytes.len() as u64;
        if matches!(fault, Some(Fault::Short | Fault::Crash)) {
            most = world.chance.below(most + 1).max(u64::from(fault == Some(Fault::Short)));
        }
        if let Some(room) = &mut world.room {
            most = most.min(*room);
            *room -= most;
            if most == 0 && !bytes.is_empty() {
                return Err(io::ErrorKind::StorageFull.into());
            }
        }
        let node = &mut world.nodes[self.1];
        let at = node.seen.len();
        node.change(Change::Write(at, bytes[..most as usize].to_vec()));
        if fault == Some(Fault::Crash) {
            Err(io::Error::other("the process has ended"))
        } else {
            Ok(most as usize)
        }
    }

    fn sync(&self) -> io::Result<()> {
        let mut world = self.0.changing();
        world.syncs += 1;
        let result = world.whole_call();
        let mut chance = world.chance.clone();
        let has_crashed = world.crashed;
        let node = &mut world.nodes[self.1];
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
        let mut world = self.0.changing();
        if world.nodes[self.1].seen.len() as u64 <= bytes {
            return Ok(());
        }
        world.whole_call()?;
        world.nodes[self.1].change(Change::Truncate(bytes as usize));
        Ok(())
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.0.world().nodes[self.1].seen.len() as u64)
    }

    fn lend(&self, range: Range<u64>) -> io::Result<Bytes> {
        let mut world = self.0.world();
        let seen = &world.nodes[self.1].seen;
        let part = seen.get(range.start as usize..range.end as usize).ok_or(io::ErrorKind::UnexpectedEof)?;
        let lent = Bytes::copy_from_slice(part);
        world.lent += lent.len() as u64;
        Ok(lent)
    }
}
