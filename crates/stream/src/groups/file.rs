//! The committed-offset file, `groups.log`: a preamble, then chunks of entries. Every chunk is stored twice.
//!
//! ```text
//!   preamble (32) │ chunk │ chunk │ …
//!   chunk = head (20) · the same head · body · the same body · the same head
//!   head  = u32 magic · u32 bytes of a body · u32 tag · u32 CRC-32C of the body · u32 CRC-32C of the 16 bytes before
//!   entry = u32 partition · u64 offset · u8 bytes of the group's name · the name
//! ```
//!
//! The reader follows the chunks forward from the preamble, and backward from the file's end if a chunk has no valid
//! head at its front. It never searches for a chunk, so reading is linear. A crash may tear a write anywhere, so the
//! file's end may lie within a group's name, which a client has chosen: a head counts only with the file's tag, a
//! random number that no client knows. One damaged sector costs nothing where the other copy is valid. If both copies
//! are damaged, the offsets stored before are doubtful: a commit may have been lost. An entry with an empty name
//! records this in the file.

use std::io;

use bytes::Bytes;

use super::{CommittedOffset, Offsets, store};
use crate::record;

/// Preamble bytes.
pub(super) const PREAMBLE_BYTES: usize = 32;
const HEAD_BYTES: usize = 20;
const ENTRY_BYTES: usize = 13;

/// Size at which a body is closed. Such a body is further than a sector from its copy; a small one is not.
const BODY_BYTES: usize = 16 << 10;

const MAGIC: u32 = u32::from_le_bytes(*b"SGo\x03");

/// The magic in version 2 heads, whose tag is 0.
const UNTAGGED_MAGIC: u32 = u32::from_le_bytes(*b"SGo\x02");

/// The tag of the heads of a file: random, or [`UNTAGGED`].
pub(super) type Tag = u32;

/// The version 2 tag.
const UNTAGGED: Tag = 0;

/// The tag of a new file.
pub(super) fn random_tag() -> io::Result<Tag> {
    let mut tag = [0; 4];
    getrandom::fill(&mut tag).map_err(io::Error::other)?;
    Ok(Tag::from_le_bytes(tag).max(UNTAGGED + 1))
}

/// The offset of an entry that removes the committed offset.
pub(super) const REMOVED: u64 = u64::MAX;

/// Time in microseconds for which a group without an offset is reported as possibly lost: 30 days.
pub(super) const DOUBT_MICROS: u64 = 30 * 24 * 3600 * 1_000_000;

