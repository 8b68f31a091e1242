//! Encodes stream names as directory names.

use std::path::Path;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// Characters that are percent-encoded. Capital letters are, since some file systems are case-insensitive.
const ENCODED: &AsciiSet = &{
    let mut set = NON_ALPHANUMERIC.remove(b'.').remove(b'-').remove(b'_');
    let mut letter = b'A';
    while letter <= b'Z' {
        set = set.add(letter);
        letter += 1;
    }
    set
};

/// Maximum directory name length; most systems permit 255 bytes.
const BYTES_MAX: usize = 240;

/// Prefix of the directory of a deleted stream. No stream's own directory has it.
pub(crate) const REMOVED: &str = "%removed-";

/// Prefix of the directory of a stream during its creation. No stream's own directory has it.
pub(crate) const CREATED: &str = "%created-";

/// Time of creation in the name of such a directory.
pub(crate) fn created(directory: &Path) -> Option<u64> {
    directory.file_name()?.to_str()?.strip_prefix(CREATED)?.parse().ok()
}

/// Directory name for a stream. None if the stream's name is empty, too long, or has a control character.
pub(crate) fn encode(name: &str) -> Option<String> {
    if name.is_empty() || name.chars().any(char::is_control) {
        return None;
    }
    let mut encoded = utf8_percent_encode(name, ENCODED).to_string();
    // Excludes `.`, `..` and hidden files.
    if encoded.starts_with('.') {
        encoded.replace_range(..1, "%2E");
    }
    (encoded.len() <= BYTES_MAX).then_some(encoded)
}

/// Stream name for a directory. None if the directory is not a stream's.
pub(crate) fn decode(directory: &str) -> Option<String> {
    let name = percent_decode_str(directory).decode_utf8().ok()?.into_owned();
    (encode(&name)? == directory).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_name_cannot_escape_its_directory() {
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
