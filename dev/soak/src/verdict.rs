//! The checks and what they found, as a table.

use std::fmt::Display;

/// Prints each check as it is made.
#[derive(Default)]
pub(crate) struct Verdict {
    passed: usize,
    failed: usize,
}

impl Verdict {
    /// One check: what was looked at, what was found, what is allowed.
    pub(crate) fn check(&mut self, what: &str, found: impl Display, allowed: impl Display, holds: bool) {
        let word = self.count(holds);
        println!("  {what:<46} {:>16}  {:<22} {word}", found.to_string(), allowed.to_string());
    }

    /// One check that somebody else prints, with this word.
    pub(crate) fn count(&mut self, holds: bool) -> &'static str {
        if holds {
            self.passed += 1;
            "ok"
        } else {
            self.failed += 1;
            "FAILED"
        }
    }

    /// A check that found no number.
    pub(crate) fn result<E: Display>(&mut self, what: &str, result: &Result<(), E>) {
        match result {
            Ok(()) => self.check(what, "yes", "yes", true),
            Err(why) => {
                self.check(what, "no", "yes", false);
                println!("    {why}");
            }
        }
    }

    /// What scenarios found wrong.
    pub(crate) fn faults(&mut self, faults: &[String]) {
        self.check("faults", faults.len(), 0, faults.is_empty());
        faults.iter().for_each(|fault| println!("    {fault}"));
    }

    /// Lines of a server's log that it should not have written.
    pub(crate) fn complaints(&mut self, lines: &[String]) {
        self.check("panics and errors in the log", lines.len(), 0, lines.is_empty());
        lines.iter().for_each(|line| println!("    {line}"));
    }

    /// Prints the sum, the last line; answers whether all is well.
    pub(crate) fn end(&self) -> bool {
        println!("{} passed, {} failed", self.passed, self.failed);
        self.failed == 0
    }
}
