//! The Rust tests: compiled once, and each test binary run on each backend that it knows.

use std::env;
use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::slice;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::Outcome;
use crate::backend::{Backend, Choice};
use crate::count::Count;
use crate::process;
use crate::steps;
use crate::times;

/// Binaries that start servers or event loops: they read `SINEWS_TEST_BACKEND`. With each change they run on the ring, where it
/// is permitted, and on the other backend in the step [`SECOND`].
const WITH_BACKEND: [(&str, &str); 7] = [
    ("cli", "program"),
    ("cli", "tools"),
    ("cli", "first_byte"),
    ("hub", "loopback"),
    ("server", "loopback"),
    ("server", "measures"),
    ("engine", "loopback"),
];
/// Of these, the binaries that test the backends themselves: they run on both with each change.
const ON_EACH: [(&str, &str); 2] = [("engine", "loopback"), ("server", "loopback")];
/// Tests that bound latencies run when nothing else does: package, target, and the tests' name prefix. The target's
/// other tests run in parallel.
const ALONE: [(&str, &str, &str); 2] = [("cli", "first_byte", ""), ("hub", "memory", "unread_answers::")];
/// The longest binaries start first, in this order: at the end, each core has work. The rest follows in cargo's order.
const LONGEST: [(&str, &str); 7] = [
    ("cli", "program"),
    ("hub", "loopback"),
    ("conformance", "cases"),
    ("server", "loopback"),
    ("cli", "tools"),
    ("engine", "sinews_engine"),
    ("hub", "memory"),
];
/// Binaries that run at a time. The examples in the documentation, which run first, count as one.
const AT_A_TIME: usize = 3;
/// Tests of a binary in [`WITH_BACKEND`] that run at a time, for each processor: they wait more than they compute.
const TESTS_PER_PROCESSOR: usize = 3;
/// The step that compiles the tests, and what other steps start.
pub(crate) const COMPILE: &str = "compile";
/// The step that runs the tests.
pub(crate) const STEP: &str = "tests";
/// The step that runs tests on the backend on which [`STEP`] has not run them.
pub(crate) const SECOND: &str = "second";
/// Number of slowest runs to print.
const SLOWEST: usize = 10;

/// The test binaries, once this process has compiled them.
static BUILT: OnceLock<Result<Vec<Binary>, String>> = OnceLock::new();
/// The checked program's features beyond its defaults.
pub(crate) const CHECKED_FEATURES: &str = "sinews-cli/http3";
/// Tells the tasks that this process starts that the debug programs belong to the present sources.
pub(crate) const BUILT_VARIABLE: &str = "XTASK_BUILT";

/// Whether the workspace's debug programs need no further build.
pub(crate) fn are_built() -> bool {
    BUILT.get().is_some_and(Result::is_ok) || env::var_os(BUILT_VARIABLE).is_some()
}

/// A compiled test binary.
#[derive(Clone, Debug, PartialEq)]
struct Binary {
    /// Its package's folder, from which it runs.
    directory: PathBuf,
    /// Cargo's target name.
    target: String,
    path: PathBuf,
}

/// A binary, the backend that it runs on, and where its output goes.
#[derive(Clone)]
struct Job {
    binary: Binary,
    backend: Backend,
    log: PathBuf,
    /// The tests to run. Empty: all.
    filter: Vec<&'static str>,
}

/// A job that has run.
struct Ran {
    log: PathBuf,
    count: Count,
    duration: Duration,
}

/// Compiles all workspace targets, with every library feature and Clippy's lints.
pub(crate) fn compile(log: &Path, _: Choice) -> Outcome {
    build(log).map(|_| Count::PASSED)
}

/// Runs the tests.
pub(crate) fn run(log: &Path, choice: Choice) -> Outcome {
    let binaries = build(log)?;
    let permitted = choice.permitted(&process::target().join("debug/sinews"))?;
    let (backends, logs) = (&permitted.backends[..], log.with_file_name("tests"));
    let documents = [Run::Documents(logs.join("doc.log"))];
    let mut ran = run_all(documents.into_iter().chain(runs(jobs(binaries, backends, &logs))), &logs);
    let count = report(&mut ran, log);
    let lacking = crate::features::lacking().map_or_else(Count::default, |why| steps::skip(log, why));
    Ok(count + steps::skip_refused(log, &permitted) + lacking)
}

