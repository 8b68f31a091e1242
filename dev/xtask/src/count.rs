//! Passed, failed and skipped check counts, and their text form.

use std::fmt;
use std::iter::Sum;
use std::ops::Add;

/// Written as `N passed, M failed, K skipped`, every task's last line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl Count {
    pub(crate) const PASSED: Self = Self { passed: 1, failed: 0, skipped: 0 };
    pub(crate) const FAILED: Self = Self { passed: 0, failed: 1, skipped: 0 };
    pub(crate) const SKIPPED: Self = Self { passed: 0, failed: 0, skipped: 1 };

    /// One check that passed or failed.
    pub(crate) const fn of(passed: bool) -> Self {
        if passed { Self::PASSED } else { Self::FAILED }
    }

    /// Prints why a check is skipped.
    pub(crate) fn skip(why: impl fmt::Display) -> Self {
        println!("skipped: {why}");
        Self::SKIPPED
    }

    /// Prints a failure.
    pub(crate) fn fail(why: impl fmt::Display) -> Self {
        println!("FAIL {why}");
        Self::FAILED
    }

    /// Finds `N passed`, `M failed`, `K skipped` or `K ignored` in a text line, in any order, so that both our own last
    /// lines and cargo's `test result:` lines are understood.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split(|c: char| c == ';' || c == ',' || c.is_whitespace()).collect();
        let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
        let before = |name: &[&str]| {
            words.windows(2).find(|pair| name.contains(&pair[1])).and_then(|pair| pair[0].parse::<u64>().ok())
        };
        let (passed, failed) = (before(&["passed"])?, before(&["failed"])?);
        Some(Self { passed, failed, skipped: before(&["skipped", "ignored"]).unwrap_or(0) })
    }

    /// Sums the results of each test binary and each crate's doc tests in cargo's output.
    pub(crate) fn parse_cargo_test(log: &str) -> Self {
        log.lines().filter(|line| line.starts_with("test result:")).filter_map(Self::parse).sum()
    }

    /// Parses the last line that contains counts.
    pub(crate) fn parse_last(log: &str) -> Option<Self> {
        log.lines().rev().find_map(Self::parse)
    }
}

impl Add for Count {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
            skipped: self.skipped + other.skipped,
        }
    }
}

impl Sum for Count {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), Add::add)
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_from_our_lines_and_from_those_of_cargo() {
        let count = Count { passed: 517, failed: 2, skipped: 3 };
        assert_eq!(Count::parse(&count.to_string()), Some(count));
        assert_eq!(Count::parse("5 passed, 0 failed"), Some(Count { passed: 5, ..Count::default() }));
        assert_eq!([Count::parse("all is well"), Count::parse("5 passed")], [None; 2]);
        let log = "running 3 tests\n\
            test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
            test result: FAILED. 1 passed; 2 failed; 4 ignored; 0 measured; 0 filtered out\n";
        assert_eq!(Count::parse_cargo_test(log), Count { passed: 4, failed: 2, skipped: 4 });
        assert_eq!(Count::parse_cargo_test("error: could not compile"), Count::default());
        let log = "1 passed, 1 failed\nsomething\n7 passed, 0 failed, 1 skipped\n\n";
        assert_eq!(Count::parse_last(log), Some(Count { passed: 7, failed: 0, skipped: 1 }));
    }
}
