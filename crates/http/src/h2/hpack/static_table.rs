//! The static table (RFC 7541 appendix A).

/// Number of entries. Their indexes are 1 to 61.
pub(super) const LEN: usize = ENTRIES.len();

static ENTRIES: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

/// The longest name, plus one.
const LENGTHS: usize = 28;

/// Indexes by the length of the name: `ORDER[START[len]..START[len + 1]]`.
static ORDER: [u8; LEN] = by_length().0;
static START: [u8; LENGTHS + 1] = by_length().1;

const fn by_length() -> ([u8; LEN], [u8; LENGTHS + 1]) {
    let (mut order, mut start) = ([0; LEN], [0; LENGTHS + 1]);
    let (mut length, mut position) = (0, 0);
    while length < LENGTHS {
        start[length] = position as u8;
        let mut entry = 0;
        while entry < LEN {
            if ENTRIES[entry].0.len() == length {
                order[position] = entry as u8;
                position += 1;
            }
            entry += 1;
        }
        length += 1;
    }
    start[LENGTHS] = position as u8;
    (order, start)
}

/// Returns the field at an index, which starts at 1.
pub(super) fn get(index: usize) -> Option<(&'static [u8], &'static [u8])> {
    let (name, value) = ENTRIES.get(index.checked_sub(1)?)?;
    Some((name.as_bytes(), value.as_bytes()))
}

/// Returns the first index with this name, and whether the value is equal too, which is preferred.
pub(super) fn find(name: &[u8], value: &[u8]) -> Option<(usize, bool)> {
    if name.len() >= LENGTHS {
        return None;
    }
    let candidates = usize::from(START[name.len()])..usize::from(START[name.len() + 1]);
    let mut found = None;
    for &entry in &ORDER[candidates] {
        let (known, text) = ENTRIES[usize::from(entry)];
        if known.as_bytes() == name {
            let index = usize::from(entry) + 1;
            if text.as_bytes() == value {
                return Some((index, true));
            }
            found = found.or(Some((index, false)));
        }
    }
    found
}
