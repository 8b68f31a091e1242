//! The list of standards is complete, and its references exist.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use sinews_conformance::standards::{Held, SECTIONS, render};

fn workspace() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.join("../..").canonicalize().expect("the crate lies in the workspace")
}

/// Returns the names of the test functions in a source file: a `fn` behind `#[test]` or
/// `#[tokio::test]`, other attributes between them.
fn tests_in(source: &str) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    let mut is_test = false;
    for line in source.lines().map(str::trim) {
        let item = line.strip_prefix("async ").unwrap_or(line);
        if line == "#[test]" || line == "#[tokio::test]" {
            is_test = true;
        } else if let Some(rest) = item.strip_prefix("fn ").filter(|_| is_test) {
            names.insert(rest.split(['(', '<']).next().unwrap_or_default());
            is_test = false;
        } else if !line.starts_with("#[") && !line.starts_with("//") {
            is_test = false;
        }
    }
    names
}

#[test]
fn test_functions_are_recognized() {
    let source = "#[test]\nfn a() {}\nfn b() {}\n  #[test]\n  #[cfg(unix)]\n  // why\n  fn c(x: u8,\n#[test]\nlet x;\nfn d() {}\n#[tokio::test]\nasync fn e() {}";
    assert_eq!(tests_in(source).into_iter().collect::<Vec<_>>(), ["a", "c", "e"]);
}

#[test]
fn every_line_has_tests_that_exist_or_a_reason() {
    let root = workspace();
    let mut sources: BTreeMap<&str, String> = BTreeMap::new();
    let mut missing = Vec::new();
    let mut tests = 0;
    for line in SECTIONS.iter().flat_map(|(_, lines)| lines.iter()) {
        assert!(!line.id.is_empty() && !line.text.is_empty());
        match line.held {
            Held::Not(reason) => assert!(reason.len() > 10, "{}: no reason", line.text),
            Held::By(named) => {
                assert!(!named.is_empty(), "{}: no test", line.text);
                for (file, name) in named {
                    let source = sources
                        .entry(file)
                        .or_insert_with(|| std::fs::read_to_string(root.join(file)).unwrap_or_default());
                    tests += 1;
                    if !tests_in(source).contains(name) {
                        missing.push(format!("{file}: {name}"));
                    }
                }
            }
        }
    }
    assert!(missing.is_empty(), "named and not there: {missing:#?}");
    assert!(tests > 150, "{tests} is fewer than there were");
}

/// Every test of the faults and probes is in the list: a test outside of it verifies no rule.
#[test]
fn every_test_of_the_faults_and_probes_is_named() {
    let root = workspace();
    let named: BTreeSet<(&str, &str)> = SECTIONS
        .iter()
        .flat_map(|(_, lines)| lines.iter())
        .filter_map(|line| match line.held {
            Held::By(tests) => Some(tests),
            Held::Not(_) => None,
        })
        .flatten()
        .copied()
        .collect();
    for file in ["probes", "faults", "lifetime"] {
        let path = format!("dev/conformance/tests/cases/{file}.rs");
        let source = std::fs::read_to_string(root.join(&path)).expect("a test of this crate");
        for name in tests_in(&source) {
            assert!(named.contains(&(path.as_str(), name)), "{path}: {name} stands in no line");
        }
    }
}

#[test]
fn the_page_matches_the_list() {
    let path = workspace().join("dev/conformance/STANDARDS.md");
    let expected = render();
    if std::env::var_os("UPDATE_STANDARDS").is_some() {
        std::fs::write(&path, &expected).expect("the page can be written");
    }
    let page = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(page == expected, "STANDARDS.md differs from src/standards; write it with UPDATE_STANDARDS=1");
}
