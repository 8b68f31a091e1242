//! `cargo xtask test`: the checks for each change; with `--all`, every check in the repository.

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
use crate::times::{self, Spent};

/// When a step runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    /// Each change passes it, beside the compilation: it needs nothing compiled, and fails early.
    Text,
    /// Each change passes it: the compilation of the tests.
    Compile,
    /// Each change passes it, with the programs that [`Compile`](Self::Compile) makes.
    Test,
    /// `--all` adds it.
    Long,
    /// `--all` adds it, and it mostly waits.
    LongWaits,
}

impl Lane {
    const fn is_long(self) -> bool {
        matches!(self, Self::Long | Self::LongWaits)
    }

    /// Whether the other steps in the same part run beside the step.
    const fn is_beside(self) -> bool {
        matches!(self, Self::Compile | Self::LongWaits)
    }

    /// Whether the step needs the compilation: beside each other, such steps would compile parts twice.
    const fn needs_compile(self) -> bool {
        matches!(self, Self::Test)
    }
}

/// A step's action.
#[derive(Clone, Copy)]
enum Run {
    /// A task in this program.
    Task(&'static [&'static str]),
    /// A task on the chosen backends.
    OnBackend(&'static [&'static str]),
    /// A task with the server from the tests' build, on the backend that this server chooses.
    OnTestsBuild(&'static [&'static str]),
    /// A function that writes to the log, and runs servers on the chosen backends.
    Own(fn(&Path, Choice) -> Outcome),
}

#[derive(Clone, Copy)]
struct Step {
    name: &'static str,
    lane: Lane,
    run: Run,
    /// A long step's code: its program, its inputs, its task. The product's code belongs to all, and is not listed.
    paths: &'static [&'static str],
}

