//! The HTTP cases as a table; `cargo xtask conformance --target http` runs them against servers.

use std::collections::BTreeSet;

use sinews_conformance::http::{Case, Expected, GROUPS, Wire};

fn cases() -> impl Iterator<Item = (&'static str, &'static Case)> {
    GROUPS.into_iter().flat_map(|group| group.cases.iter().map(move |case| (group.source, case)))
}

#[test]
fn the_table_is_complete() {
    let of = |source: &str| cases().filter(|(found, _)| *found == source).count();
    assert_eq!(of("h1spec"), 33, "all that it has");
    assert!(of("http-garden") >= 60 && of("llhttp") >= 90 && of("nginx-tests") >= 70);
    assert!(cases().count() >= 370, "{} are fewer than there were", cases().count());
    let mut names = BTreeSet::new();
    for (source, case) in cases() {
        assert!(names.insert((source, case.name)), "{source}: {} stands twice", case.name);
        let sections = case.rule.split(' ').skip(1).flat_map(|sections| sections.split('.'));
        let is_rule =
            case.rule.starts_with("9") && sections.clone().all(|number| number.parse::<u8>().is_ok());
        assert!(is_rule, "{}: {:?} is no section", case.name, case.rule);
        assert!(!case.wire.bytes().is_empty(), "{}", case.name);
    }
}

/// The requests match their names: a body is as long as its declared length.
#[test]
fn echoed_bodies_match_the_requests() {
    for (_, case) in cases() {
        let (Expected::Echoes(body) | Expected::EchoesLast(body)) = case.expected else { continue };
        let bytes = case.wire.bytes();
        let chunked = bytes.windows(7).any(|window| window.eq_ignore_ascii_case(b"chunked"));
        let is_there = bytes.windows(body.len().max(1)).any(|window| window == body);
        assert!(body.is_empty() || chunked || is_there, "{}", case.name);
    }
}

#[test]
fn floods_exceed_the_head_limits() {
    let longest = cases().map(|(_, case)| case.wire.bytes().len()).max();
    assert!(longest > Some(16 << 10));
    assert!(cases().any(|(_, case)| matches!(case.wire, Wire::Flood(..)) && case.is_refused_head()));
}
