//! Steps that are cargo commands. `dev/tasks/gates.py` has those that need more than the toolchain.

use std::path::Path;
use std::process::Command;

use crate::Outcome;
use crate::backend::Choice;
use crate::binaries;
use crate::count::Count;
use crate::features;
use crate::process;
use crate::steps::{self, counted, single};

/// The profile for programs whose speed and memory are checked.
const CHECKS_PROFILE: &str = "checks";
/// For each target under cargo-fuzz: enough to see that it runs. Looking for faults takes longer.
const FUZZ_SECONDS: &str = "-max_total_time=10";

pub(crate) fn fmt(log: &Path, _: Choice) -> Outcome {
    single(process::cargo().args(["fmt", "--all", "--check", "--", "--color", "never"]), log)
}

pub(crate) fn doc(log: &Path, _: Choice) -> Outcome {
    let mut command = process::cargo();
    command.args(["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings");
    let count = single(&mut command, log)?;
    let mut library = process::cargo();
    library.args(["doc", "--package", "sinews", "--no-deps"]).args(features::all()?);
    library.env("RUSTDOCFLAGS", "-D warnings");
    Ok(count + single(&mut library, &log.with_file_name("doc-library.log"))?)
}

/// The protocol without features; and a program around it that links only where nothing brings
/// `std` in, which our own crates' attributes cannot promise for their dependencies.
pub(crate) fn no_std(log: &Path, _: Choice) -> Outcome {
    let check = ["check", "--package", "sinews-proto", "--no-default-features"];
    let count = single(process::cargo().args(check), log)?;
    let mut program = process::cargo();
    program.args(["build", "--locked", "--manifest-path", "dev/bare/Cargo.toml", "--target-dir"]);
    program.arg(process::target().join("bare"));
    Ok(count + single(&mut program, &log.with_file_name("no_std-program.log"))?)
}

/// Runs the README's command, with the profile and the features that the other steps need: it names no program.
pub(crate) fn build(log: &Path, _: Choice) -> Outcome {
    let profile = ["--profile", CHECKS_PROFILE, "--features", binaries::CHECKED_FEATURES];
    let program = single(process::cargo().arg("run").args(profile).args(["--", "--version"]), log)?;
    let mut benches = process::linting_cargo()?;
    benches.args(["build", "--package", "sinews-benches", "--benches"]);
    Ok(program + without_warnings(single, &mut benches, &log.with_file_name("benches.log"))?)
}

/// A build or tests, with a failure more for warnings.
fn without_warnings(run: fn(&mut Command, &Path) -> Outcome, command: &mut Command, log: &Path) -> Outcome {
    let count = run(command, log)?;
    let has_warnings = process::warnings(&process::read(log)).next().is_some();
    Ok(if has_warnings { count + Count::FAILED } else { count })
}

/// The targets on their seeds and on inputs made up for a moment, as ordinary tests; and under
/// cargo-fuzz, which looks where the code branches, if it is installed.
pub(crate) fn fuzz(log: &Path, _: Choice) -> Outcome {
    let mut command = process::linting_cargo()?;
    command.args(["test", "--package", "sinews-fuzz", "--no-fail-fast"]);
    let tests = |command: &mut Command, log: &Path| counted(command, log, Count::parse_cargo_test);
    let mut count = without_warnings(tests, &mut command, log)?;
    let Some(targets) = process::output_of(process::cargo().args(["fuzz", "list"])) else {
        return Ok(
            count + steps::skip(log, "no cargo-fuzz (cargo install cargo-fuzz); the seeds ran as tests")
        );
    };
    for target in targets.lines() {
        let corpus = process::root().join("fuzz/corpus").join(target);
        process::create_folder(&corpus)?;
        let mut command = process::cargo();
        // The sanitizer's flags are not stable; the compiler is.
        command.env("RUSTC_BOOTSTRAP", "1").env("RUST_BACKTRACE", "0");
        command.args(["fuzz", "run", "--features", "libfuzzer", target]).arg(corpus);
        command.args([&format!("fuzz/seeds/{target}"), "--", FUZZ_SECONDS]);
        count = count + single(&mut command, &log.with_file_name(format!("fuzz-{target}.log")))?;
    }
    Ok(count)
}

/// Tests Pusher clients that connect again at once, in full number: each change is tested with fewer.
pub(crate) fn reconnects(log: &Path, backend: Choice) -> Outcome {
    const TEST: &str = "pusher_5_8_clients_that_connect_again_at_once_are_served_and_miss_nothing";
    let permitted = backend.permitted(&binaries::build_debug()?)?;
    let mut count = steps::skip_refused(log, &permitted);
    for backend in permitted.backends {
        let mut command = process::linting_cargo()?;
        command.arg("test").args(binaries::selection()?).args(["--test", "loopback", TEST]);
        command.env("SINEWS_TEST_BACKEND", backend.name()).env("SINEWS_TEST_RECONNECTS", "10000");
        let own = log.with_file_name(format!("reconnects-{}.log", backend.name()));
        let found = counted(&mut command, &own, Count::parse_cargo_test);
        // The step's log has every run's output.
        process::write(log, process::read(log) + &process::read(&own))?;
        count = count + found?;
    }
    Ok(count)
}