const fn step(name: &'static str, lane: Lane, run: Run, paths: &'static [&'static str]) -> Step {
    Step { name, lane, run, paths }
}

/// Cheap steps first: they show faults early.
#[rustfmt::skip]
const STEPS: [Step; 30] = [
    step("fmt", Lane::Text, Run::Own(gates::fmt), &[]),
    step("tidy", Lane::Text, Run::Task(&["tidy"]), &[]),
    step(binaries::COMPILE, Lane::Compile, Run::Own(binaries::compile), &[]),
    step(binaries::STEP, Lane::Test, Run::Own(binaries::run), &[]),
    // They install other projects' programs first: minutes on a fresh machine.
    step("autobahn", Lane::LongWaits, Run::OnTestsBuild(&["conformance", "--target", "serve"]),
        &["crates/proto", "crates/session", "crates/simd", "dev/autobahn"]),
    step("pages", Lane::LongWaits, Run::OnTestsBuild(&["browser", "--only", "chat"]),
        &["crates/hub/src/pages.rs", "web", "dev/browser"]),
    step("no_std", Lane::Long, Run::Own(gates::no_std), &["dev/bare", "crates/proto/Cargo.toml"]),
    step(binaries::SECOND, Lane::Long, Run::Own(binaries::run_second), &["crates/engine", "dev/xtask/src/binaries.rs"]),
    step("deny", Lane::Long, Run::Task(&["gates", "deny"]), &["deny.toml", "Cargo.lock", "dev/tasks/gates.py"]),
    step("build", Lane::Long, Run::Own(gates::build), &["Cargo.toml", "crates/cli/Cargo.toml"]),
    step("conformance", Lane::LongWaits, Run::Own(conformance),
        &["dev/autobahn", "dev/conformance", "dev/tasks/autobahn.py", "dev/tasks/conformance.py"]),
    step("examples", Lane::LongWaits, Run::OnBackend(&["examples"]), &["examples", "dev/tasks/examples.py"]),
    step("interop", Lane::LongWaits, Run::OnBackend(&["interop"]),
        &["dev/interop", "dev/tasks/clients.py", "dev/tasks/interop.py", "dev/tasks/library.py", "clients"]),
    step("doc", Lane::Long, Run::Own(gates::doc), &["crates/sinews/src/lib.rs", "crates/sinews/src/guide"]),
    step("msrv", Lane::Long, Run::Task(&["gates", "msrv"]), &["Cargo.toml", "Cargo.lock", "dev/tasks/gates.py"]),
    step("targets", Lane::Long, Run::Task(&["gates", "targets"]), &["Cargo.toml", "Cargo.lock", "dev/tasks/gates.py"]),
    step("api", Lane::Long, Run::Task(&["api"]), &["crates/sinews/api", "dev/xtask/src/api.rs"]),
    step("sanitizer", Lane::Long, Run::Task(&["gates", "sanitizer"]),
        &["crates/simd", "crates/engine/src/ring", "dev/tasks/gates.py"]),
    step("fuzz", Lane::Long, Run::Own(gates::fuzz), &["fuzz"]),
    step("features", Lane::Long, Run::Task(&["features"]),
        &["crates/sinews/Cargo.toml", "crates/hub/Cargo.toml", "crates/server/Cargo.toml", "dev/tasks/features.py"]),
    step("floors", Lane::Long, Run::Task(&["floors"]),
        &["Cargo.toml", "crates/sinews/Cargo.toml", "dev/tasks/floors.py"]),
    step("instructions", Lane::Long, Run::Task(&["instructions"]),
        &["dev/instructions", "dev/xtask/instructions.txt", "dev/tasks/instructions.py"]),
    // Without the programs and without a compilation: `cargo xtask dist` makes all.
    step("packages", Lane::Long, Run::Task(&["dist", "--only", "client,crates", "--no-verify"]),
        &["clients", "dev/tasks/clients.py", "dev/tasks/dist.py"]),
    // Unpacked and started where this machine can run them. The programs are compiled without optimization.
    step("archive", Lane::Long, Run::Task(&["dist", "--only", "programs", "--trial"]),
        &["dev/tasks/dist.py", "deploy/sinews.service"]),
    // Short, and the same in every run.
    step("soak", Lane::LongWaits, Run::OnBackend(&["soak", "--seconds", "20", "--seed", "1"]),
        &["dev/soak", "dev/tasks/soak.py"]),
    step("reconnects", Lane::LongWaits, Run::Own(gates::reconnects), &["crates/hub/tests/loopback/pusher"]),
    step("browser", Lane::LongWaits, Run::OnBackend(&["browser"]), &["dev/browser", "dev/tasks/browser.py", "web"]),
    step("bindings", Lane::Long, Run::Task(&["bindings"]),
        &["bindings", "dev/autobahn", "dev/tasks/autobahn.py", "dev/tasks/bindings.py"]),
    step("deploy", Lane::Long, Run::Task(&["deploy"]), &["deploy", "Dockerfile", "dev/tasks/deploy.py"]),
    step("brokers", Lane::Long, Run::Task(&["brokers"]),
        &["dev/brokers", "crates/brokers", "dev/tasks/brokers.py"]),
];

/// A step that has run, and how long it took.
type Row = (&'static str, Count, Duration);

fn names() -> PossibleValuesParser {
    PossibleValuesParser::new(STEPS.map(|step| step.name))
}

#[derive(Args)]
pub(crate) struct Options {
    /// Every check of the repository: an hour and a half more
    #[arg(long)]
    all: bool,
    /// Only these steps, of any lane
    #[arg(long, value_delimiter = ',', value_parser = names())]
    only: Vec<String>,
    /// All but these steps
    #[arg(long, value_delimiter = ',', value_parser = names())]
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
    fn wants(&self, step: &Step) -> bool {
        let is_in = |list: &[String], step: &Step| list.iter().any(|entry| entry == step.name);
        let is_chosen =
            if self.only.is_empty() { self.all || !step.lane.is_long() } else { is_in(&self.only, step) };
        let needs_compile = |other: &Step| other.lane.needs_compile() && is_in(&self.only, other);
        let is_needed = || step.lane == Lane::Compile && STEPS.iter().any(needs_compile);
        (is_chosen || is_needed()) && !is_in(&self.skip, step)
    }
}

/// How a run's steps are carried out.
#[derive(Clone, Copy)]
struct Schedule<'a> {
    backend: Choice,
    /// When the time for steps ends, with each step's recorded time.
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
    let (mut long, test): (Vec<Step>, Vec<_>) =
        STEPS.into_iter().filter(|step| options.wants(step)).partition(|step| step.lane.is_long());
    let mut schedule = Schedule { backend: options.backend, limit: None };
    let (test, first): (Vec<_>, Vec<_>) = test.into_iter().partition(|step| step.lane.needs_compile());
    let mut rows = run_beside(first, schedule);
    rows.extend(run_beside(test, schedule));
    if let Some(seconds) = options.within {
        let compile = rows.iter().find(|(name, ..)| *name == binaries::COMPILE);
        let slowness = compile.map_or(1.0, |(name, _, duration)| passes.slowness(name, *duration));
        let deadline = started + Duration::from_secs(seconds);
        schedule.limit = Some(Limit { deadline, passes: &passes, slowness });
        long = in_turn(&long, &passes, slowness);
    }
    rows.extend(run_beside(long, schedule));
    println!("\n{:<12} {:>7} {:>7} {:>7} {:>8}", "step", "passed", "failed", "skipped", "seconds");
    let total = rows.iter().map(|(_, count, _)| *count).sum();
    for (name, Count { passed, failed, skipped }, duration) in
        rows.iter().chain([&("all", total, started.elapsed())])
    {
        println!("{name:<12} {passed:>7} {failed:>7} {skipped:>7} {:>8.1}", duration.as_secs_f64());
    }
    times::print_longest();
    if options.record {
        let passed = rows.iter().filter(|(_, count, _)| count.failed == 0 && count.passed > 0);
        passes.record(passed.map(|(name, _, duration)| (*name, *duration)))?;
    }
    Ok(total)
}

/// The long steps in the order in which they run in limited time. Prints it, with the reasons.
fn in_turn(steps: &[Step], passes: &Passes, slowness: f64) -> Vec<Step> {
    println!("\norder of the long steps, at {slowness:.2} times their recorded seconds:");
    let order = passes.order(steps.iter().map(|step| (step.name, step.paths)));
    for due in &order {
        println!("{:<12} {:>5} s  {}", due.step, passes.estimate(due.step, slowness).as_secs(), due.why());
    }
    let find = |due: &Due| steps.iter().find(|step| step.name == due.step).copied();
    order.iter().filter_map(find).collect()
}

fn run_step(step: &Step, schedule: Schedule<'_>) -> Row {
    print!("{:<12} ", step.name);
    // A line that appears late is only ugly.
    let _ = io::stdout().flush();
    let (row, words) = carry_out(step, schedule);
    println!("{words}");
    row
}

/// Runs the steps whose lane is beside others, and the rest beside them; both in their order.
fn run_beside(steps: Vec<Step>, schedule: Schedule<'_>) -> Vec<Row> {
    let (first, second): (Vec<_>, Vec<_>) = steps.into_iter().partition(|step| step.lane.is_beside());
    if first.is_empty() || second.is_empty() {
        return first.iter().chain(&second).map(|step| run_step(step, schedule)).collect();
    }
    let names = |steps: &[Step]| steps.iter().map(|step| step.name).collect::<Vec<_>>().join(", ");
    println!("{} beside {}", names(&first), names(&second));
    let told = |step: &Step| {
        let (row, words) = carry_out(step, schedule);
        println!("{:<12} {words}", step.name);
        row
    };
    thread::scope(|scope| {
        let beside = scope.spawn(|| second.iter().map(told).collect::<Vec<_>>());
        let mut rows: Vec<Row> = first.iter().map(told).collect();
        // A step does not panic; if one does, the rest has run.
        rows.extend(beside.join().unwrap_or_else(|_| vec![("panicked", Count::FAILED, Duration::ZERO)]));
        rows
    })
}

/// Runs a step. Returns the text behind its name.
fn carry_out(step: &Step, schedule: Schedule<'_>) -> (Row, String) {
    let name = step.name;
    if !schedule.permits(name) {
        let why = format!("skipped: no time is left for it (cargo xtask test --only {name})");
        return ((name, Count::SKIPPED, Duration::ZERO), why);
    }
    let log = process::log(name);
    // An earlier run's log must not be continued.
    let _ = fs::remove_file(&log);
    times::enter(Some(name));
    let started = Instant::now();
    let outcome = match step.run {
        Run::Task(arguments) => task(arguments, &log),
        Run::OnBackend(arguments) => {
            task(&[arguments, &["--backend", schedule.backend.name()]].concat(), &log)
        }
        Run::OnTestsBuild(arguments) => on_tests_build(arguments, &log, schedule.backend),
        Run::Own(run) => run(&log, schedule.backend),
    };
    let duration = started.elapsed();
    times::enter(None);
    times::record(name, times::WHOLE_STEP, Spent { wall: duration, cpu: None });
    let count = outcome.as_ref().map_or(Count::FAILED, |count| *count);
    let word = if count.failed > 0 { "FAILED" } else { "ok" };
    let text = process::read(&log);
    let mut words = vec![format!("{word} in {:.1} s: {count}", duration.as_secs_f64())];
    let is_skip = |line: &&str| line.starts_with("skipped:") || line.starts_with("SKIPPED ");
    words.extend(text.lines().filter(is_skip).map(str::to_owned));
    if count.failed > 0 {
        let counted = || format!("see {}\n{}", log.display(), what_failed(&text).join("\n"));
        words.extend(outcome.err().unwrap_or_else(counted).lines().map(str::to_owned));
    }
    ((name, count, duration), words.join("\n    "))
}

fn on_tests_build(arguments: &[&str], log: &Path, choice: Choice) -> Outcome {
    let binary = binaries::build_debug()?;
    let uring = choice != Choice::Poll && Choice::Uring.permitted(&binary)?.refused.is_empty();
    let backend = if uring { Choice::Uring } else { Choice::Poll };
    let binary = binary.to_string_lossy();
    task(&[arguments, &["--backend", backend.name(), "--binary", &binary]].concat(), log)
}

/// The runs that the step "autobahn" leaves.
fn conformance(log: &Path, backend: Choice) -> Outcome {
    // Compression is the same as in the server's runs: the other transports show their faults with the first messages.
    let few = ["conformance", "--count", "5", "--target", "http,tls,http2,http3,tokio,axum,compio"];
    let count = task(&[&few[..], &["--backend", backend.name()]].concat(), log)?;
    if backend == Choice::Uring {
        return Ok(count);
    }
    let serve = ["conformance", "--target", "serve", "--backend", Choice::Poll.name()];
    Ok(count + task(&serve, &log.with_file_name("conformance-serve.log"))?)
}

/// A command that is one check.
pub(crate) fn single(command: &mut Command, log: &Path) -> Outcome {
    counted(command, log, |_| Count::PASSED)
}

/// Runs a task in this program, in its own process so that its output goes to the log.
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

/// This program's path. It is asked for before the tests are compiled: their build replaces this program with an equal
/// one.
fn own_program() -> Result<&'static Path, String> {
    static OWN: OnceLock<io::Result<PathBuf>> = OnceLock::new();
    let own = OWN.get_or_init(env::current_exe).as_ref();
    own.map(PathBuf::as_path).map_err(|error| format!("path of this program: {error}"))
}

