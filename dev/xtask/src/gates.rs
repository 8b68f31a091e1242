//! Steps that are commands of cargo, some with more than the toolchain: other compilers and targets, an audit of dependencies, a
//! sanitizer. A step whose tool is missing is skipped with a line that says how to get it.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Outcome;
use crate::backend::Choice;
use crate::binaries;
use crate::count::Count;
use crate::features;
use crate::process;
use crate::server;
use crate::steps::{self, counted, single};

/// Other targets on which the library and the server must compile.
const TARGETS: [&str; 3] = ["aarch64-unknown-linux-gnu", "x86_64-apple-darwin", "x86_64-unknown-freebsd"];
/// Tests of the crates with unsafe code of their own that handles memory of other code. The tests of `sinews-simd` are files
/// beside its library.
const SANITIZED: [(&str, &[&str]); 2] =
    [("--lib", &["sinews-engine", "sinews-file"]), ("--tests", &["sinews-simd"])];
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

/// The command of the README, with the profile and the features that the other steps need: it names no program.
pub(crate) fn build(log: &Path, _: Choice) -> Outcome {
    let profile = ["--profile", server::CHECKS_PROFILE, "--features", server::CHECKED_FEATURES];
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

/// Clients of the Pusher protocol that connect again at once, in full number: each change is tested with fewer.
pub(crate) fn reconnects(log: &Path, backend: Choice) -> Outcome {
    const TEST: &str = "pusher_5_8_clients_that_connect_again_at_once_are_served_and_miss_nothing";
    let permitted = backend.permitted(&server::build_debug()?)?;
    let mut count = steps::skip_refused(log, &permitted);
    for backend in permitted.backends {
        let mut command = process::linting_cargo()?;
        command.arg("test").args(binaries::selection()?).args(["--test", "loopback", TEST]);
        command.env("SINEWS_TEST_BACKEND", backend.name()).env("SINEWS_TEST_RECONNECTS", "10000");
        let own = log.with_file_name(format!("reconnects-{}.log", backend.name()));
        let found = counted(&mut command, &own, Count::parse_cargo_test);
        // The step's log has the output of all runs.
        process::write(log, process::read(log) + &process::read(&own))?;
        count = count + found?;
    }
    Ok(count)
}

/// The programs that gates run. Tests have stand-ins for them.
struct Tools {
    cargo: PathBuf,
    search_path: OsString,
}

impl Tools {
    fn of_machine() -> Self {
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into()).into();
        Self { cargo, search_path: env::var_os("PATH").unwrap_or_default() }
    }

    /// The cargo that runs this task.
    fn cargo(&self) -> Command {
        self.program(&self.cargo)
    }

    /// A program of the search path.
    fn program(&self, name: impl AsRef<Path>) -> Command {
        let mut command = Command::new(name.as_ref());
        command.current_dir(process::root()).env("PATH", &self.search_path);
        process::remove_package_variables(&mut command);
        command
    }
}

pub(crate) fn oldest_compiler(log: &Path, _: Choice) -> Outcome {
    check_oldest_compiler(&Tools::of_machine(), log)
}

pub(crate) fn targets(log: &Path, _: Choice) -> Outcome {
    check_targets(&Tools::of_machine(), log)
}

pub(crate) fn deny(log: &Path, _: Choice) -> Outcome {
    check_dependencies(&Tools::of_machine(), log)
}

pub(crate) fn sanitizer(log: &Path, _: Choice) -> Outcome {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Ok(steps::skip(log, "the address sanitizer runs on x86-64 Linux here"));
    }
    check_memory(&Tools::of_machine(), log)
}

