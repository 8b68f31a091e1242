//! Patterns of topics, as NATS writes them: `*` stands for one token between dots, `>` at the end for one or more.

/// Whether `granted` covers `wanted`, a topic or a pattern: it matches every topic that `wanted` matches.
pub(crate) fn covers(granted: &str, wanted: &str) -> bool {
    let (mut granted, mut wanted) = (granted.split('.'), wanted.split('.'));
    loop {
        match (granted.next(), wanted.next()) {
            (Some(">"), Some(_)) | (None, None) => return true,
            (Some("*"), Some(token)) if token != ">" => {}
            (Some(literal), Some(token)) if literal == token => {}
            _ => return false,
        }
    }
}

/// Whether a token of the name is a wildcard.
pub(crate) fn is_pattern(name: &str) -> bool {
    name.contains(['*', '>']) && name.split('.').any(|token| token == "*" || token == ">")
}

/// Whether the name has an empty token: before, after or between its dots. An empty name is one empty token.
pub(crate) fn has_empty_token(name: &str) -> bool {
    name.split('.').any(str::is_empty)
}

/// Whether the pattern is valid: no empty token, no control character, `>` at the end only.
pub(crate) fn is_valid(pattern: &str) -> bool {
    let before_last = pattern.rsplit('.').skip(1);
    !has_empty_token(pattern)
        && pattern.len() <= sinews_server::Topics::NAME_MAX
        && !pattern.chars().any(char::is_control)
        && !before_last.into_iter().any(|token| token == ">")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wanted_pattern_must_lie_within_the_granted_pattern() {
        for (granted, wanted) in [
            ("a", "a"),
            (">", "a"),
            (">", ">"),
            (">", "*.a.>"),
            ("a.>", "a.b"),
            ("a.>", "a.b.c"),
            ("a.>", "a.*"),
            ("a.>", "a.>"),
            ("a.>", "a.*.>"),
            ("a.*", "a.b"),
            ("a.*", "a.*"),
            ("*.b", "a.b"),
            ("a.*.c", "a.*.c"),
        ] {
            assert!(covers(granted, wanted), "{granted} covers {wanted}");
        }
        for (granted, wanted) in [
            ("a", "b"),
            ("a", "a.b"),
            ("a", "*"),
            ("a", ">"),
            ("*", ">"),
            ("*", "a.b"),
            ("a.>", "a"),
            ("a.>", ">"),
            ("a.>", "*.b"),
            ("a.*", "a.>"),
            ("a.*", "a"),
            ("a.b", "a.*"),
            ("a.*.c", "a.>"),
            ("", "a"),
        ] {
            assert!(!covers(granted, wanted), "{granted} does not cover {wanted}");
        }
    }

    #[test]
    fn valid_patterns_are_distinguished_from_invalid_patterns() {
        for pattern in ["a", "*", ">", "a.>", "*.*", "a b", "a*"] {
            assert!(is_valid(pattern), "{pattern}");
        }
        for bad in ["", "a.>.b", ">.a", "a\n", "a.", ".a", "a..b", ".", ".>", &"a".repeat(257)] {
            assert!(!is_valid(bad), "{bad}");
        }
    }
}