/// A command whose output says how many checks it made. That it failed counts once if no check did.
pub(crate) fn counted(command: &mut Command, log: &Path, count: fn(&str) -> Count) -> Outcome {
    command.env("CARGO_TERM_COLOR", "never");
    let end = process::run(command, log, process::COMMAND_LIMIT)?;
    let found = count(&process::read(log));
    if found.failed == 0 {
        end.check("the command failed", log)?;
    }
    // A step in which nothing was checked has not passed.
    if found == Count::default() { Err("nothing was checked".to_owned()) } else { Ok(found) }
}

pub(crate) fn skip_refused(log: &Path, permitted: &Permitted) -> Count {
    permitted.refused.iter().map(|why| skip(log, why)).sum()
}

/// Notes in the log why something was not run.
pub(crate) fn skip(log: &Path, why: &str) -> Count {
    let text = format!("{}\nskipped: {why}\n", process::read(log).trim_end());
    if let Err(why) = process::write(log, text) {
        println!("{why}");
    }
    Count::SKIPPED
}

/// Returns the failed tests' output; from a check log, the failed checks, or the only check's output; from another log,
/// its end.
fn what_failed(log: &str) -> Vec<&str> {
    let lines: Vec<_> = log.lines().collect();
    let checks = lines.iter().filter(|line| line.trim_start().starts_with("FAIL "));
    let checks: Vec<_> = checks.take(process::TAIL_LINES).copied().collect();
    let has_output =
        |line: &&str| line.starts_with("FAIL ") || line.starts_with("---- ") && line.ends_with(" ----");
    if checks.len() > 1 || !checks.iter().all(has_output) {
        return checks;
    }
    let first = lines.iter().position(has_output);
    let from = first.unwrap_or_else(|| lines.len().saturating_sub(process::TAIL_LINES));
    lines[from..lines.len().min(from + process::TAIL_LINES)].to_vec()
}