/// Runs the tests that [`run`] has run on one of two backends, on the other one.
pub(crate) fn run_second(log: &Path, choice: Choice) -> Outcome {
    let binaries = build(log)?;
    let permitted = choice.permitted(&process::target().join("debug/sinews"))?;
    let [second, _] = permitted.backends[..] else {
        let why = "one backend is chosen or permitted: the step `tests` runs all tests on it";
        return Ok(steps::skip(log, why));
    };
    let logs = log.with_file_name("tests-second");
    let binaries =
        binaries.into_iter().filter(|binary| is_in(&WITH_BACKEND, binary) && !is_in(&ON_EACH, binary));
    let mut ran = run_all(runs(jobs(binaries.collect(), &[second], &logs)), &logs);
    Ok(report(&mut ran, log))
}

/// A part of the tests.
enum Run {
    /// The examples in the documentation, which cargo compiles itself, and where their output goes.
    Documents(PathBuf),
    Beside(Job),
    Alone(Job),
}

impl Run {
    fn run(self) -> Ran {
        times::enter(Some(STEP));
        match self {
            Self::Documents(log) => document_tests(&log),
            Self::Beside(job) | Self::Alone(job) => run_one(&job),
        }
    }
}

/// Returns the jobs' runs. A job with tests that run alone has two.
fn runs(jobs: Vec<Job>) -> impl Iterator<Item = Run> {
    jobs.into_iter().flat_map(|job| {
        let alone = ALONE.iter().find(|(package, target, _)| is_target(&job.binary, package, target));
        match alone {
            None => vec![Run::Beside(job)],
            Some((.., "")) => vec![Run::Alone(job)],
            Some((.., tests)) => {
                let log = job.log.with_extension("alone.log");
                let alone = Job { filter: vec![tests], log, ..job.clone() };
                vec![Run::Beside(Job { filter: vec!["--skip", tests], ..job }), Run::Alone(alone)]
            }
        }
    })
}

/// Carries out the runs in their order, and those that run alone at the end.
fn run_all(runs: impl Iterator<Item = Run>, logs: &Path) -> Vec<Ran> {
    // The log from a deleted test would mislead.
    let _ = fs::remove_dir_all(logs);
    let (alone, beside) = runs.partition(|run| matches!(run, Run::Alone(_)));
    let mut ran = process::run_beside(beside, AT_A_TIME, Run::run);
    ran.extend(process::run_beside(alone, 1, Run::run));
    ran
}

/// Returns cargo's arguments for the workspace's one debug build, which has the features of all packages together.
pub(crate) fn selection() -> Result<Vec<String>, String> {
    let features = format!("{},{}", crate::features::of_workspace()?, CHECKED_FEATURES);
    let selected = ["--workspace", "--exclude", "sinews-fuzz", "--exclude", "sinews-benches", "--features"];
    let selected = selected.map(str::to_owned);
    Ok(selected.into_iter().chain([features]).collect())
}

/// The debug build of `sinews`, built now: for checks of correctness, with overflow checks.
pub(crate) fn build_debug() -> Result<PathBuf, String> {
    build_tested(&["sinews".to_owned()], &[])?;
    Ok(process::target().join("debug/sinews"))
}

/// Builds the debug builds of programs and examples. The Rust tests use the same builds, so that a later test run compiles nothing
/// for them.
pub(crate) fn build_tested(programs: &[String], examples: &[String]) -> Result<(), String> {
    let is_there = |program: &String| process::target().join("debug").join(program).is_file();
    if are_built() && examples.is_empty() && programs.iter().all(is_there) {
        return Ok(());
    }
    let mut build = process::linting_cargo()?;
    build.arg("build").args(selection()?);
    build.args(programs.iter().flat_map(|name| ["--bin", name]));
    build.args(examples.iter().flat_map(|name| ["--example", name]));
    let name = [programs, examples].concat().join("-");
    process::succeed(&mut build, &format!("build of {name}"), &process::log(&format!("build-{name}")))
}

