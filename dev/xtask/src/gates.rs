//! Gates that need more than the toolchain: other compilers and targets, an audit of dependencies, a sanitizer. A gate whose
//! tool is missing is skipped with a line that says how to get it.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Outcome;
use crate::backend::Choice;
use crate::count::Count;
use crate::process;
use crate::steps;

/// Other targets on which the library and the server must compile.
const TARGETS: [&str; 3] = ["aarch64-unknown-linux-gnu", "x86_64-apple-darwin", "x86_64-unknown-freebsd"];
/// Crates with unsafe code of their own that handles memory of other code.
const SANITIZED: [&str; 3] = ["sinews-engine", "sinews-file", "sinews-simd"];

/// The workspace's crates with the oldest compiler that their manifests promise.
pub(crate) fn oldest_compiler(log: &Path, _: Choice) -> Outcome {
    let manifest = std::fs::read_to_string(process::root().join("Cargo.toml")).unwrap_or_default();
    let version = rust_version(&manifest).ok_or("Cargo.toml names no rust-version")?;
    let toolchain = format!("+{version}");
    if process::output_of(Command::new("cargo").args([&*toolchain, "--version"])).is_none() {
        return Ok(steps::skip(
            log,
            &format!(
                "no Rust {version} (rustup toolchain install {version}); clippy's incompatible_msrv ran"
            ),
        ));
    }
    let mut command = Command::new("cargo");
    command.current_dir(process::root()).args([
        &*toolchain,
        "check",
        "--package",
        "sinews",
        "--package",
        "sinews-cli",
    ]);
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
pub(crate) fn targets(log: &Path, _: Choice) -> Outcome {
    let sysroot = process::output_of(Command::new("rustc").args(["--print", "sysroot"]));
    let libraries = PathBuf::from(sysroot.unwrap_or_default().trim()).join("lib/rustlib");
    let mut count = Count::default();
    for target in TARGETS {
        count = count
            + if libraries.join(target).join("lib").is_dir() {
                let mut command = process::cargo();
                command.args([
                    "check",
                    "--package",
                    "sinews",
                    "--package",
                    "sinews-server",
                    "--target",
                    target,
                ]);
                steps::single(&mut command, &log.with_file_name(format!("targets-{target}.log")))?
            } else {
                steps::skip(log, &format!("no standard library for {target} (rustup target add {target})"))
            };
    }
    Ok(count)
}

/// Licenses, sources and duplicate versions of all dependencies, by `deny.toml`; advisories where the list can be fetched.
pub(crate) fn deny(log: &Path, _: Choice) -> Outcome {
    if process::output_of(Command::new("cargo").args(["deny", "--version"])).is_none() {
        return Ok(steps::skip(log, "no cargo-deny (cargo install --locked cargo-deny)"));
    }
    let mut command = process::cargo();
    command.args(["deny", "--offline", "check", "licenses", "bans", "sources"]);
    steps::single(&mut command, log)
}

/// Unit tests under the address sanitizer, whose flags are not stable: the compiler is.
pub(crate) fn sanitizer(log: &Path, _: Choice) -> Outcome {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Ok(steps::skip(log, "the address sanitizer runs on x86-64 Linux here"));
    }
    let mut command = process::cargo();
    command.args(["test", "--lib", "--target", "x86_64-unknown-linux-gnu"]);
    command.args(SANITIZED.iter().flat_map(|name| ["--package", name]));
    command.arg("--target-dir").arg(process::target().join("asan"));
    command.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", "-Zsanitizer=address");
    // The ring leaves memory to a kernel that does not let go of it, which its tests provoke.
    command.env("ASAN_OPTIONS", "detect_leaks=0");
    steps::counted(&mut command, log, Count::parse_cargo_test)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_compiler_is_read_from_the_manifest() {
        assert_eq!(rust_version("[workspace.package]\nrust-version = \"1.89\"\n"), Some("1.89"));
        assert_eq!(rust_version("[workspace.package]\n"), None);
    }
}
