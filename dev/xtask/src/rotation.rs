//! Which long steps a run with limited time takes: first changed steps, and steps that have not passed for long.
//!
//! `dev/xtask/passed.tsv` records when each step last passed. `cargo xtask test --record` writes it.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::process::{self, at, git};

/// The recorded passes, from the repository's root.
pub(crate) const FILE: &str = "dev/xtask/passed.tsv";
const HEAD: &str = "# When each step last passed: step, commit, date, seconds. `cargo xtask test --all --record` writes it, in a fresh\n\
                    # clone. `-`: no pass is recorded, the seconds are an estimate for a slow machine.\n";
const UNKNOWN: &str = "-";

/// A step comes first once the main branch has this many commits since it passed: about a day's.
const STALE_COMMITS: u64 = 20;
/// Time for a step that is not recorded.
const USUAL_SECONDS: f64 = 300.0;
/// Limits for the measured slowness: a run that compiled nothing, or stalled, says little about other steps.
const SLOWNESS: [f64; 2] = [0.5, 3.0];

/// A step's last pass.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pass {
    /// `None` until a pass is recorded.
    commit: Option<String>,
    date: Option<String>,
    seconds: f64,
}

/// The passes by their steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Passes(BTreeMap<String, Pass>);

impl Passes {
    pub(crate) fn read() -> Result<Self, String> {
        Self::parse(&fs::read_to_string(process::root().join(FILE)).map_err(at(Path::new(FILE)))?)
    }

    #[cfg(test)]
    pub(crate) fn has(&self, step: &str) -> bool {
        self.0.contains_key(step)
    }

    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let known = |field: &str| (field != UNKNOWN).then(|| field.to_owned());
        let passes = text.lines().filter(|line| !line.starts_with('#')).map(|line| {
            let fields: Vec<_> = line.split('\t').collect();
            let [step, commit, date, seconds] = fields[..] else {
                return Err(format!("{FILE}: not four fields: {line}"));
            };
            let seconds = seconds.parse().map_err(|_| format!("{FILE}: seconds are not a number: {line}"))?;
            Ok((step.to_owned(), Pass { commit: known(commit), date: known(date), seconds }))
        });
        Ok(Self(passes.collect::<Result<_, _>>()?))
    }

    fn write(&self) -> String {
        let lines = self.0.iter().map(|(step, pass)| {
            let [commit, date] = [&pass.commit, &pass.date].map(|field| field.as_deref().unwrap_or(UNKNOWN));
            format!("{step}\t{commit}\t{date}\t{:.0}\n", pass.seconds)
        });
        HEAD.to_owned() + &lines.collect::<String>()
    }

    /// Records steps that have passed at the present commit.
    ///
    /// # Errors
    /// The sources differ from the commit, or the file cannot be written.
    pub(crate) fn record<'a>(
        mut self,
        passed: impl Iterator<Item = (&'a str, Duration)>,
    ) -> Result<(), String> {
        is_committed()?;
        let commit = git(&["log", "-1", "--format=%h"]).ok_or("git log failed")?;
        let date = git(&["log", "-1", "--format=%cs"]);
        for (step, duration) in passed {
            let pass =
                Pass { commit: Some(commit.clone()), date: date.clone(), seconds: duration.as_secs_f64() };
            self.0.insert(step.to_owned(), pass);
        }
        process::write(&process::root().join(FILE), self.write())
    }

    /// How much slower this machine is than the recorded one, by a step's duration here.
    pub(crate) fn slowness(&self, step: &str, duration: Duration) -> f64 {
        let [low, high] = SLOWNESS;
        self.0.get(step).map_or(1.0, |pass| (duration.as_secs_f64() / pass.seconds).clamp(low, high))
    }

    /// Returns a step's expected duration.
    pub(crate) fn estimate(&self, step: &str, slowness: f64) -> Duration {
        let seconds = self.0.get(step).map_or(USUAL_SECONDS, |pass| pass.seconds);
        Duration::try_from_secs_f64(seconds * slowness).unwrap_or_default()
    }

    /// The steps, each with its code's paths, in the order in which they run, by the repository's history.
    pub(crate) fn order<'a>(&self, steps: impl Iterator<Item = (&'static str, &'a [&'a str])>) -> Vec<Due> {
        let due = steps.map(|(step, paths)| {
            let commit = self.0.get(step).and_then(|pass| pass.commit.as_deref());
            let range = commit.map(|commit| format!("{commit}..HEAD"));
            let ask = |arguments: &[&str]| git(&[arguments, &[range.as_deref()?, "--"], paths].concat());
            let since =
                range.as_ref().and_then(|range| git(&["rev-list", "--count", "--first-parent", range]));
            let changed = ask(&["diff", "--name-only"]).filter(|_| !paths.is_empty());
            let changed = changed.and_then(|files| files.lines().next().map(str::to_owned));
            Due { step, since: since.and_then(|count| count.parse().ok()), changed }
        });
        let commits = git(&["rev-list", "--count", "--first-parent", "HEAD"]);
        ordered(due.collect(), commits.and_then(|count| count.parse().ok()).unwrap_or(0))
    }
}

