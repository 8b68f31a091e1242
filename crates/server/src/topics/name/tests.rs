use super::*;

#[test]
fn wildcards_are_whole_parts() {
    for name in ["a", "a.b", "a b", "a*", "*a.b", "a.>b", "a->b", "**", "\u{e9}.\u{a0}"] {
        assert_eq!((check(name), check_subscription(name)), (Ok(()), Ok(())), "{name}");
    }
    for pattern in ["*", ">", "a.*", "*.a", "a.>", "*.*.>", "a.*.b"] {
        assert_eq!((check(pattern), check_subscription(pattern)), (Err(InvalidTopic::Wildcard), Ok(())));
    }
    for neither in [">.a", "a.>.b", ">.>"] {
        assert_eq!(check(neither), Err(InvalidTopic::Wildcard));
        assert_eq!(check_subscription(neither), Err(InvalidTopic::Wildcard));
    }
    let long = "a".repeat(NAME_MAX);
    assert_eq!(check(&long), Ok(()));
    for bad in ["", "a\n", "\0", "a\u{7f}", "a\u{85}", &(long + "a"), "a.", ".a", "a..b", ".", ".."] {
        assert_eq!((check(bad), check_subscription(bad)), (Err(InvalidTopic::Name), Err(InvalidTopic::Name)));
    }
    for bad in ["*.", ".>", "a..>"] {
        assert_eq!(check_subscription(bad), Err(InvalidTopic::Name), "{bad}");
    }
}

/// Reference of matching: by recursion over the parts.
fn reference_matches(pattern: &[&str], name: &[&str]) -> bool {
    match (pattern, name) {
        ([">"], [_, ..]) => true,
        ([first, pattern @ ..], [part, name @ ..]) => {
            (*first == "*" || first == part) && reference_matches(pattern, name)
        }
        (pattern, name) => pattern.is_empty() && name.is_empty(),
    }
}

/// All texts of up to `max` of these parts.
fn texts(parts: &[&str], max: usize) -> Vec<String> {
    let mut all: Vec<String> = parts.iter().map(|part| (*part).to_owned()).collect();
    let mut begin = 0;
    for _ in 1..max {
        let end = all.len();
        for index in begin..end {
            let longer: Vec<String> = parts.iter().map(|part| format!("{}.{part}", all[index])).collect();
            all.extend(longer);
        }
        begin = end;
    }
    all
}

#[test]
fn parse_accepts_exactly_texts_without_misplaced_wildcards_and_empty_parts() {
    for text in texts(&["a", "*", ">", "", "b*", "\u{7f}"], 4) {
        let parts: Vec<&str> = text.split('.').collect();
        let is_text = parts.iter().all(|part| !part.is_empty() && *part != "\u{7f}");
        let rest = parts.iter().position(|part| *part == ">");
        let is_pattern = is_text && rest.is_none_or(|rest| rest == parts.len() - 1);
        let is_name = is_text && !parts.iter().any(|part| matches!(*part, "*" | ">"));
        assert_eq!(TopicPattern::parse(&*text).is_ok(), is_pattern, "{text:?}");
        assert_eq!(TopicName::parse(&*text).is_ok(), is_name, "{text:?}");
        if let Ok(pattern) = TopicPattern::parse(&*text) {
            assert_eq!((pattern.has_wildcard(), pattern.as_str()), (!is_name, &*text));
        }
    }
}

#[test]
fn matches_and_covers_agree_with_the_reference() {
    // `c` occurs in no pattern, and no pattern has more parts than the longest name, less one: so the names tell
    // every two patterns apart.
    let names = texts(&["a", "b", "c"], 4);
    let patterns = texts(&["a", "b", "*", ">"], 3);
    let patterns: Vec<TopicPattern<'_>> =
        patterns.iter().filter_map(|text| TopicPattern::parse(&**text).ok()).collect();
    assert!(patterns.len() > 50);
    let sets: Vec<Vec<bool>> = patterns
        .iter()
        .map(|pattern| {
            let parts: Vec<&str> = pattern.as_str().split('.').collect();
            let matched = names.iter().map(|name| {
                let expected = reference_matches(&parts, &name.split('.').collect::<Vec<_>>());
                let name = TopicName::parse(&**name).unwrap();
                assert_eq!(pattern.matches(&name), expected, "{pattern} {name}");
                assert_eq!(pattern.covers(&name.into()), expected, "a name is a pattern");
                expected
            });
            matched.collect()
        })
        .collect();
    for (granted, granted_set) in patterns.iter().zip(&sets) {
        for (wanted, wanted_set) in patterns.iter().zip(&sets) {
            let expected = wanted_set.iter().zip(granted_set).all(|(wanted, granted)| *granted || !wanted);
            assert_eq!(granted.covers(wanted), expected, "{granted} covers {wanted}");
        }
    }
}
