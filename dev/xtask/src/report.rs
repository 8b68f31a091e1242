//! Reads and judges the reports of the Autobahn suite.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::count::Count;

/// The three cases that the suite records without a verdict: a peer may do either thing.
const INFORMATIONAL: [&str; 3] = ["7.1.6", "7.13.1", "7.13.2"];

const SECTIONS: [(u32, &str); 11] = [
    (1, "Framing"),
    (2, "Pings and pongs"),
    (3, "Reserved bits"),
    (4, "Opcodes"),
    (5, "Fragmentation"),
    (6, "UTF-8"),
    (7, "Close handshake"),
    (9, "Limits, speed"),
    (10, "Auto-fragmentation"),
    (12, "Deflate, payloads"),
    (13, "Deflate, parameters"),
];

/// Result of the suite for one case.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    id: String,
    entry: Entry,
    /// The right codes, in a case where the peer has to fail the connection.
    error_codes: Option<Vec<u16>>,
}

/// A case in the suite's `index.json`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    behavior: String,
    behavior_close: String,
    /// The code of the received Close frame, if there was one.
    remote_close_code: Option<u16>,
    /// In milliseconds.
    duration: u64,
    /// The file with the rest, beside the index.
    #[serde(rename = "reportfile")]
    report_file: String,
}

/// The relevant part of a case's own report. The rest must not even be decoded: it holds bytes of the wire,
/// with lone surrogates among them, which a Rust string cannot hold.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Detail {
    expected_close: Option<ExpectedClose>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExpectedClose {
    require_clean: bool,
    close_code: Vec<u16>,
}

impl ExpectedClose {
    /// Returns the right codes, if this is a case in which the connection must be failed: the suite then
    /// requires no clean close and a code other than 1000.
    fn error_codes(self) -> Option<Vec<u16>> {
        (!self.require_clean && !self.close_code.contains(&1000)).then_some(self.close_code)
    }
}

impl Case {
    /// Returns the fault of the case, `None` if it is correct.
    ///
    /// The suite's own verdict is not sufficient. `behavior` is OK for a peer that drops the connection
    /// without a Close frame after a fatal error. RFC 6455 section 7.1.7 discourages this, since the other
    /// side gets no reason. A protocol violation during the closing handshake shows up in `behaviorClose`
    /// only.
    pub(crate) fn fault(&self) -> Option<String> {
        let allowed = |verdict: &str| {
            verdict == "OK" || (verdict == "INFORMATIONAL" && INFORMATIONAL.contains(&&*self.id))
        };
        if !allowed(&self.entry.behavior) {
            return Some(format!("behavior {}", self.entry.behavior));
        }
        if !allowed(&self.entry.behavior_close) {
            return Some(format!("closing behavior {}", self.entry.behavior_close));
        }
        if self.error_codes.is_some() && !self.error_is_answered() {
            let code = self
                .entry
                .remote_close_code
                .map_or_else(|| "no Close".into(), |code| format!("Close {code}"));
            return Some(format!("{code} in place of {:?}", self.error_codes.as_deref().unwrap_or_default()));
        }
        None
    }

    fn error_is_answered(&self) -> bool {
        match (&self.error_codes, self.entry.remote_close_code) {
            (Some(right), Some(code)) => right.contains(&code),
            _ => false,
        }
    }

    fn section(&self) -> u32 {
        numbers(&self.id).first().copied().unwrap_or(0)
    }
}

/// Reads `index.json` and its case reports.
pub(crate) fn read(dir: &Path) -> Result<Vec<Case>, String> {
    // By agent, then by case.
    let index: BTreeMap<String, BTreeMap<String, Entry>> = read_json(&dir.join("index.json"))?;
    let entries = index.into_values().flatten();
    let cases = entries.map(|(id, entry)| {
        let detail: Detail = read_json(&dir.join(&entry.report_file))?;
        let error_codes = detail.expected_close.and_then(ExpectedClose::error_codes);
        Ok(Case { id, entry, error_codes })
    });
    cases.collect()
}

