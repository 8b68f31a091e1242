//! Gates that need more than the toolchain: other compilers and targets, an audit of dependencies, a sanitizer. A gate whose
//! tool is missing is skipped with a line that says how to get it.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Outcome;
use crate::backend::Choice;
use crate::count::Count;
use crate::process;
use crate::steps;

/// Other targets on which the library and the server must compile.
const TARGETS: [&str; 3] = ["aarch64-unknown-linux-gnu", "x86_64-apple-darwin", "x86_64-unknown-freebsd"];
/// Tests of the crates with unsafe code of their own that handles memory of other code. The tests of `sinews-simd` are files
/// beside its library.
const SANITIZED: [(&str, &[&str]); 2] =
    [("--lib", &["sinews-engine", "sinews-file"]), ("--tests", &["sinews-simd"])];

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

    /// A program of the search path.
    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(name);
        self.configure(&mut command);
        command
    }

    /// The cargo that runs this task.
    fn cargo(&self) -> Command {
        let mut command = Command::new(&self.cargo);
        self.configure(&mut command);
        command
    }

    fn configure(&self, command: &mut Command) {
        command.current_dir(process::root()).env("PATH", &self.search_path);
        process::remove_package_variables(command);
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
    let manifest = fs::read_to_string(process::root().join("Cargo.toml")).unwrap_or_default();
    let version = rust_version(&manifest).ok_or("Cargo.toml names no rust-version")?;
    let toolchain = format!("+{version}");
    if process::output_of(tools.program("cargo").args([&*toolchain, "--version"])).is_none() {
        return Ok(steps::skip(
            log,
            &format!(
                "no Rust {version} (rustup toolchain install {version}); clippy's incompatible_msrv ran"
            ),
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
    steps::single(&mut command, log)
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
        for tool in ["CC", "AR"] {
            let variable = format!("{tool}_{}", target.replace('-', "_"));
            if env::var_os(&variable).is_none() {
                command.env(variable, "true");
            }
        }
        let own = log.with_file_name(format!("targets-{target}.log"));
        count = count + steps::single(&mut command, &own)?;
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
    command.args(["deny", "--locked", "check", "licenses", "bans", "sources"]);
    let count = steps::single(&mut command, log)?;
    if process::output_of(tools.cargo().args(["deny", "--locked", "fetch", "db"])).is_none() {
        return Ok(count + steps::skip(log, "the list of advisories cannot be fetched"));
    }
    let mut command = tools.cargo();
    command.args(["deny", "--locked", "check", "--disable-fetch", "advisories"]);
    Ok(count + steps::single(&mut command, &log.with_file_name("deny-advisories.log"))?)
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
        count = count + steps::counted(&mut command, &own, Count::parse_cargo_test)?;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with stand-ins for programs, as scripts.
    fn stand_ins(test: &str, scripts: &[(&str, &str)]) -> (Tools, PathBuf) {
        let folder = process::target().join("xtask/self-test-gates").join(test);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("the target folder is writable");
        for (name, script) in scripts {
            // Another process writes it: a descriptor that a concurrent test's child inherits would make it busy.
            let mut write = Command::new("sh");
            write.args(["-c", "printf '#!/bin/sh\\n%s\\n' \"$1\" > \"$2\" && chmod +x \"$2\"", "sh", script]);
            assert!(write.arg(folder.join(name)).status().expect("sh runs").success());
        }
        // The scripts themselves need nothing of the search path.
        (Tools { cargo: folder.join("cargo"), search_path: folder.clone().into() }, folder.join("gate.log"))
    }

    const FAULTY: &str = "case \"$*\" in *--version*) echo 1.0;; *) echo 'error: fault'; exit 101;; esac";
    const SOUND: &str = "exit 0";

    fn is_failure(outcome: &Outcome) -> bool {
        outcome.as_ref().map_or_else(|why| why.contains("fault"), |count| count.failed > 0)
    }

    #[test]
    fn oldest_compiler_is_read_from_the_manifest() {
        assert_eq!(rust_version("[workspace.package]\nrust-version = \"1.89\"\n"), Some("1.89"));
        assert_eq!(rust_version("[workspace.package]\n"), None);
    }

    #[test]
    fn oldest_compiler_that_rejects_the_code_fails_the_gate() {
        let (tools, log) = stand_ins("oldest-faulty", &[("cargo", FAULTY)]);
        let outcome = check_oldest_compiler(&tools, &log);
        assert!(is_failure(&outcome), "{outcome:?}");
        let (tools, log) = stand_ins("oldest-sound", &[("cargo", SOUND)]);
        assert_eq!(check_oldest_compiler(&tools, &log), Ok(Count::PASSED));
        let (tools, log) = stand_ins("oldest-missing", &[]);
        assert_eq!(check_oldest_compiler(&tools, &log), Ok(Count::SKIPPED));
    }

    #[test]
    fn target_on_which_the_code_does_not_compile_fails_the_gate() {
        let run = |test: &str, cargo: &str, installed: &[&str]| {
            let sysroot = process::target().join("xtask/self-test-gates").join(test).join("sysroot");
            let rustc = format!("echo '{}'", sysroot.display());
            let (tools, log) = stand_ins(test, &[("cargo", cargo), ("rustc", &rustc)]);
            for target in installed {
                let library = sysroot.join("lib/rustlib").join(target).join("lib");
                fs::create_dir_all(library).expect("the target folder is writable");
            }
            check_targets(&tools, &log)
        };
        let outcome = run("targets-faulty", FAULTY, &TARGETS[1..2]);
        assert!(is_failure(&outcome), "{outcome:?}");
        let one = Count { passed: 1, failed: 0, skipped: 2 };
        assert_eq!(run("targets-sound", SOUND, &TARGETS[1..2]), Ok(one));
        assert_eq!(run("targets-missing", FAULTY, &[]), Ok(Count { passed: 0, failed: 0, skipped: 3 }));
    }

    #[test]
    fn dependency_that_is_not_allowed_fails_the_gate() {
        let (tools, log) = stand_ins("deny-faulty", &[("cargo", FAULTY)]);
        let outcome = check_dependencies(&tools, &log);
        assert!(is_failure(&outcome), "{outcome:?}");
        let advisory = "case \"$*\" in *advisories) echo 'error: fault'; exit 1;; esac";
        let (tools, log) = stand_ins("deny-advisory", &[("cargo", advisory)]);
        let outcome = check_dependencies(&tools, &log);
        assert!(is_failure(&outcome), "{outcome:?}");
        let (tools, log) = stand_ins("deny-sound", &[("cargo", SOUND)]);
        assert_eq!(check_dependencies(&tools, &log), Ok(Count { passed: 2, failed: 0, skipped: 0 }));
        let (tools, log) = stand_ins("deny-offline", &[("cargo", "case \"$*\" in *fetch*) exit 1;; esac")]);
        assert_eq!(check_dependencies(&tools, &log), Ok(Count { passed: 1, failed: 0, skipped: 1 }));
        let (tools, log) = stand_ins("deny-missing", &[]);
        assert_eq!(check_dependencies(&tools, &log), Ok(Count::SKIPPED));
    }

    #[test]
    fn fault_under_the_sanitizer_fails_the_gate() {
        let (tools, log) = stand_ins("sanitizer-faulty", &[("cargo", FAULTY)]);
        let outcome = check_memory(&tools, &log);
        assert!(is_failure(&outcome), "{outcome:?}");
        let passed = "echo 'test result: ok. 3 passed; 0 failed; 0 ignored'";
        // What ends the process early leaves no result of its tests.
        let second =
            format!("case \"$*\" in *--lib*) {passed};; *) echo 'fault: heap-use-after-free'; exit 1;; esac");
        let (tools, log) = stand_ins("sanitizer-simd", &[("cargo", &second)]);
        let outcome = check_memory(&tools, &log);
        assert!(is_failure(&outcome), "{outcome:?}");
        let (tools, log) = stand_ins("sanitizer-sound", &[("cargo", passed)]);
        assert_eq!(check_memory(&tools, &log), Ok(Count { passed: 6, failed: 0, skipped: 0 }));
        let (tools, log) = stand_ins("sanitizer-idle", &[("cargo", SOUND)]);
        assert!(check_memory(&tools, &log).is_err(), "a step without tests has not passed");
    }
}