fn build(log: &Path) -> Result<Vec<Binary>, String> {
    BUILT.get_or_init(|| build_now(log)).clone()
}

fn build_now(log: &Path) -> Result<Vec<Binary>, String> {
    let mut command = process::linting_cargo()?;
    command.arg("build").args(selection()?).args(["--tests", "--bins", "--examples"]);
    command.arg("--message-format=json-render-diagnostics");
    let log = log.with_file_name("tests-build.log");
    process::succeed(&mut command, "compiling the tests", &log)?;
    let text = process::read(&log);
    if process::warnings(&text).next().is_some() {
        let warnings: Vec<_> = text.lines().filter(|line| !line.starts_with('{')).collect();
        return Err(format!("warnings, see {}\n{}", log.display(), warnings.join("\n")));
    }
    Ok(text.lines().filter_map(parse).collect())
}

/// Returns the test binary that a message line from cargo names.
fn parse(line: &str) -> Option<Binary> {
    let message: Value = serde_json::from_str(line).ok()?;
    let is_artifact = message["reason"] == "compiler-artifact";
    let is_test =
        is_artifact && message["profile"]["test"] == true && message["target"]["kind"][0] != "bench";
    let path = message["executable"].as_str().filter(|_| is_test)?;
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let target = message["target"]["name"].as_str()?.to_owned();
    Some(Binary { directory: manifest.parent()?.to_owned(), target, path: path.into() })
}

fn is_in(list: &[(&str, &str)], binary: &Binary) -> bool {
    list.iter().any(|(package, target)| is_target(binary, package, target))
}

fn is_target(binary: &Binary, package: &str, target: &str) -> bool {
    binary.directory.ends_with(package) && binary.target == target
}

/// Returns each binary's backends: all for backend tests, the last, which is preferred, for binaries that know
/// backends. Binaries that know no backend run once.
fn jobs(binaries: Vec<Binary>, backends: &[Backend], logs: &Path) -> Vec<Job> {
    let mut jobs = Vec::new();
    for binary in binaries {
        let chosen = match (backends, is_in(&WITH_BACKEND, &binary)) {
            (all, true) if is_in(&ON_EACH, &binary) => all,
            ([.., preferred], true) => slice::from_ref(preferred),
            (all, _) => &all[..all.len().min(1)],
        };
        for backend in chosen {
            let package = binary.directory.file_name().unwrap_or_default().to_string_lossy();
            let log = logs.join(format!("{package}-{}-{}.log", binary.target, backend.name()));
            jobs.push(Job { binary: binary.clone(), backend: *backend, log, filter: Vec::new() });
        }
    }
    let rank =
        |job: &Job| LONGEST.iter().position(|(package, target)| is_target(&job.binary, package, target));
    jobs.sort_by_key(|job| rank(job).unwrap_or(LONGEST.len()));
    jobs
}

fn run_one(job: &Job) -> Ran {
    let mut command = Command::new(&job.binary.path);
    command
        .args(&job.filter)
        .current_dir(&job.binary.directory)
        .env("CARGO_MANIFEST_DIR", &job.binary.directory);
    command.env("SINEWS_TEST_BACKEND", job.backend.name());
    if is_in(&WITH_BACKEND, &job.binary) {
        let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        command.env("RUST_TEST_THREADS", (TESTS_PER_PROCESSOR * processors).to_string());
    }
    measure(&mut command, &job.log)
}

fn document_tests(log: &Path) -> Ran {
    let Ok(mut command) = process::linting_cargo() else { return failed(log) };
    command.args(["test", "--doc", "--no-fail-fast"]).args(selection().unwrap_or_default());
    measure(&mut command, log)
}

/// A run whose output says how many tests passed. One that fails without such a line counts as one failure.
fn measure(command: &mut Command, log: &Path) -> Ran {
    let started = Instant::now();
    let end = process::succeed(command, "the tests", log);
    let duration = started.elapsed();
    let mut count = Count::parse_cargo_test(&process::read(log));
    if end.is_err() && count.failed == 0 {
        count = count + Count::FAILED;
    }
    Ran { log: log.to_owned(), count, duration }
}

