//! What the cases are asked of.

/// Where the directory with [`FILE`] lies.
pub const FILES: &str = "/files";

/// The file's name in it.
pub const FILE_NAME: &str = "t1.html";

/// When it was modified, in seconds.
pub const FILE_SECONDS: u64 = 1_000_000_000;

/// What is in it: a hundred lines of ten bytes.
pub const FILE: &[u8] = &file();

pub(super) const FILE_HEAD_9: &[u8] = b"X000XXXXX";
pub(super) const FILE_TAIL_10: &[u8] = b"X099XXXXXX";

/// Where GET alone is answered.
pub const ONLY_GET: &str = "/only-get";

/// Where a WebSocket is.
pub const WEBSOCKET: &str = "/websocket";

const fn file() -> [u8; 1000] {
    let mut file = [b'X'; 1000];
    let mut line = 0;
    while line < 100 {
        file[line * 10 + 1] = b'0';
        file[line * 10 + 2] = b'0' + (line / 10) as u8;
        file[line * 10 + 3] = b'0' + (line % 10) as u8;
        line += 1;
    }
    file
}
