//! `cargo xtask test`: what each change must pass; with `--all`, every check of the repository.

use std::env;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use clap::builder::PossibleValuesParser;

use crate::Outcome;
use crate::backend::{Choice, Permitted};
use crate::binaries;
use crate::count::Count;
use crate::gates;
use crate::process;
use crate::rotation::{self, Due, Passes};
use crate::server;
use crate::times::{self, Spent};

/// For each target under cargo-fuzz: enough to see that it runs. Looking for faults takes longer.
const FUZZ_SECONDS: &str = "-max_total_time=10";

/// A step writes what it does to the log, and runs on the backends chosen where it runs a server.
type Run = fn(&Path, Choice) -> Outcome;

/// The lane of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    /// Each change passes it: `cargo xtask test`.
    Test,
    /// What `--all` adds.
    Long,
}

/// Cheap steps first: what is wrong shows early.
const STEPS: [(&str, Lane, Run); 28] = [
    ("fmt", Lane::Test, fmt),
    ("tidy", Lane::Test, tidy),
    (binaries::STEP, Lane::Test, binaries::run),
    ("autobahn", Lane::Test, autobahn),
    ("pages", Lane::Test, pages),
    ("no_std", Lane::Long, no_std),
    (binaries::SECOND, Lane::Long, binaries::run_second),
    ("deny", Lane::Long, gates::deny),
    ("build", Lane::Long, build),
    ("conformance", Lane::Long, conformance),
    ("examples", Lane::Long, examples),
    ("interop", Lane::Long, interop),
    ("doc", Lane::Long, doc),
    ("msrv", Lane::Long, gates::oldest_compiler),
    ("targets", Lane::Long, gates::targets),
    ("api", Lane::Long, api),
    ("sanitizer", Lane::Long, gates::sanitizer),
    ("fuzz", Lane::Long, fuzz),
    ("features", Lane::Long, features),
    ("floors", Lane::Long, floors),
    ("instructions", Lane::Long, instructions),
    ("packages", Lane::Long, packages),
    ("archive", Lane::Long, archive),
    ("soak", Lane::Long, soak),
    ("reconnects", Lane::Long, reconnects),
    ("browser", Lane::Long, browser),
    ("deploy", Lane::Long, deploy),
    ("brokers", Lane::Long, brokers),
];

/// Steps that mostly wait, and alone would leave a core idle: the other ones run beside them.
const WAITING: [&str; 7] =
    ["autobahn", "conformance", "examples", "interop", "soak", "reconnects", "browser"];
/// Steps that nothing runs beside: the later ones need what they compile.
const ALONE: [&str; 3] = ["fmt", "tidy", binaries::STEP];

/// Name of a step, and what it does.
type Step = (&'static str, Run);

/// A step that has run, and how long it took.
type Row = (&'static str, Count, Duration);

#[derive(Args)]
pub(crate) struct Options {
    /// Every check of the repository: half an hour more
    #[arg(long)]
    all: bool,
    /// Only these steps, of any lane
    #[arg(long, value_delimiter = ',', value_parser = PossibleValuesParser::new(STEPS.map(|(name, ..)| name)))]
    only: Vec<String>,
    /// All but these steps
    #[arg(long, value_delimiter = ',', value_parser = PossibleValuesParser::new(STEPS.map(|(name, ..)| name)))]
    skip: Vec<String>,
    /// Backend of the servers in the steps: what depends on it runs once for each
    #[arg(long, value_enum, default_value_t = Choice::Both)]
    backend: Choice,
    /// Of what `--all` adds, only steps that end within this number of seconds after the start, by their recorded
    /// duration: changed ones and those longest without a pass first
    #[arg(long, value_name = "SECONDS", requires = "all")]
    within: Option<u64>,
    /// Record the steps that pass in `dev/xtask/passed.tsv`, with this commit and their duration. In a fresh clone:
    /// later runs take the duration for their estimates
    #[arg(long)]
    record: bool,
}

impl Options {
    fn wants(&self, name: &str, lane: Lane) -> bool {
        let is_in = |list: &[String]| list.iter().any(|entry| entry == name);
        let is_chosen = match lane {
            _ if !self.only.is_empty() => is_in(&self.only),
            Lane::Test => true,
            Lane::Long => self.all,
        };
        is_chosen && !is_in(&self.skip)
    }
}

/// How the steps of one run are carried out.
#[derive(Clone, Copy)]
struct Schedule<'a> {
    backend: Choice,
    /// The end of the time for steps, with what says how long a step takes.
    limit: Option<Limit<'a>>,
}

#[derive(Clone, Copy)]
struct Limit<'a> {
    deadline: Instant,
    passes: &'a Passes,
    slowness: f64,
}