/// Prints the table of the sections and each fault; `expected` lists all cases that had to run.
pub(crate) fn judge(cases: &[Case], expected: &[String]) -> Count {
    println!(
        "{:<24} {:>6} {:>6} {:>10} {:>13} {:>13} {:>7} {:>12} {:>9}",
        "section",
        "cases",
        "OK",
        "NON-STRICT",
        "INFORMATIONAL",
        "UNIMPLEMENTED",
        "other",
        "right Close",
        "seconds"
    );
    for (number, name) in SECTIONS {
        let rows: Vec<&Case> = cases.iter().filter(|case| case.section() == number).collect();
        if !rows.is_empty() {
            print_row(&format!("{number} {name}"), &rows);
        }
    }
    print_row("all", &cases.iter().collect::<Vec<_>>());

    let by_id: BTreeMap<&str, &Case> = cases.iter().map(|case| (&*case.id, case)).collect();
    let mut count = Count::default();
    let mut missing = Vec::new();
    for id in expected {
        let Some(case) = by_id.get(&**id) else {
            missing.push(&**id);
            count = count + Count::FAILED;
            continue;
        };
        let fault = case.fault();
        count = count + Count::of(fault.is_none());
        if let Some(fault) = fault {
            println!("  {id}: {fault}");
        }
    }
    if let [first, .., last] | [first @ last] = missing[..] {
        println!("  {} cases did not run, {first} to {last}", missing.len());
    }
    count
}

fn print_row(name: &str, cases: &[&Case]) {
    let verdicts = ["OK", "NON-STRICT", "INFORMATIONAL", "UNIMPLEMENTED"];
    let [ok, non_strict, informational, unimplemented] =
        verdicts.map(|verdict| cases.iter().filter(|case| case.entry.behavior == verdict).count());
    let other = cases.len() - ok - non_strict - informational - unimplemented;
    let errors = cases.iter().filter(|case| case.error_codes.is_some()).count();
    let answered = cases.iter().filter(|case| case.error_is_answered()).count();
    let close = if errors == 0 { "-".to_owned() } else { format!("{answered}/{errors}") };
    let seconds = cases.iter().map(|case| case.entry.duration).sum::<u64>() / 1000;
    println!(
        "{name:<24} {:>6} {ok:>6} {non_strict:>10} {informational:>13} {unimplemented:>13} {other:>7} \
         {close:>12} {seconds:>9}",
        cases.len()
    );
}

/// The parts of a case's id.
pub(crate) fn numbers(id: &str) -> Vec<u32> {
    id.split('.').filter_map(|part| part.parse().ok()).collect()
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, String> {
    let text = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    serde_json::from_slice(&text).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(id: &str, behavior: &str, behavior_close: &str) -> Case {
        let entry = Entry {
            behavior: behavior.into(),
            behavior_close: behavior_close.into(),
            remote_close_code: Some(1000),
            duration: 1,
            report_file: String::new(),
        };
        Case { id: id.into(), entry, error_codes: None }
    }

    #[test]
    fn only_ok_passes_and_informational_only_where_it_must() {
        assert_eq!(case("1.1.1", "OK", "OK").fault(), None);
        assert_eq!(case("7.1.6", "INFORMATIONAL", "INFORMATIONAL").fault(), None);
        assert!(case("7.1.5", "INFORMATIONAL", "OK").fault().is_some());
        for verdict in ["NON-STRICT", "UNIMPLEMENTED", "FAILED", "UNCLEAN", "missing"] {
            assert!(case("1.1.1", verdict, "OK").fault().is_some(), "{verdict}");
            assert!(case("1.1.1", "OK", verdict).fault().is_some(), "{verdict}");
        }
    }

    #[test]
    fn an_error_case_needs_a_close_with_a_right_code() {
        let mut case = case("6.3.1", "OK", "OK");
        case.error_codes = Some(vec![1007]);
        assert_eq!(case.fault().as_deref(), Some("Close 1000 in place of [1007]"));
        case.entry.remote_close_code = None;
        assert_eq!(case.fault().as_deref(), Some("no Close in place of [1007]"));
        case.entry.remote_close_code = Some(1007);
        assert_eq!(case.fault(), None);
    }

    #[test]
    fn error_cases_are_recognized() {
        let codes = |require_clean, close_code: &[u16]| {
            ExpectedClose { require_clean, close_code: close_code.to_vec() }.error_codes()
        };
        assert_eq!(codes(false, &[1002]), Some(vec![1002]));
        assert_eq!(codes(true, &[1002]), None);
        assert_eq!(codes(false, &[1000, 1002]), None);
    }

    #[test]
    fn report_may_contain_invalid_text() {
        let report =
            r#"{"received": "\ud800", "expectedClose": {"requireClean": false, "closeCode": [1007]}}"#;
        let detail: Detail = serde_json::from_str(report).expect("the string is skipped");
        assert_eq!(detail.expected_close.and_then(ExpectedClose::error_codes), Some(vec![1007]));
    }

    #[test]
    fn a_case_that_did_not_run_has_failed() {
        let cases = [case("1.1.1", "OK", "OK")];
        let expected = ["1.1.1".to_owned(), "1.1.2".to_owned()];
        assert_eq!(judge(&cases, &expected), Count { passed: 1, failed: 1, skipped: 0 });
    }
}
