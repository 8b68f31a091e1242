//! Paths and file on the server under test.

/// Path to the directory with [`FILE`].
pub const FILES: &str = "/files";

/// The file's name in the directory.
pub const FILE_NAME: &str = "t1.html";

/// The file's modification time, in seconds.
pub const FILE_SECONDS: u64 = 1_000_000_000;

/// The file's content: a hundred lines of ten bytes.
pub const FILE: &[u8] = &file();

/// Path that supports only GET.
pub const ONLY_GET: &str = "/only-get";

/// Path that answers any method, once the request is complete, with content.
pub const CONTENT: &str = "/content";

/// Path that takes the list of answered requests, except requests to this path: status, method and target in a line.
pub const ANSWERED: &str = "/answered";

/// Answered requests to list.
pub const ANSWERED_MAX: usize = 10_000;

/// WebSocket path.
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