impl Schedule<'_> {
    /// Whether a step that starts now ends before the deadline.
    fn permits(self, name: &str) -> bool {
        self.limit.is_none_or(|Limit { deadline, passes, slowness }| {
            Instant::now() + passes.estimate(name, slowness) <= deadline
        })
    }
}

pub(crate) fn run(options: &Options) -> Outcome {
    let started = Instant::now();
    let passes = Passes::read()?;
    if options.record {
        rotation::is_committed()?;
    }
    own_program()?;
    times::begin();
    let chosen = |wanted: Lane| {
        let steps = STEPS.into_iter().filter(move |(_, lane, _)| *lane == wanted);
        let steps = steps.filter(|(name, lane, _)| options.wants(name, *lane));
        steps.map(|(name, _, run)| (name, run)).collect::<Vec<Step>>()
    };
    let mut schedule = Schedule { backend: options.backend, limit: None };
    let (alone, test): (Vec<_>, Vec<_>) =
        chosen(Lane::Test).into_iter().partition(|(name, _)| ALONE.contains(name));
    let mut rows: Vec<Row> = alone.into_iter().map(|step| run_step(step, schedule)).collect();
    rows.extend(run_waiting_beside(test, schedule));
    let mut long = chosen(Lane::Long);
    if let Some(seconds) = options.within {
        let tests = rows.iter().find(|(name, ..)| *name == binaries::STEP);
        let slowness = tests.map_or(1.0, |(name, _, duration)| passes.slowness(name, *duration));
        let deadline = started + Duration::from_secs(seconds);
        schedule.limit = Some(Limit { deadline, passes: &passes, slowness });
        long = in_turn(&long, &passes, slowness);
    }
    rows.extend(run_waiting_beside(long, schedule));
    println!("\n{:<12} {:>7} {:>7} {:>7} {:>8}", "step", "passed", "failed", "skipped", "seconds");
    for (name, count, duration) in &rows {
        print_row(name, *count, *duration);
    }
    let total = rows.iter().map(|(_, count, _)| *count).sum();
    print_row("all", total, started.elapsed());
    times::print_longest();
    if options.record {
        let has_passed = |row: &&Row| row.1.failed == 0 && row.1.passed > 0;
        let passed: Vec<_> =
            rows.iter().filter(has_passed).map(|(name, _, duration)| (*name, *duration)).collect();
        passes.record(&passed)?;
    }
    Ok(total)
}

/// Names of the steps that `--all` adds.
#[cfg(test)]
pub(crate) fn long_steps() -> impl Iterator<Item = &'static str> {
    STEPS.into_iter().filter(|(_, lane, _)| *lane == Lane::Long).map(|(name, ..)| name)
}

/// The long steps in the order in which they run in limited time. Prints it, with the reasons.
fn in_turn(steps: &[Step], passes: &Passes, slowness: f64) -> Vec<Step> {
    println!("\norder of the long steps, at {slowness:.2} times their recorded seconds:");
    let names: Vec<_> = steps.iter().map(|(name, _)| *name).collect();
    let order = passes.order(&names);
    for due in &order {
        println!("{:<12} {:>5} s  {}", due.step, passes.estimate(due.step, slowness).as_secs(), due.why());
    }
    let find = |due: &Due| steps.iter().find(|(name, _)| *name == due.step).copied();
    order.iter().filter_map(find).collect()
}

fn print_row(name: &str, count: Count, duration: Duration) {
    let Count { passed, failed, skipped } = count;
    println!("{name:<12} {passed:>7} {failed:>7} {skipped:>7} {:>8.1}", duration.as_secs_f64());
}

fn run_step(step: Step, schedule: Schedule<'_>) -> Row {
    print!("{:<12} ", step.0);
    // A line that appears late is only ugly.
    let _ = io::stdout().flush();
    let (row, words) = carry_out(step, schedule);
    println!("{words}");
    row
}