#[cfg(test)]
mod tests_of_steps {
    use super::*;

    fn sh(script: &str, name: &str) -> Outcome {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let log = process::log(&format!("self-test-{name}"));
        counted(&mut command, &log, |text| Count::parse_last(text).unwrap_or_default())
    }

    #[test]
    fn long_steps_are_recorded_and_their_code_exists() {
        let passes = Passes::read().expect("the file is in the repository");
        for step in STEPS.iter().filter(|step| step.lane.is_long()) {
            assert!(passes.has(step.name), "{} in {}", step.name, rotation::FILE);
            assert!(!step.paths.is_empty(), "{}", step.name);
            for path in step.paths {
                assert!(process::root().join(path).exists(), "{}: {path}", step.name);
            }
        }
    }

    #[test]
    fn compilation_runs_before_the_steps_that_need_it_and_only_then() {
        let wants_compile = |name: &str, skip: &[&str]| {
            let options = Options {
                all: false,
                only: vec![name.to_owned()],
                skip: skip.iter().map(|name| (*name).to_owned()).collect(),
                backend: Choice::Both,
                within: None,
                record: false,
            };
            STEPS.iter().any(|step| step.name == binaries::COMPILE && options.wants(step))
        };
        for name in [binaries::STEP, binaries::COMPILE] {
            assert!(wants_compile(name, &[]), "{name}");
            assert!(!wants_compile(name, &[binaries::COMPILE]), "{name} alone");
        }
        for name in ["fmt", "tidy", "doc", "soak", "autobahn"] {
            assert!(!wants_compile(name, &[]), "{name}");
        }
    }

