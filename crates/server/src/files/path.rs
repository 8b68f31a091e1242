//! Maps the path of a request to the path of a file.

use percent_encoding::percent_decode_str;

/// File to look up, relative to the root.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FilePath {
    /// Decoded, without a slash at either end; empty is the root.
    pub(super) path: String,
    /// The request's path ended in a slash: look for the index file of the directory.
    pub(super) is_directory: bool,
}

impl FilePath {
    /// Parses the path below the prefix. Each segment is decoded on its own, so an encoded slash does not separate
    /// segments. Empty segments, `.` and `..` are rejected.
    pub(super) fn new(rest: &str, dotfiles: bool) -> Option<Self> {
        let is_directory = rest.is_empty() || rest.ends_with('/');
        let mut path = String::with_capacity(rest.len());
        let segments = rest.strip_suffix('/').unwrap_or(rest);
        for segment in segments.split('/').filter(|_| !rest.is_empty()) {
            let segment = percent_decode_str(segment).decode_utf8().ok()?;
            let is_hidden = segment.starts_with('.') && !dotfiles && segment != WELL_KNOWN;
            let leads_elsewhere = segment.is_empty() || segment == "." || segment == "..";
            // Some systems take a backslash for a slash.
            if is_hidden || leads_elsewhere || segment.chars().any(|c| c.is_control() || "/\\".contains(c)) {
                return None;
            }
            if !path.is_empty() {
                path.push('/');
            }
            path.push_str(&segment);
        }
        Some(Self { path, is_directory })
    }
}

/// Meant to be served (RFC 8615).
const WELL_KNOWN: &str = ".well-known";

#[cfg(test)]
mod tests {
    use super::*;

    fn file_path(rest: &str) -> Option<(String, bool)> {
        FilePath::new(rest, false).map(|file_path| (file_path.path, file_path.is_directory))
    }

    #[test]
    fn segments_are_decoded_separately() {
        for (rest, path, is_directory) in [
            ("", "", true),
            ("a", "a", false),
            ("a/", "a", true),
            ("a/b.c", "a/b.c", false),
            ("a%20b/%C3%BC", "a b/ü", false),
            ("%2525", "%25", false),
            ("...", "...", false),
            (".well-known/x", ".well-known/x", false),
            ("a..b/c.", "a..b/c.", false),
        ] {
            let found = file_path(rest);
            if rest == "..." {
                assert_eq!(found, None, "it begins with a dot");
                assert_eq!(FilePath::new(rest, true).unwrap().path, path);
            } else {
                assert_eq!(found, Some((path.to_owned(), is_directory)), "{rest}");
            }
        }
    }

    #[test]
    fn paths_out_of_the_root_are_rejected() {
        for rest in [
            "..", "../a", "a/../b", "a/..", "%2e%2e/a", ".%2e", "%2E", "./a", "a/./b", "/", "/a", "a//b",
            "a//", "a%2fb", "a%2Fb", "..%2fa", "a\\b", "..\\a", "a%5cb", "a%00", "a%0a", "a%7f", "%ff",
            "a/%c0%af",
        ] {
            assert_eq!(FilePath::new(rest, true), None, "{rest}");
        }
        for rest in [".git", ".git/config", "a/.env", "%2eenv", ".well-knownx"] {
            assert_eq!(file_path(rest), None, "{rest}");
            assert!(FilePath::new(rest, true).is_some(), "{rest}");
        }
    }
}