fn failed(log: &Path) -> Ran {
    Ran { log: log.to_owned(), count: Count::FAILED, duration: Duration::ZERO }
}

/// Prints where the time went, puts the failures' output into the step's log, and counts the tests.
fn report(ran: &mut [Ran], log: &Path) -> Count {
    ran.sort_by_key(|ran| std::cmp::Reverse(ran.duration));
    for Ran { log, duration, .. } in ran.iter().take(SLOWEST) {
        let name = log.file_stem().unwrap_or_default().to_string_lossy();
        println!("    {:6.1} s {name}", duration.as_secs_f64());
    }
    let faults = ran.iter().filter(|ran| ran.count.failed > 0);
    let faults = faults.map(|ran| format!("{}\n{}\n", ran.log.display(), process::read(&ran.log)));
    if let Err(why) = process::write(log, faults.collect::<String>()) {
        println!("{why}");
    }
    ran.iter().map(|ran| ran.count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARTIFACT: &str = r#"{"reason":"compiler-artifact","manifest_path":"/r/crates/cli/Cargo.toml",
        "target":{"name":"program"},"profile":{"test":true},"executable":"/r/target/debug/deps/program-1"}"#;

    fn binary(package: &str, target: &str) -> Binary {
        let path = format!("/r/target/debug/deps/{target}-1").into();
        Binary { directory: format!("/r/crates/{package}").into(), target: target.to_owned(), path }
    }

    #[test]
    fn test_binaries_are_read_from_cargo_messages() {
        let artifact = ARTIFACT.replace('\n', "");
        assert_eq!(parse(&artifact), Some(binary("cli", "program")));
        let others =
            [&*artifact.replace("true", "false"), r#"{"reason":"build-finished"}"#, "warning: unused"];
        assert_eq!(others.map(parse), [None, None, None]);
    }

    #[test]
    fn tests_of_backends_run_on_each_and_the_longest_first() {
        let names = [("proto", "handshake"), ("server", "loopback"), ("cli", "program")];
        let binaries = names.map(|(package, target)| binary(package, target)).to_vec();
        let jobs = jobs(binaries, &[Backend::Poll, Backend::Uring], Path::new("/logs"));
        let logs: Vec<_> = jobs.iter().map(|job| job.log.to_str().unwrap_or_default()).collect();
        let expected =
            ["cli-program-uring", "server-loopback-poll", "server-loopback-uring", "proto-handshake-poll"];
        assert_eq!(logs, expected.map(|name| format!("/logs/{name}.log")));
    }

    #[test]
    fn bounds_of_latencies_run_alone_and_other_tests_of_their_program_do_not() {
        let names = [("cli", "first_byte"), ("hub", "memory"), ("proto", "handshake")];
        let binaries = names.map(|(package, target)| binary(package, target)).to_vec();
        let runs = runs(jobs(binaries, &[Backend::Poll], Path::new("/logs")));
        let shown = runs.map(|run| match run {
            Run::Documents(_) => unreachable!("no job has documents"),
            Run::Beside(job) => ("beside", job.log, job.filter),
            Run::Alone(job) => ("alone", job.log, job.filter),
        });
        let log = |name: &str| PathBuf::from(format!("/logs/{name}"));
        let expected = [
            ("beside", log("hub-memory-poll.log"), vec!["--skip", "unread_answers::"]),
            ("alone", log("hub-memory-poll.alone.log"), vec!["unread_answers::"]),
            ("alone", log("cli-first_byte-poll.log"), vec![]),
            ("beside", log("proto-handshake-poll.log"), vec![]),
        ];
        assert_eq!(shown.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn failed_run_without_counts_is_one_failure() {
        let log = process::log("self-test-binary");
        let measure = |script| measure(Command::new("sh").args(["-c", script]), &log).count;
        assert_eq!(measure("exit 101"), Count::FAILED);
        let text = "echo test result: FAILED. 1 passed\\; 2 failed\\; 0 ignored; exit 101";
        assert_eq!(measure(text), Count { passed: 1, failed: 2, skipped: 0 });
    }
}