    #[test]
    fn step_without_time_left_is_skipped_with_its_command_and_a_shorter_one_runs() {
        let passes = Passes::parse("long\t-\t-\t100\nshort\t-\t-\t10\n").expect("they are passes");
        let deadline = Instant::now() + Duration::from_secs(60);
        let carry_out = |name, slowness: Option<f64>| {
            let step = step(name, Lane::Long, Run::Own(|_, _| Ok(Count::PASSED)), &[]);
            let limit = slowness.map(|slowness| Limit { deadline, passes: &passes, slowness });
            let (row, words) = carry_out(&step, Schedule { backend: Choice::Both, limit });
            (row.1, words)
        };
        let (count, words) = carry_out("long", Some(1.0));
        assert_eq!(count, Count::SKIPPED);
        assert!(words.starts_with("skipped: ") && words.contains("--only long"), "{words}");
        for (name, slowness) in [("short", Some(1.0)), ("long", Some(0.5)), ("long", None)] {
            assert_eq!(carry_out(name, slowness).0, Count::PASSED, "{name}");
        }
        assert_eq!(carry_out("short", Some(7.0)).0, Count::SKIPPED);
    }

    #[test]
    fn counts_come_from_the_output_and_a_failure_without_counts_is_a_failure() {
        assert_eq!(sh("echo 3 passed, 0 failed", "ok"), Ok(Count { passed: 3, failed: 0, skipped: 0 }));
        let failed = Count { passed: 3, failed: 2, skipped: 0 };
        assert_eq!(sh("echo 3 passed, 2 failed; exit 1", "counted"), Ok(failed));
        for (script, name) in
            [("echo 3 passed, 0 failed; exit 1", "crash"), ("exit 1", "silent"), ("exit 0", "idle")]
        {
            assert!(sh(script, name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_failed_test_is_shown_and_not_what_passed_behind_it() {
        let passed = "test other ... ok\n".repeat(process::TAIL_LINES);
        let log = format!("test one ... FAILED\n---- one stdout ----\npanicked\n{passed}");
        assert_eq!(what_failed(&log)[..2], ["---- one stdout ----", "panicked"]);
        assert_eq!(what_failed(&log).len(), process::TAIL_LINES);
        assert_eq!(what_failed(&format!("{passed}no link")).last(), Some(&"no link"));
        let log = format!("one: 1 passed, 1 failed\n    FAIL close: 1006\n{passed}");
        assert_eq!(what_failed(&log), ["    FAIL close: 1006"]);
        assert_eq!(what_failed("ok a\nFAIL b: see its log\nerror: c")[1..], ["error: c"]);
        assert_eq!(what_failed("FAIL a\nok b\nFAIL c\nerror: d"), ["FAIL a", "FAIL c"]);
        assert!(what_failed("").is_empty());
    }

    #[test]
    fn a_skip_is_noted_where_the_summary_looks_for_it() {
        let log = process::log("self-test-skip");
        process::create_folder(log.parent().expect("a folder")).expect("the target folder is writable");
        process::write(&log, "earlier\n").expect("the target folder is writable");
        assert_eq!(skip(&log, "no tool"), Count::SKIPPED);
        assert_eq!(process::read(&log), "earlier\nskipped: no tool\n");
    }
}