/// The library and the hub with the oldest compiler that their manifests promise.
fn check_oldest_compiler(tools: &Tools, log: &Path) -> Outcome {
    let manifest = process::read(&process::root().join("Cargo.toml"));
    let version = rust_version(&manifest).ok_or("Cargo.toml names no rust-version")?;
    let toolchain = format!("+{version}");
    if process::output_of(tools.program("cargo").args([&*toolchain, "--version"])).is_none() {
        let remedy = format!("rustup toolchain install {version}");
        return Ok(steps::skip(
            log,
            &format!("no Rust {version} ({remedy}); clippy's incompatible_msrv ran"),
        ));
    }
    let mut command = tools.program("cargo");
    command.args([&*toolchain, "check", "--locked", "--package", "sinews", "--package", "sinews-hub"]);
    command.args(["--features", "sinews-hub/http3"]);
    // The cargo that runs this program would choose its own compiler.
    for variable in ["RUSTC", "RUSTUP_TOOLCHAIN", "CARGO"] {
        command.env_remove(variable);
    }
    command.arg("--target-dir").arg(process::target().join("oldest"));
    single(&mut command, log)
}

fn rust_version(manifest: &str) -> Option<&str> {
    let line = manifest.lines().find(|line| line.starts_with("rust-version"))?;
    line.split('"').nth(1)
}

/// The library and the server on targets that this machine may lack, as far as their standard libraries are installed.
fn check_targets(tools: &Tools, log: &Path) -> Outcome {
    let sysroot = process::output_of(tools.program("rustc").args(["--print", "sysroot"]));
    let libraries = PathBuf::from(sysroot.unwrap_or_default().trim()).join("lib/rustlib");
    let mut count = Count::default();
    for target in TARGETS {
        if !libraries.join(target).join("lib").is_dir() {
            let why = format!("no standard library for {target} (rustup target add {target})");
            count = count + steps::skip(log, &why);
            continue;
        }
        let mut command = tools.cargo();
        command.args(["check", "--package", "sinews", "--package", "sinews-server", "--target", target]);
        command.args(["--features", "sinews-server/http3"]);
        // A check links nothing, so that the C code of a dependency needs no compiler for the target.
        let variables = ["CC", "AR"].map(|tool| format!("{tool}_{}", target.replace('-', "_")));
        command.envs(variables.iter().filter(|name| env::var_os(name).is_none()).map(|name| (name, "true")));
        count = count + single(&mut command, &log.with_file_name(format!("targets-{target}.log")))?;
    }
    Ok(count)
}

/// Licenses, sources and versions of all dependencies, by `deny.toml`; advisories where their list can be fetched.
fn check_dependencies(tools: &Tools, log: &Path) -> Outcome {
    if process::output_of(tools.cargo().args(["deny", "--version"])).is_none() {
        return Ok(steps::skip(log, "no cargo-deny (cargo install --locked cargo-deny)"));
    }
    // Not offline: the licenses of other systems' dependencies count, too.
    let mut command = tools.cargo();
    let count = single(command.args(["deny", "--locked", "check", "licenses", "bans", "sources"]), log)?;
    if process::output_of(tools.cargo().args(["deny", "--locked", "fetch", "db"])).is_none() {
        return Ok(count + steps::skip(log, "the list of advisories cannot be fetched"));
    }
    let mut command = tools.cargo();
    command.args(["deny", "--locked", "check", "--disable-fetch", "advisories"]);
    Ok(count + single(&mut command, &log.with_file_name("deny-advisories.log"))?)
}