/// Runs the steps that mostly wait, and beside them the others; both in their order.
fn run_waiting_beside(steps: Vec<Step>, schedule: Schedule<'_>) -> Vec<Row> {
    let (first, second): (Vec<_>, Vec<_>) = steps.into_iter().partition(|(name, _)| WAITING.contains(name));
    match (&first[..], &second[..]) {
        (one, []) | ([], one) => one.iter().map(|step| run_step(*step, schedule)).collect(),
        (first, second) => run_beside(first, second, schedule),
    }
}

fn run_beside(first: &[Step], second: &[Step], schedule: Schedule<'_>) -> Vec<Row> {
    let names = |steps: &[Step]| steps.iter().map(|step| step.0).collect::<Vec<_>>().join(", ");
    println!("{} beside {}", names(first), names(second));
    let told = |step: &Step| {
        let (row, words) = carry_out(*step, schedule);
        println!("{:<12} {words}", step.0);
        row
    };
    thread::scope(|scope| {
        let beside = scope.spawn(|| second.iter().map(told).collect::<Vec<_>>());
        let mut rows: Vec<Row> = first.iter().map(told).collect();
        // A step does not panic; if one does, the others have run.
        rows.extend(beside.join().unwrap_or_else(|_| vec![("panicked", Count::FAILED, Duration::ZERO)]));
        rows
    })
}

/// Runs a step. What is said of it goes behind its name.
fn carry_out((name, run): Step, schedule: Schedule<'_>) -> (Row, String) {
    if !schedule.permits(name) {
        let why = format!("skipped: no time is left for it (cargo xtask test --only {name})");
        return ((name, Count::SKIPPED, Duration::ZERO), why);
    }
    let log = process::target().join("xtask").join(format!("{name}.log"));
    // What is added to it must not be added to that of an earlier run.
    let _ = fs::remove_file(&log);
    times::enter(Some(name));
    let started = Instant::now();
    let outcome = run(&log, schedule.backend);
    let duration = started.elapsed();
    times::enter(None);
    times::record(name, times::WHOLE_STEP, Spent { wall: duration, cpu: None });
    let count = outcome.as_ref().map_or(Count::FAILED, |count| *count);
    let word = if count.failed > 0 { "FAILED" } else { "ok" };
    let mut words = vec![format!("{word} in {:.1} s: {count}", duration.as_secs_f64())];
    words.extend(log_lines(&log).into_iter().filter(|line| is_skip(line)));
    if count.failed > 0 {
        let counted = || format!("see {}\n{}", log.display(), what_failed(&log_lines(&log)).join("\n"));
        words.extend(outcome.err().unwrap_or_else(counted).lines().map(str::to_owned));
    }
    ((name, count, duration), words.join("\n    "))
}

fn fmt(log: &Path, _: Choice) -> Outcome {
    single(process::cargo().args(["fmt", "--all", "--check", "--", "--color", "never"]), log)
}

