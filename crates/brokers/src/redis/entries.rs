//! Reads that no command of Redis offers: entries that are limited by bytes, not only by their number, and the ids of
//! the first and the last entry without these entries.

use redis::streams::{StreamId, StreamRangeReply};
use redis::{Cmd, cmd};

/// Returns whether the stream ends, and entries of the stream `KEYS[1]`. `ARGV` has the id of the first, their maximum
/// number, the bytes after which no further entry is read, and the id of an entry that is not counted.
const READ: &str = "local entries, from = {}, ARGV[1] \
    local count, bytes = tonumber(ARGV[2]), tonumber(ARGV[3]) \
    while true do \
    local page = redis.call('XRANGE', KEYS[1], from, '+', 'COUNT', 4) \
    for _, entry in ipairs(page) do \
    entries[#entries + 1] = entry \
    if entry[1] ~= ARGV[4] then \
    count = count - 1 \
    for _, part in ipairs(entry[2]) do bytes = bytes - #part end \
    if count <= 0 or bytes <= 0 then return {0, entries} end \
    end end \
    if #page < 4 then return {1, entries} end \
    from = '(' .. page[#page][1] \
    end";

/// Returns the last id that the stream `KEYS[1]` has generated, and the id of its first entry, if there is one. The answer
/// of the command itself has the first and the last entry, which may have megabytes. Its errors are returned unchanged.
const EXTENT: &str = "local info, ids = redis.pcall('XINFO', 'STREAM', KEYS[1]), {} \
    if info.err then return info end \
    for at = 1, #info, 2 do \
    if info[at] == 'last-generated-id' then ids[1] = info[at + 1] end \
    if info[at] == 'first-entry' and info[at + 1] then ids[2] = info[at + 1][1] end \
    end \
    return ids";

/// A request for the last generated id of a stream, and the id of its first entry.
pub(super) fn extent_command(key: &str) -> Cmd {
    let mut command = cmd("EVAL");
    command.arg(EXTENT).arg(1).arg(key);
    command
}

/// A request for a stream's entries from an offset on: at least one, if one exists.
pub(super) struct EntriesRequest {
    pub(super) from: u64,
    /// An entry at this offset does not count.
    pub(super) known: Option<u64>,
    pub(super) count_max: usize,
    /// Bytes after which no further entry is read.
    pub(super) bytes_max: usize,
}

impl EntriesRequest {
    pub(super) fn command(&self, key: &str) -> Cmd {
        let mut command = cmd("EVAL");
        command.arg(READ).arg(1).arg(key).arg(format!("0-{}", self.from));
        command.arg(self.count_max).arg(self.bytes_max);
        command.arg(self.known.map(|offset| format!("0-{offset}")).unwrap_or_default());
        command
    }
}

/// Whether the stream ends, and its entries.
pub(super) fn answer(end: u8, entries: StreamRangeReply) -> (bool, Vec<StreamId>) {
    (end == 1, entries.ids)
}

/// The error for an entry that this bridge has not written.
pub(super) fn unexpected_id(id: &str) -> String {
    format!("unexpected id {id}; this bridge writes ids 0-1, 0-2, …")
}