/// Encodes the first bytes of the file. `whole` is the length that the file had when it was written as a whole, or 0: a
/// crash cannot have torn that part. A version that supports only batches reads this as a batch's header with an
/// unknown field, and rejects the file.
pub(super) fn preamble(whole: u64, tag: Tag) -> [u8; PREAMBLE_BYTES] {
    let version = if tag == UNTAGGED { UNTAGGED_VERSION } else { VERSION };
    let mut bytes = [0; PREAMBLE_BYTES];
    bytes[4..8].copy_from_slice(&52_u32.to_le_bytes());
    bytes[8..16].copy_from_slice(&whole.to_le_bytes());
    bytes[16..20].copy_from_slice(&tag.to_le_bytes());
    bytes[24..28].copy_from_slice(&1_u32.to_le_bytes());
    bytes[28..32].copy_from_slice(&version.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[4..]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    bytes
}

const VERSION: u32 = 3;
const UNTAGGED_VERSION: u32 = 2;

/// The length that the file had when it was written as a whole, and the tag. None: the preamble is damaged or has
/// another format.
fn read_preamble(bytes: &[u8]) -> Option<(u64, Tag)> {
    let found = bytes.first_chunk::<PREAMBLE_BYTES>()?;
    let (whole, tag) = (record::u64_at(found, 8), record::u32_at(found, 16));
    (*found == preamble(whole, tag)).then_some((whole, tag))
}

/// Whether the file ends within its preamble.
fn is_torn_preamble(bytes: &[u8]) -> bool {
    // The first bytes are the same for any version and tag, except for the checksum.
    let any = preamble(0, UNTAGGED);
    bytes.len() < PREAMBLE_BYTES && bytes.iter().zip(any).skip(4).take(12).all(|(found, byte)| *found == byte)
}

/// The content of a file.
#[derive(Default)]
pub(super) struct GroupsFile {
    pub(super) offsets: Offsets,
    /// Time since which offsets may be missing, in microseconds since 1970.
    pub(super) doubt: Option<u64>,
    /// Bytes at the front that a crash cannot have torn.
    whole: usize,
    /// Bytes that could not be read from either copy.
    pub(super) lost: usize,
    /// Description of the damage, if any.
    pub(super) problem: Option<String>,
    /// The file must be rewritten: a copy is damaged, or the format is version 1.
    pub(super) is_stale: bool,
    /// The file should be rewritten: the heads have no tag, or a doubt has expired. Until then, it remains valid.
    pub(super) is_outdated: bool,
    /// The tag of the file, if its preamble or its first chunk is valid.
    pub(super) tag: Option<Tag>,
}

/// The file was written by an unknown, newer version.
pub(super) struct NewerVersion;

/// Reads a file. `now` dates the doubt that damage leaves.
pub(super) fn read(bytes: &[u8], now: u64) -> Result<GroupsFile, NewerVersion> {
    let mut content = GroupsFile::default();
    if bytes.is_empty() {
        return Ok(content);
    }
    let preamble = read_preamble(bytes);
    let (whole, is_torn_preamble) = (preamble.map(|(whole, _)| whole), is_torn_preamble(bytes));
    let first = ChunkReader { bytes, tag: None }.head_at(PREAMBLE_BYTES);
    content.tag = preamble.map_or_else(|| first.map(|head| head.tag), |(_, tag)| Some(tag));
    let reader = ChunkReader { bytes, tag: content.tag };
    if whole.is_none()
        && !is_torn_preamble
        && reader.chunk_at(PREAMBLE_BYTES).is_none()
        && reader.chunk_before(bytes.len()).is_none()
    {
        return read_batches(bytes, now);
    }
    if whole.is_none() && !is_torn_preamble {
        content.is_stale = true;
        content.problem = Some("the preamble is damaged".to_owned());
    }
    content.is_stale |= is_torn_preamble || content.tag.is_none();
    content.is_outdated = content.tag == Some(UNTAGGED);
    let whole = if is_torn_preamble { Some(0) } else { whole };
    // Without a preamble, any part may have been written as a whole.
    content.whole = whole.map_or(bytes.len(), |whole| usize::try_from(whole).unwrap_or(bytes.len()));
    read_chunks(&reader, now, &mut content);
    if content.doubt.is_some_and(|since| since.saturating_add(DOUBT_MICROS) < now) {
        content.doubt = None;
        content
            .offsets
            .values_mut()
            .flat_map(|stored| stored.values_mut())
            .for_each(CommittedOffset::mark_certain);
        content.is_outdated = true;
    }
    Ok(content)
}

fn read_chunks(reader: &ChunkReader<'_>, now: u64, content: &mut GroupsFile) {
    let bytes = reader.bytes;
    let mut at = PREAMBLE_BYTES.min(bytes.len());
    while let Some(chunk) = reader.chunk_at(at) {
        apply(&chunk, now, content);
        at = chunk.end;
    }
    if at == bytes.len() {
        return;
    }
    content.is_stale = true;
    let mut behind = Vec::new();
    let mut end = bytes.len();
    let head = reader.head_at(at);
    // The file ends within the chunk that begins here: no chunk is behind it.
    let ends_in_chunk = head.as_ref().is_some_and(|head| bytes.len() - at < head.chunk_bytes());
    while !ends_in_chunk
        && end > at
        && let Some(chunk) = reader.chunk_before(end).filter(|chunk| chunk.start >= at)
    {
        end = chunk.start;
        behind.push(chunk);
    }
    content.lost += end - at;
    let reason = format!("no valid chunk at byte {at}");
    // Without a valid chunk behind it, this is an append torn by a crash, which was not acknowledged.
    let ends_early = head.is_some() || is_unwritten(&bytes[at..]);
    let is_torn = behind.is_empty() && at >= content.whole && ends_early;
    content.problem = Some(if is_torn { format!("{reason}; cut off") } else { reason });
    if !is_torn && end > at {
        mark_doubtful(content, now);
    }
    behind.iter().rev().for_each(|chunk| apply(chunk, now, content));
    if content.tag.is_none() && !behind.is_empty() {
        // Both the preamble and the first chunk are damaged: no tag shows that these chunks are ours.
        mark_doubtful(content, now);
    }
}

/// Whether the bytes at a chunk's position were not completely written: they end early, or contain zeros where a crash
/// kept the system from writing. A head has fewer zeros in a row.
fn is_unwritten(tail: &[u8]) -> bool {
    const ZEROS: [u8; 12] = [0; 12];
    tail.get(..2 * HEAD_BYTES).is_none_or(|heads| heads.windows(ZEROS.len()).any(|part| part == ZEROS))
}

/// A chunk with a valid head.
struct OffsetsChunk<'a> {
    start: usize,
    end: usize,
    /// None: neither copy is valid.
    body: Option<&'a [u8]>,
    /// A head or a body differs from its copy.
    is_damaged: bool,
    /// All of it has been written.
    is_complete: bool,
}

