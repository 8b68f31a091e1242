use super::*;

#[test]
fn wildcards_are_whole_tokens() {
    for name in ["a", "a.b", "a b", "a*", "*a.b", "a.>b", "a->b", "**"] {
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
    for bad in ["", "a\n", "\0", &(long + "a"), "a.", ".a", "a..b", ".", ".."] {
        assert_eq!((check(bad), check_subscription(bad)), (Err(InvalidTopic::Name), Err(InvalidTopic::Name)));
    }
    for bad in ["*.", ".>", "a..>"] {
        assert_eq!(check_subscription(bad), Err(InvalidTopic::Name), "{bad}");
    }
}

/// Reference of matching: by recursion over the tokens.
fn reference_matches(pattern: &[&str], name: &[&str]) -> bool {
    match (pattern, name) {
        ([">"], [_, ..]) => true,
        ([first, pattern @ ..], [token, name @ ..]) => {
            (*first == "*" || first == token) && reference_matches(pattern, name)
        }
        (pattern, name) => pattern.is_empty() && name.is_empty(),
    }
}

/// All texts of up to `max` of these tokens.
fn texts(tokens: &[&str], max: usize) -> Vec<String> {
    let mut all: Vec<String> = tokens.iter().map(|token| (*token).to_owned()).collect();
    let mut begin = 0;
    for _ in 1..max {
        let end = all.len();
        for index in begin..end {
            let longer: Vec<String> = tokens.iter().map(|token| format!("{}.{token}", all[index])).collect();
            all.extend(longer);
        }
        begin = end;
    }
    all
}

#[test]
fn parse_accepts_exactly_texts_without_misplaced_wildcards_and_empty_tokens() {
    for text in texts(&["a", "*", ">", "", "b*", "\u{7f}"], 4) {
        let tokens: Vec<&str> = text.split('.').collect();
        let is_text = tokens.iter().all(|token| !token.is_empty() && *token != "\u{7f}");
        let rest = tokens.iter().position(|token| *token == ">");
        let is_pattern = is_text && rest.is_none_or(|rest| rest == tokens.len() - 1);
        let is_name = is_text && !tokens.iter().any(|token| matches!(*token, "*" | ">"));
        assert_eq!(TopicPattern::parse(&*text).is_ok(), is_pattern, "{text:?}");
        assert_eq!(TopicName::parse(&*text).is_ok(), is_name, "{text:?}");
        if let Ok(pattern) = TopicPattern::parse(&*text) {
            assert_eq!((pattern.has_wildcard(), pattern.as_str()), (!is_name, &*text));
        }
    }
}

#[test]
fn matches_and_covers_agree_with_the_reference() {
    // `c` occurs in no pattern, and no pattern has more tokens than the longest name, less one: so the names tell
    // every two patterns apart.
    let names = texts(&["a", "b", "c"], 4);
    let patterns = texts(&["a", "b", "*", ">"], 3);
    let patterns: Vec<TopicPattern<'_>> =
        patterns.iter().filter_map(|text| TopicPattern::parse(&**text).ok()).collect();
    assert!(patterns.len() > 50);
    let sets: Vec<Vec<bool>> = patterns
        .iter()
        .map(|pattern| {
            let tokens: Vec<&str> = pattern.as_str().split('.').collect();
            let matched = names.iter().map(|name| {
                let expected = reference_matches(&tokens, &name.split('.').collect::<Vec<_>>());
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