fn doc(log: &Path, _: Choice) -> Outcome {
    let mut command = process::cargo();
    command.args(["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings");
    let count = single(&mut command, log)?;
    let mut library = process::cargo();
    library.args(["doc", "--package", "sinews", "--no-deps"]).args(crate::features::all()?);
    library.env("RUSTDOCFLAGS", "-D warnings");
    Ok(count + single(&mut library, &log.with_file_name("doc-library.log"))?)
}

/// The protocol without features; and a program around it that links only where nothing brings
/// `std` in, which our own crates' attributes cannot promise for their dependencies.
fn no_std(log: &Path, _: Choice) -> Outcome {
    let check = ["check", "--package", "sinews-proto", "--no-default-features"];
    let count = single(process::cargo().args(check), log)?;
    let mut program = process::cargo();
    program.args(["build", "--locked", "--manifest-path", "dev/bare/Cargo.toml", "--target-dir"]);
    program.arg(process::target().join("bare"));
    Ok(count + single(&mut program, &log.with_file_name("no_std-program.log"))?)
}

fn features(log: &Path, _: Choice) -> Outcome {
    task(&["features"], log)
}

fn floors(log: &Path, _: Choice) -> Outcome {
    task(&["floors"], log)
}

fn api(log: &Path, _: Choice) -> Outcome {
    task(&["api"], log)
}

/// All cases of Autobahn against the server of the tests' build.
fn autobahn(log: &Path, choice: Choice) -> Outcome {
    on_tests_build(&["conformance", "--target", "serve"], log, choice)
}

/// The chat in a browser, with the server of the tests' build.
fn pages(log: &Path, choice: Choice) -> Outcome {
    on_tests_build(&["browser", "--only", "chat"], log, choice)
}

/// A task with the server of the tests' build, on the backend that it chooses by itself.
fn on_tests_build(arguments: &[&str], log: &Path, choice: Choice) -> Outcome {
    let binary = server::build_debug("sinews")?;
    let uring = choice != Choice::Poll && Choice::Uring.permitted(&binary)?.refused.is_empty();
    let backend = if uring { Choice::Uring } else { Choice::Poll };
    let binary = binary.to_string_lossy();
    task(&[arguments, &["--backend", backend.name(), "--binary", &binary]].concat(), log)
}

/// The targets on their seeds and on inputs made up for a moment, as ordinary tests; and under
/// cargo-fuzz, which looks where the code branches, if it is installed.
fn fuzz(log: &Path, _: Choice) -> Outcome {
    let mut command = process::linting_cargo()?;
    command.args(["test", "--package", "sinews-fuzz", "--no-fail-fast"]);
    let mut count = counted(&mut command, log, Count::parse_cargo_test)?;
    if process::warnings(&log_lines(log).join("\n")).next().is_some() {
        count = count + Count::FAILED;
    }
    let Some(targets) = process::output_of(process::cargo().args(["fuzz", "list"])) else {
        return Ok(count + skip(log, "no cargo-fuzz (cargo install cargo-fuzz); the seeds ran as tests"));
    };
    for target in targets.lines() {
        let (corpus, seeds) =
            (process::root().join("fuzz/corpus").join(target), format!("fuzz/seeds/{target}"));
        fs::create_dir_all(&corpus).map_err(|error| format!("{}: {error}", corpus.display()))?;
        let mut command = process::cargo();
        // The sanitizer's flags are not stable; the compiler is.
        command.env("RUSTC_BOOTSTRAP", "1").env("RUST_BACKTRACE", "0").args([
            "fuzz",
            "run",
            "--features",
            "libfuzzer",
            target,
        ]);
        command.arg(corpus).args([&*seeds, "--", FUZZ_SECONDS]);
        count = count + single(&mut command, &log.with_file_name(format!("fuzz-{target}.log")))?;
    }
    Ok(count)
}

fn build(log: &Path, _: Choice) -> Outcome {
    // The command of the README, with the profile and the features that the other steps need: it names no program.
    let profile = ["--profile", server::CHECKS_PROFILE, "--features", server::CHECKED_FEATURES];
    let arguments = [&["run"], &profile[..], &["--", "--version"]].concat();
    single(process::cargo().args(arguments), log)
}

fn tidy(log: &Path, _: Choice) -> Outcome {
    task(&["tidy"], log)
}

/// What the step "autobahn" leaves.
fn conformance(log: &Path, backend: Choice) -> Outcome {
    // Compression is that of the server's runs: the other transports show their faults with the first messages.
    let few = ["conformance", "--count", "5", "--target", "http,tls,http2,http3,tokio,axum,compio"];
    let count = task(&[&few[..], &["--backend", backend.name()]].concat(), log)?;
    if backend == Choice::Uring {
        return Ok(count);
    }
    let serve = ["conformance", "--target", "serve", "--backend", Choice::Poll.name()];
    Ok(count + task(&serve, &log.with_file_name("conformance-serve.log"))?)
}

fn examples(log: &Path, backend: Choice) -> Outcome {
    task(&["examples", "--backend", backend.name()], log)
}

fn interop(log: &Path, backend: Choice) -> Outcome {
    task(&["interop", "--backend", backend.name()], log)
}

/// Without a browser on the machine, or its packages, the task says so and succeeds.
fn browser(log: &Path, backend: Choice) -> Outcome {
    task(&["browser", "--backend", backend.name()], log)
}

fn deploy(log: &Path, _: Choice) -> Outcome {
    task(&["deploy"], log)
}

/// The packages without the programs and without a compilation: `cargo xtask dist` makes all.
fn packages(log: &Path, _: Choice) -> Outcome {
    task(&["dist", "--only", "client,crates", "--no-verify"], log)
}

/// The archives, unpacked and started where this machine can run them. The programs are compiled without optimization.
fn archive(log: &Path, _: Choice) -> Outcome {
    task(&["dist", "--only", "programs", "--trial"], log)
}

fn instructions(log: &Path, _: Choice) -> Outcome {
    task(&["instructions"], log)
}

fn brokers(log: &Path, _: Choice) -> Outcome {
    task(&["brokers"], log)
}

/// Short, and the same in every run.
fn soak(log: &Path, backend: Choice) -> Outcome {
    task(&["soak", "--seconds", "20", "--seed", "1", "--backend", backend.name()], log)
}

/// Clients of the Pusher protocol that connect again at once, in full number: each change is tested with fewer.
fn reconnects(log: &Path, backend: Choice) -> Outcome {
    const TEST: &str = "pusher_5_8_clients_that_connect_again_at_once_are_served_and_miss_nothing";
    let permitted = backend.permitted(&server::binary(None)?)?;
    let mut count = skip_refused(log, &permitted);
    for backend in permitted.backends {
        let mut command = process::linting_cargo()?;
        command.arg("test").args(binaries::selection()?).args(["--test", "loopback", TEST]);
        command.env("SINEWS_TEST_BACKEND", backend.name()).env("SINEWS_TEST_RECONNECTS", "10000");
        count = count + counted_as(backend.name(), &mut command, log, Count::parse_cargo_test)?;
    }
    Ok(count)
}

/// A command that is one check.
pub(crate) fn single(command: &mut Command, log: &Path) -> Outcome {
    counted(command, log, |_| Count::PASSED)
}

/// A task of this program, as a process of its own so that its output goes to the log.
fn task(arguments: &[&str], log: &Path) -> Outcome {
    let mut command = Command::new(own_program()?);
    command.args(arguments).current_dir(process::root());
    if let Some(step) = times::step() {
        command.env(times::STEP_VARIABLE, step);
    }
    if binaries::are_built() {
        command.env(binaries::BUILT_VARIABLE, "1");
    }
    counted(&mut command, log, |text| Count::parse_last(text).unwrap_or_default())
}

/// This program's path. It is asked for before the tests are compiled: this program is one of theirs, and is replaced with
/// an equal one.
fn own_program() -> Result<&'static Path, String> {
    static OWN: OnceLock<io::Result<PathBuf>> = OnceLock::new();
    let own = OWN.get_or_init(env::current_exe).as_ref();
    own.map(PathBuf::as_path).map_err(|error| format!("path of this program: {error}"))
}

