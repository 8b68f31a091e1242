//! Names of streams as names of directories.

use std::path::Path;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// What stays as it is. Capital letters do not, since some systems do not tell them from small ones.
const ENCODED: &AsciiSet = &{
    let mut set = NON_ALPHANUMERIC.remove(b'.').remove(b'-').remove(b'_');
    let mut letter = b'A';
    while letter <= b'Z' {
        set = set.add(letter);
        letter += 1;
    }
    set
};

/// Most systems take 255 bytes.
const BYTES_MAX: usize = 240;

/// Begins the name of a directory whose stream was deleted: no stream's directory begins so.
pub(crate) const REMOVED: &str = "%removed-";

/// Begins the name of a directory whose stream is being created: no stream's directory begins so.
pub(crate) const CREATED: &str = "%created-";

/// When the stream of such a directory was to be created.
pub(crate) fn created(directory: &Path) -> Option<u64> {
    directory.file_name()?.to_str()?.strip_prefix(CREATED)?.parse().ok()
}

/// The directory of a stream, if that is a name: not empty, no control character, and not too long.
pub(crate) fn encode(name: &str) -> Option<String> {
    if name.is_empty() || name.chars().any(char::is_control) {
        return None;
    }
    let mut encoded = utf8_percent_encode(name, ENCODED).to_string();
    // Neither `.` nor `..` nor what is hidden.
    if encoded.starts_with('.') {
        encoded.replace_range(..1, "%2E");
    }
    (encoded.len() <= BYTES_MAX).then_some(encoded)
}

/// The stream of a directory, if that is one of ours.
pub(crate) fn decode(directory: &str) -> Option<String> {
    let name = percent_decode_str(directory).decode_utf8().ok()?.into_owned();
    (encode(&name)? == directory).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_nowhere_else() {
        for (name, directory) in [
            ("orders.eu-1_x", "orders.eu-1_x"),
            ("Orders", "%4Frders"),
            ("..", "%2E."),
            (".", "%2E"),
            ("../a/b\\c", "%2E.%2Fa%2Fb%5Cc"),
            ("a%2e", "a%252e"),
            ("é", "%C3%A9"),
            ("*", "%2A"),
        ] {
            assert_eq!(encode(name).as_deref(), Some(directory));
            assert_eq!(decode(directory).as_deref(), Some(name));
        }
        assert_eq!(encode(&"a".repeat(240)).map(|directory| directory.len()), Some(240));
        for none in ["", "a\0b", "a\n", &"a".repeat(241), &"A".repeat(81)] {
            assert_eq!(encode(none), None, "{none}");
        }
        for foreign in
            ["", ".", "..", "%2e", "A", "%zz", "a b", "%ff", "stream.new%", "%removed-1", "%created-1"]
        {
            assert_eq!(decode(foreign), None, "{foreign}");
        }
    }
}