/// Reads the chunks of a file.
struct ChunkReader<'a> {
    bytes: &'a [u8],
    /// Heads with another tag are not from this file. None: unknown, since the preamble is damaged.
    tag: Option<Tag>,
}

impl<'a> ChunkReader<'a> {
    /// The chunk that begins here, if either of its first heads is valid and it does not reach beyond the file.
    fn chunk_at(&self, at: usize) -> Option<OffsetsChunk<'a>> {
        chunk(self.bytes, at, &self.head_at(at)?)
    }

    fn head_at(&self, at: usize) -> Option<ChunkHeader> {
        let heads = self.bytes.get(at..at.checked_add(2 * HEAD_BYTES)?)?;
        let (first, second) = heads.split_at(HEAD_BYTES);
        self.head(first).or_else(|| self.head(second))
    }

    /// The chunk that ends here, if its last head is valid.
    fn chunk_before(&self, end: usize) -> Option<OffsetsChunk<'a>> {
        let head = self.head(self.bytes.get(end.checked_sub(HEAD_BYTES)?..end)?)?;
        chunk(self.bytes, end.checked_sub(head.chunk_bytes())?, &head)
    }

    fn head(&self, bytes: &[u8]) -> Option<ChunkHeader> {
        ChunkHeader::decode(bytes).filter(|head| self.tag.is_none_or(|tag| tag == head.tag))
    }
}

fn chunk<'a>(bytes: &'a [u8], start: usize, head: &ChunkHeader) -> Option<OffsetsChunk<'a>> {
    let end = start.checked_add(head.chunk_bytes())?;
    let whole = bytes.get(start..end)?;
    let (heads, rest) = whole.split_at(2 * HEAD_BYTES);
    let (bodies, last) = rest.split_at(2 * head.body);
    let (first, second) = bodies.split_at(head.body);
    let body = [first, second].into_iter().find(|body| crc32c::crc32c(body) == head.crc);
    let encoded = head.encode();
    let has_last = last == encoded;
    let is_damaged =
        heads[..HEAD_BYTES] != encoded || heads[HEAD_BYTES..] != encoded || !has_last || first != second;
    Some(OffsetsChunk {
        start,
        end,
        body,
        is_damaged,
        is_complete: has_last || !is_unwritten(&whole[whole.len() - 2 * HEAD_BYTES..]),
    })
}

struct ChunkHeader {
    tag: Tag,
    body: usize,
    crc: u32,
}

impl ChunkHeader {
    fn from_tag(tag: Tag, body: &[u8]) -> Self {
        Self { tag, body: body.len(), crc: crc32c::crc32c(body) }
    }

    fn chunk_bytes(&self) -> usize {
        3 * HEAD_BYTES + 2 * self.body
    }

    fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        let magic = if self.tag == UNTAGGED { UNTAGGED_MAGIC } else { MAGIC };
        bytes[..4].copy_from_slice(&magic.to_le_bytes());
        // A body is a few entries above `BODY_BYTES` at most.
        bytes[4..8].copy_from_slice(&(self.body as u32).to_le_bytes());
        bytes[8..12].copy_from_slice(&self.tag.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.crc.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..16]);
        bytes[16..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; HEAD_BYTES] = bytes.try_into().ok()?;
        let number = |at| record::u32_at(bytes, at);
        let tag = number(8);
        let magic = if tag == UNTAGGED { UNTAGGED_MAGIC } else { MAGIC };
        let is_head = number(0) == magic && number(16) == crc32c::crc32c(&bytes[..16]);
        is_head.then(|| Self { tag, body: number(4) as usize, crc: number(12) })
    }
}

