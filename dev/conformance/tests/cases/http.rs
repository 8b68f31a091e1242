//! The HTTP cases as a table; `cargo xtask conformance --target http` runs them against servers.

use std::collections::BTreeSet;

use sinews_conformance::http::cases;

#[test]
fn the_table_is_complete() {
    let cases = cases();
    let of = |source: &str| cases.iter().filter(|case| case.source == source).count();
    assert_eq!(of("h1spec"), 33, "all that it has");
    assert!(of("http-garden") >= 60 && of("llhttp") >= 90 && of("nginx-tests") >= 70);
    assert!(cases.len() >= 370, "{} are fewer than there were", cases.len());
    let mut names = BTreeSet::new();
    for case in &cases {
        assert!(names.insert((&case.source, &case.name)), "{}: {} stands twice", case.source, case.name);
        let sections = case.rule.split(' ').skip(1).flat_map(|sections| sections.split('.'));
        let is_rule =
            case.rule.starts_with("9") && sections.clone().all(|number| number.parse::<u8>().is_ok());
        assert!(is_rule, "{}: {:?} is no section", case.name, case.rule);
        assert!(!case.wire.is_empty(), "{}", case.name);
    }
}

/// The requests match their names: a body is as long as its declared length.
#[test]
fn echoed_bodies_match_the_requests() {
    for case in cases() {
        let Some(body) = case.echo() else { continue };
        let chunked = case.wire.windows(7).any(|window| window.eq_ignore_ascii_case(b"chunked"));
        let is_there = case.wire.windows(body.len().max(1)).any(|window| window == body);
        assert!(body.is_empty() || chunked || is_there, "{}", case.name);
    }
}

#[test]
fn floods_exceed_the_head_limits() {
    let is_long = |wire: &[u8]| wire.len() > 16 << 10;
    assert!(cases().iter().any(|case| is_long(&case.wire) && case.is_refused_head()));
}