/// Whether `--record` can name a commit for the steps.
pub(crate) fn is_committed() -> Result<(), String> {
    let changes =
        git(&["status", "--porcelain", "--", ".", &format!(":!{FILE}")]).ok_or("git status failed")?;
    match changes.lines().next() {
        None => Ok(()),
        Some(change) => Err(format!("--record: not committed: {}", change.trim())),
    }
}

/// A step that may run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Due {
    pub(crate) step: &'static str,
    /// Commits on the main branch since the step passed; `None` if no pass is recorded, or not in this clone.
    since: Option<u64>,
    /// A file in the step's code that has changed since.
    changed: Option<String>,
}

impl Due {
    fn is_urgent(&self) -> bool {
        self.changed.is_some() || self.since.is_none_or(|since| since >= STALE_COMMITS)
    }

    /// Why the step has its place in the order.
    pub(crate) fn why(&self) -> String {
        match (&self.changed, self.since) {
            (Some(file), _) => format!("changed since it passed: {file}"),
            (None, None) => "no pass is recorded, or its commit is not in this clone".to_owned(),
            (None, Some(since)) => format!("{since} commits since it passed"),
        }
    }
}

/// Urgent steps first, then by the commits since they passed. Equal steps take turns from commit to commit.
fn ordered(mut due: Vec<Due>, commits: u64) -> Vec<Due> {
    let turn = usize::try_from(commits).unwrap_or(0) % due.len().max(1);
    due.rotate_left(turn);
    due.sort_by_key(|due| (!due.is_urgent(), Reverse(due.since.unwrap_or(u64::MAX))));
    due
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(step: &'static str, since: Option<u64>, changed: bool) -> Due {
        Due { step, since, changed: changed.then(|| "file".to_owned()) }
    }

    fn names(due: Vec<Due>, commits: u64) -> Vec<&'static str> {
        ordered(due, commits).iter().map(|due| due.step).collect()
    }

    #[test]
    fn changed_stale_and_unrecorded_steps_come_first_then_the_longest_unrun() {
        let steps = vec![
            due("new", Some(1), false),
            due("old", Some(STALE_COMMITS - 1), false),
            due("changed", Some(2), true),
            due("stale", Some(STALE_COMMITS), false),
            due("never", None, false),
        ];
        assert_eq!(names(steps, 0), ["never", "stale", "changed", "old", "new"]);
    }

    #[test]
    fn steps_that_passed_at_one_commit_take_turns() {
        let steps = || vec![due("a", Some(3), false), due("b", Some(3), false), due("c", Some(3), false)];
        assert_eq!(names(steps(), 3), ["a", "b", "c"]);
        assert_eq!(names(steps(), 4), ["b", "c", "a"]);
        assert_eq!(names(steps(), 5), ["c", "a", "b"]);
        assert!(names(Vec::new(), 5).is_empty());
    }

    #[test]
    fn estimates_are_recorded_seconds_by_the_measured_slowness() {
        let passes =
            Passes::parse("tests\tabc\t2026-01-01\t100\nfuzz\t-\t-\t200\n").expect("they are passes");
        let slowness = passes.slowness("tests", Duration::from_secs(150));
        assert_eq!(passes.estimate("fuzz", slowness), Duration::from_secs(300));
        assert_eq!(passes.estimate("unknown", 1.0), Duration::from_secs(300));
        assert_eq!(passes.slowness("tests", Duration::from_secs(1)), SLOWNESS[0]);
        assert_eq!(passes.slowness("tests", Duration::from_secs(9000)), SLOWNESS[1]);
        assert_eq!(passes.slowness("unknown", Duration::from_secs(1)), 1.0);
    }

    #[test]
    fn passes_read_back_as_written_and_faults_name_the_line() {
        let text = "fuzz\t-\t-\t200\ntests\tabc\t2026-01-01\t100\n";
        let passes = Passes::parse(text).expect("they are passes");
        assert_eq!(passes.write(), format!("{HEAD}{text}"));
        assert!(Passes::parse("tests\tabc").is_err_and(|why| why.ends_with("not four fields: tests\tabc")));
        assert!(Passes::parse("tests\ta\tb\tmany").is_err_and(|why| why.contains("not a number")));
    }
}