/// A command whose output says how many checks it made. That it failed counts once if no check did.
pub(crate) fn counted(command: &mut Command, log: &Path, count: fn(&str) -> Count) -> Outcome {
    command.env("CARGO_TERM_COLOR", "never");
    let end = process::run(command, log, process::COMMAND_LIMIT)?;
    let found = count(&log_lines(log).join("\n"));
    if found.failed == 0 {
        end.check("the command failed", log)?;
    }
    // A step in which nothing was checked has not passed.
    if found == Count::default() { Err("nothing was checked".to_owned()) } else { Ok(found) }
}

/// One of several runs of a step: its log is added to that of the step.
fn counted_as(run: &str, command: &mut Command, log: &Path, count: fn(&str) -> Count) -> Outcome {
    let step = log.file_stem().unwrap_or_default().to_string_lossy();
    let own = log.with_file_name(format!("{step}-{run}.log"));
    let found = counted(command, &own, count);
    let text = [log_lines(log), log_lines(&own)].concat().join("\n");
    fs::write(log, text).map_err(|error| format!("{}: {error}", log.display()))?;
    found
}

pub(crate) fn skip_refused(log: &Path, permitted: &Permitted) -> Count {
    permitted.refused.iter().map(|why| skip(log, why)).sum()
}

/// Notes in the log why something was not run.
pub(crate) fn skip(log: &Path, why: &str) -> Count {
    let text = format!("{}\nskipped: {why}\n", log_lines(log).join("\n"));
    if let Err(error) = fs::write(log, text) {
        println!("{}: {error}", log.display());
    }
    Count::SKIPPED
}

