//! The checks and their results, as a table.

use std::fmt::Display;

/// Prints each check when it completes.
#[derive(Default)]
pub(crate) struct Verdict {
    passed: usize,
    failed: usize,
}

impl Verdict {
    /// Records one check: its subject, the found value, the allowed value.
    pub(crate) fn check(&mut self, what: &str, found: impl Display, allowed: impl Display, holds: bool) {
        let word = self.count(holds);
        println!("  {what:<46} {:>16}  {:<22} {word}", found.to_string(), allowed.to_string());
    }

    /// Records one check, and returns its result word for the caller to print.
    pub(crate) fn count(&mut self, holds: bool) -> &'static str {
        if holds {
            self.passed += 1;
            "ok"
        } else {
            self.failed += 1;
            "FAILED"
        }
    }

    /// Records a check without a number.
    pub(crate) fn result<E: Display>(&mut self, what: &str, result: &Result<(), E>) {
        match result {
            Ok(()) => self.check(what, "yes", "yes", true),
            Err(why) => {
                self.check(what, "no", "yes", false);
                println!("    {why}");
            }
        }
    }

    /// Records scenario faults.
    pub(crate) fn faults(&mut self, faults: &[String]) {
        self.check("faults", faults.len(), 0, faults.is_empty());
        faults.iter().for_each(|fault| println!("    {fault}"));
    }

    /// Records unexpected lines in a server's log.
    pub(crate) fn complaints(&mut self, lines: &[String]) {
        self.check("panics and errors in the log", lines.len(), 0, lines.is_empty());
        lines.iter().for_each(|line| println!("    {line}"));
    }

    /// Prints the sum as the last line; returns whether all checks passed.
    pub(crate) fn end(&self) -> bool {
        println!("{} passed, {} failed", self.passed, self.failed);
        self.failed == 0
    }
}
