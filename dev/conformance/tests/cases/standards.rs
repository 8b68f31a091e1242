//! The standards table is complete, and its references exist.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

fn workspace() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.join("../..").canonicalize().expect("the crate lies in the workspace")
}

/// Returns a source file's test function names: a `fn` behind `#[test]` or `#[tokio::test]`, other attributes between
/// them.
fn tests_in(source: &str) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    let (mut is_test, mut is_list) = (false, false);
    for line in source.lines().map(str::trim) {
        is_list = line.ends_with("tests! {") || is_list && line != "}";
        if let Some((name, _)) = line.split_once(" => ").filter(|_| is_list) {
            names.insert(name);
            continue;
        }
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
    let source = "#[test]\nfn a() {}\nfn b() {}\n  #[test]\n  #[cfg(unix)]\n  // why\n  fn c(x: u8,\n#[test]\nlet x;\nfn d() {}\n#[tokio::test]\nasync fn e() {}
        testkit::tests! {\n f => a(1);\n #[cfg(x)]\n g => b();\n}\nmatch x {\n h => c(),\n}";
    assert_eq!(tests_in(source).into_iter().collect::<Vec<_>>(), ["a", "c", "e", "f", "g"]);
}

/// A table row.
struct Row<'p> {
    rule: &'p str,
    /// The tests that verify it, each with its file and name.
    tests: Vec<NamedTest<'p>>,
    /// The reason why no test does.
    reason: Option<&'p str>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct NamedTest<'p> {
    file: &'p str,
    name: &'p str,
}

fn page() -> String {
    std::fs::read_to_string(workspace().join("dev/conformance/STANDARDS.md")).expect("there is a table")
}

/// Reads a row: a section, a rule, and links to tests or a reason in italics. `None` for heads and text.
fn row(line: &str) -> Option<Row<'_>> {
    let line = line.strip_prefix("| ")?.strip_suffix(" |")?;
    let (section, rest) = line.split_once(" | ")?;
    let (rule, verified) = rest.rsplit_once(" | ")?;
    if section.is_empty() || section.starts_with('|') {
        return None;
    }
    let link = |link| NamedTest::read(link).unwrap_or_else(|| panic!("{rule}: {link} is no link to a test"));
    let reason = verified.strip_prefix('*').map(|reason| reason.trim_end_matches('*'));
    let tests = if reason.is_some() { Vec::new() } else { verified.split(", ").map(link).collect() };
    Some(Row { rule, tests, reason })
}

impl<'p> NamedTest<'p> {
    /// Reads a link such as [`name`](../../file).
    fn read(link: &'p str) -> Option<Self> {
        let (name, file) = link.strip_prefix("[`")?.split_once("`](../../")?;
        Some(Self { file: file.strip_suffix(')')?, name })
    }
}

#[test]
fn rows_have_tests_or_a_reason() {
    let read = row("| 5.2 | A rule | with a bar | [`a`](../../b.rs), [`c`](../../d.rs) |").expect("a row");
    assert_eq!((read.rule, read.tests.len(), read.reason), ("A rule | with a bar", 2, None));
    assert_eq!((read.tests[1].file, read.tests[1].name), ("d.rs", "c"));
    assert_eq!(
        row("| 5.2 | A rule | *left to the caller* |").expect("a row").reason,
        Some("left to the caller")
    );
    assert!(row("| | Rule | Verified by |").is_none() && row("|---|---|---|").is_none());
}

#[test]
fn every_row_has_tests_that_exist_or_a_reason() {
    let (root, page) = (workspace(), page());
    let mut sources: BTreeMap<&str, String> = BTreeMap::new();
    let (mut missing, mut tests, mut rows) = (Vec::new(), 0, 0);
    for line in page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| |")) {
        let Some(Row { rule, tests: named, reason }) = row(line) else { panic!("{line} is no row") };
        assert!(!rule.is_empty() && reason.is_none_or(|reason| reason.len() > 10), "{line}");
        rows += 1;
        for NamedTest { file, name } in named {
            let source = sources
                .entry(file)
                .or_insert_with(|| std::fs::read_to_string(root.join(file)).unwrap_or_default());
            tests += 1;
            if !tests_in(source).contains(name) {
                missing.push(format!("{file}: {name}"));
            }
        }
    }
    assert!(missing.is_empty(), "named and not there: {missing:#?}");
    assert!(rows >= ROWS && tests >= TESTS, "{rows} rows and {tests} tests are fewer than there were");
}

/// Every test of the faults and probes is in the table: a test outside it verifies no rule.
#[test]
fn every_test_of_the_faults_and_probes_is_named() {
    let page = page();
    let named: BTreeSet<NamedTest<'_>> = page.lines().filter_map(row).flat_map(|row| row.tests).collect();
    for file in ["probes", "faults", "lifetime"] {
        let file = format!("dev/conformance/tests/cases/{file}.rs");
        let source = std::fs::read_to_string(workspace().join(&file)).expect("a test of this crate");
        for name in tests_in(&source) {
            assert!(named.contains(&NamedTest { file: &file, name }), "{file}: {name} stands in no row");
        }
    }
}

const ROWS: usize = 327;
const TESTS: usize = 674;