/// What failed tests have printed; of a log of checks, those that failed; of another log, its end.
fn what_failed(log: &[String]) -> Vec<String> {
    let checks = log.iter().filter(|line| line.trim_start().starts_with("FAIL ")).take(process::TAIL_LINES);
    let checks: Vec<_> = checks.cloned().collect();
    if !checks.is_empty() {
        return checks;
    }
    let first = log.iter().position(|line| line.starts_with("---- ") && line.ends_with(" ----"));
    let from = first.unwrap_or_else(|| log.len().saturating_sub(process::TAIL_LINES));
    log[from..log.len().min(from + process::TAIL_LINES)].to_vec()
}

fn is_skip(line: &str) -> bool {
    line.starts_with("skipped:") || line.starts_with("SKIPPED ")
}

fn log_lines(log: &Path) -> Vec<String> {
    let text = fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests_of_steps {
    use super::*;

    fn sh(script: &str, name: &str) -> Outcome {
        let log = process::target().join("xtask").join(format!("self-test-{name}.log"));
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        counted(&mut command, &log, |text| Count::parse_last(text).unwrap_or_default())
    }

    #[test]
    fn waiting_and_lone_steps_are_steps() {
        let names = STEPS.map(|(name, ..)| name);
        assert!(WAITING.iter().chain(&ALONE).all(|name| names.contains(name)));
    }

    #[test]
    fn step_without_time_left_is_skipped_with_its_command_and_a_shorter_one_runs() {
        let passes = Passes::parse("long\t-\t-\t100\nshort\t-\t-\t10\n").expect("they are passes");
        let deadline = Instant::now() + Duration::from_secs(60);
        let step = |name| -> Step { (name, |_, _| Ok(Count::PASSED)) };
        let schedule = |slowness| Schedule {
            backend: Choice::Both,
            limit: Some(Limit { deadline, passes: &passes, slowness }),
        };
        let (row, words) = carry_out(step("long"), schedule(1.0));
        assert_eq!(row.1, Count::SKIPPED);
        assert!(words.starts_with("skipped: ") && words.contains("--only long"), "{words}");
        assert_eq!(carry_out(step("short"), schedule(1.0)).0.1, Count::PASSED);
        assert_eq!(carry_out(step("long"), schedule(0.5)).0.1, Count::PASSED);
        assert_eq!(carry_out(step("short"), schedule(7.0)).0.1, Count::SKIPPED);
        let unlimited = Schedule { backend: Choice::Both, limit: None };
        assert_eq!(carry_out(step("long"), unlimited).0.1, Count::PASSED);
    }

    #[test]
    fn counts_come_from_the_output() {
        assert_eq!(sh("echo 3 passed, 0 failed", "ok"), Ok(Count { passed: 3, failed: 0, skipped: 0 }));
        let failed = Count { passed: 3, failed: 2, skipped: 0 };
        assert_eq!(sh("echo 3 passed, 2 failed; exit 1", "counted"), Ok(failed));
    }

    #[test]
    fn a_failure_without_counts_is_a_failure() {
        assert!(sh("echo 3 passed, 0 failed; exit 1", "crash").is_err());
        assert!(sh("exit 1", "silent").is_err());
        assert!(sh("exit 0", "idle").is_err());
    }

    #[test]
    fn a_failed_test_is_shown_and_not_what_passed_behind_it() {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let passed = "test other ... ok\n".repeat(process::TAIL_LINES);
        let log = lines(&format!("test one ... FAILED\n---- one stdout ----\npanicked\n{passed}"));
        assert_eq!(what_failed(&log)[..2], ["---- one stdout ----", "panicked"]);
        assert_eq!(what_failed(&log).len(), process::TAIL_LINES);
        assert_eq!(
            what_failed(&lines(&format!("{passed}no link"))).last().map(String::as_str),
            Some("no link")
        );
        let log = lines(&format!("one: 1 passed, 1 failed\n    FAIL close: 1006\n{passed}"));
        assert_eq!(what_failed(&log), ["    FAIL close: 1006"]);
        assert!(what_failed(&[]).is_empty());
    }

    #[test]
    fn a_skip_is_noted_where_the_summary_looks_for_it() {
        let log = process::target().join("xtask/self-test-skip.log");
        fs::create_dir_all(process::target().join("xtask")).expect("the target folder is writable");
        fs::write(&log, "earlier\n").expect("the target folder is writable");
        assert_eq!(skip(&log, "no tool"), Count::SKIPPED);
        assert_eq!(log_lines(&log), ["earlier", "skipped: no tool"]);
    }
}