fn apply(chunk: &OffsetsChunk<'_>, now: u64, content: &mut GroupsFile) {
    content.is_stale |= chunk.is_damaged;
    if chunk.is_damaged {
        let problem = format!("the chunk at byte {} is damaged", chunk.start);
        content.problem =
            Some(if chunk.body.is_some() { format!("{problem}; its copy was read") } else { problem });
    }
    let Some(mut rest) = chunk.body else {
        content.lost += chunk.end - chunk.start;
        if chunk.is_complete || chunk.start < content.whole {
            mark_doubtful(content, now);
        }
        return;
    };
    while let Some((entry, behind)) = rest.split_first_chunk::<ENTRY_BYTES>() {
        let Some((name, behind)) = behind.split_at_checked(usize::from(entry[12])) else { return };
        rest = behind;
        let (partition, offset) = (record::u32_at(entry, 0), record::u64_at(entry, 4));
        match std::str::from_utf8(name) {
            Ok("") => mark_doubtful(content, offset),
            Ok(name) => {
                let offset = (offset != REMOVED).then_some(offset);
                store(&mut content.offsets, [((name.into(), partition), offset)]);
            }
            Err(_) => {}
        }
    }
}

/// Marks that a commit may be missing from here on.
fn mark_doubtful(content: &mut GroupsFile, since: u64) {
    content.doubt = Some(content.doubt.map_or(since, |known| known.max(since)));
    content
        .offsets
        .values_mut()
        .flat_map(|stored| stored.values_mut())
        .for_each(CommittedOffset::mark_doubtful);
}

/// Reads the earlier format: batches of records, each with a group's name, its partition and offset.
fn read_batches(bytes: &[u8], now: u64) -> Result<GroupsFile, NewerVersion> {
    let mut content = GroupsFile { is_stale: true, ..GroupsFile::default() };
    let mut valid = 0;
    for batch in record::iter(bytes) {
        let problem = match batch {
            Ok(batch) => {
                let problem = batch.records().find_map(|record| match record {
                    Ok(record) => {
                        store(&mut content.offsets, earlier_entry(&record));
                        None
                    }
                    Err(problem) => Some(problem),
                });
                let Some(problem) = problem else {
                    valid += batch.header().length as usize;
                    continue;
                };
                problem
            }
            Err(record::RecordError::Reserved) => return Err(NewerVersion),
            Err(problem) => problem,
        };
        content.problem = Some(format!("{problem} at byte {valid}"));
        content.lost = bytes.len() - valid;
        mark_doubtful(&mut content, now);
        break;
    }
    Ok(content)
}

fn earlier_entry(record: &record::Record<'_>) -> Option<super::Change> {
    let (partition, offset) = record.value.split_first_chunk::<4>()?;
    let offset = u64::from_le_bytes(offset.try_into().ok()?);
    let group = std::str::from_utf8(record.key).ok()?;
    Some(((group.into(), u32::from_le_bytes(*partition)), (offset != REMOVED).then_some(offset)))
}

/// Encodes a whole file: doubtful offsets, the mark that declares them so, and the other offsets.
pub(super) fn whole(tag: Tag, offsets: &Offsets, doubt: Option<u64>) -> Vec<u8> {
    let all = |is_doubtful: bool| {
        offsets.iter().flat_map(move |(group, stored)| {
            let stored = stored.iter().filter(move |(_, stored)| stored.is_doubtful == is_doubtful);
            stored.map(move |(&partition, stored)| (&**group, partition, stored.offset))
        })
    };
    let mark = doubt.map(|since| ("", 0, since));
    let entries = all(true).chain(mark).chain(all(false));
    let chunks = encode(tag, entries).concat();
    [&preamble((PREAMBLE_BYTES + chunks.len()) as u64, tag)[..], &chunks].concat()
}

/// Encodes entry chunks to append.
pub(super) fn chunks<'a>(tag: Tag, entries: impl Iterator<Item = (&'a str, u32, Option<u64>)>) -> Vec<Bytes> {
    encode(tag, entries.map(|(group, partition, offset)| (group, partition, offset.unwrap_or(REMOVED))))
}

fn encode<'a>(tag: Tag, entries: impl Iterator<Item = (&'a str, u32, u64)>) -> Vec<Bytes> {
    let mut chunks = Vec::new();
    let mut body = Vec::new();
    let mut finish = |body: &mut Vec<u8>| {
        if !body.is_empty() {
            let head = ChunkHeader::from_tag(tag, body).encode();
            chunks.push(Bytes::from([&head[..], &head, body, body, &head].concat()));
            body.clear();
        }
    };
    for (group, partition, offset) in entries {
        // Names have 255 bytes at most: `ConsumerGroups::commit` checks it.
        let Ok(len) = u8::try_from(group.len()) else { continue };
        body.extend_from_slice(&partition.to_le_bytes());
        body.extend_from_slice(&offset.to_le_bytes());
        body.push(len);
        body.extend_from_slice(group.as_bytes());
        if body.len() >= BODY_BYTES {
            finish(&mut body);
        }
    }
    finish(&mut body);
    chunks
}