/// Tests under the address sanitizer, whose flags are not stable: the compiler is.
fn check_memory(tools: &Tools, log: &Path) -> Outcome {
    let mut count = Count::default();
    for (tests, packages) in SANITIZED {
        let mut command = tools.cargo();
        command.args(["test", tests, "--target", "x86_64-unknown-linux-gnu"]);
        command.args(packages.iter().flat_map(|name| ["--package", name]));
        command.arg("--target-dir").arg(process::target().join("asan"));
        command.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", "-Zsanitizer=address");
        // The ring leaves memory to a kernel that does not let go of it, which its tests provoke.
        command.env("ASAN_OPTIONS", "detect_leaks=0");
        let own = log.with_file_name(format!("sanitizer{tests}.log"));
        count = count + counted(&mut command, &own, Count::parse_cargo_test)?;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Gate = fn(&Tools, &Path) -> Outcome;

    /// Stand-ins for cargo.
    const FAULTY: &str = "case \"$*\" in *--version*) echo 1.0;; *) echo 'error: fault'; exit 101;; esac";
    const SOUND: &str = "exit 0";
    const ADVISORY: &str = "case \"$*\" in *advisories) echo 'error: fault'; exit 1;; esac";
    const OFFLINE: &str = "case \"$*\" in *fetch*) exit 1;; esac";
    const TESTED: &str = "echo 'test result: ok. 3 passed; 0 failed; 0 ignored'";
    /// A process that ends early leaves no result of its tests.
    const OVERFLOW: &str = "case \"$*\" in *--lib*) echo 'test result: ok. 3 passed; 0 failed; 0 ignored';; \
                            *) echo 'fault: heap-use-after-free'; exit 1;; esac";
    const NO_CARGO: &str = "";

    /// Runs a gate with a stand-in for cargo, and one for rustc whose target [`TARGETS`]`[1]` is installed.
    fn run(gate: Gate, number: usize, cargo: &str) -> Outcome {
        let folder = process::target().join(format!("xtask/self-test-gates/{number}"));
        let _ = std::fs::remove_dir_all(&folder);
        let library = folder.join("lib/rustlib").join(TARGETS[1]).join("lib");
        process::create_folder(&library).expect("the target folder is writable");
        for (name, script) in [("cargo", cargo), ("rustc", "echo \"${0%/*}\"")] {
            // Another process writes it: a descriptor that a concurrent test's child inherits would make it busy.
            let write = "[ -z \"$1\" ] || { printf '#!/bin/sh\\n%s\\n' \"$1\" > \"$2\" && chmod +x \"$2\"; }";
            let mut command = Command::new("sh");
            command.args(["-c", write, "sh", script]).arg(folder.join(name));
            assert!(command.status().expect("sh runs").success());
        }
        // The scripts themselves need nothing of the search path.
        let tools = Tools { cargo: folder.join("cargo"), search_path: folder.clone().into() };
        gate(&tools, &folder.join("gate.log"))
    }

    #[test]
    fn faults_fail_the_gates_and_missing_tools_skip_them() {
        let count = |passed, skipped| Some(Count { passed, failed: 0, skipped });
        let cases: [(Gate, &str, Option<Count>); 14] = [
            (check_oldest_compiler, FAULTY, None),
            (check_oldest_compiler, SOUND, count(1, 0)),
            (check_oldest_compiler, NO_CARGO, count(0, 1)),
            (check_targets, FAULTY, None),
            (check_targets, SOUND, count(1, 2)),
            (check_dependencies, FAULTY, None),
            (check_dependencies, ADVISORY, None),
            (check_dependencies, SOUND, count(2, 0)),
            (check_dependencies, OFFLINE, count(1, 1)),
            (check_dependencies, NO_CARGO, count(0, 1)),
            (check_memory, FAULTY, None),
            (check_memory, OVERFLOW, None),
            (check_memory, TESTED, count(6, 0)),
            // A step without tests has not passed.
            (check_memory, SOUND, None),
        ];
        for (number, (gate, cargo, expected)) in cases.into_iter().enumerate() {
            let outcome = run(gate, number, cargo);
            assert_eq!(
                outcome.as_ref().ok().filter(|count| count.failed == 0),
                expected.as_ref(),
                "{number}: {outcome:?}"
            );
        }
    }

    #[test]
    fn oldest_compiler_is_read_from_the_manifest() {
        assert_eq!(rust_version("[workspace.package]\nrust-version = \"1.89\"\n"), Some("1.89"));
        assert_eq!(rust_version("[workspace.package]\n"), None);
    }
}
