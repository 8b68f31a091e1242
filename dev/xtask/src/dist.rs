//! `cargo xtask dist`: archives of static programs, the npm package, and a trial of publishing the crates. A target whose
//! tools are missing is skipped with a line that says how to get them.

use std::env;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::Outcome;
use crate::count::Count;
use crate::process::{self, find_program, output_of};
use crate::server::{self, DIST_PROFILE, Server};

/// A target of archives, the compilers for the C code of a dependency, and their package.
struct Target {
    name: &'static str,
    compilers: &'static [&'static str],
    remedy: &'static str,
}

/// The C library is linked statically. Rust has its own linker and startup code for these targets.
const TARGETS: [Target; 2] = [
    Target {
        name: "x86_64-unknown-linux-musl",
        compilers: &["musl-gcc"],
        remedy: "apt-get install musl-tools",
    },
    Target {
        name: "aarch64-unknown-linux-musl",
        compilers: &["aarch64-linux-musl-gcc", "aarch64-linux-gnu-gcc"],
        remedy: "apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
    },
];
/// Time limit of one command. An optimized build from nothing takes ten minutes on two idle cores.
const LIMIT: Duration = Duration::from_secs(60 * 60);
const SHELLS: [&str; 3] = ["bash", "fish", "zsh"];
/// Files of the repository in each archive.
const FILES: [&str; 5] =
    ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT", "deploy/sinews.service"];

/// Files that a user expects in an archive.
const EXPECTED: [&str; 10] = [
    "sinews",
    "README.md",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "sinews.service",
    "completions/sinews.bash",
    "completions/sinews.fish",
    "completions/sinews.zsh",
    "man/sinews.1",
    "man/sinews-serve.1",
];
/// Time limit of an answer of the program in an archive.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Archives of the program for each target, with completions and manual pages
    Programs,
    /// The npm package
    Client,
    /// A trial of publishing the crates, in the order of their dependencies
    Crates,
}

#[derive(Args)]
pub(crate) struct Options {
    /// Parts to make [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// Targets of the programs [default: all]
    #[arg(long, value_delimiter = ',')]
    target: Vec<String>,
    /// Features of the programs: HTTP/3, and brokers that can store the streams
    #[arg(long, default_value = "http3,nats,redis")]
    features: String,
    /// Compile the programs without optimization, into `target/archives-trial`: enough to try the archives
    #[arg(long)]
    trial: bool,
    /// Package the crates without compiling them
    #[arg(long)]
    no_verify: bool,
}

pub(crate) fn run(options: &Options) -> Outcome {
    if let Some(unknown) =
        options.target.iter().find(|name| TARGETS.iter().all(|target| target.name != **name))
    {
        return Err(format!("no such target: {unknown}"));
    }
    let folder = process::target().join(if options.trial { "archives-trial" } else { "archives" });
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let wants = |part| options.only.is_empty() || options.only.contains(&part);
    let mut count = Count::default();
    if wants(Part::Programs) {
        let is_chosen = |target: &&Target| {
            options.target.is_empty() || options.target.iter().any(|name| name == target.name)
        };
        for target in TARGETS.iter().filter(is_chosen) {
            count = count + archive(target, options, &folder).unwrap_or_else(report);
        }
    }
    if wants(Part::Client) {
        count = count + pack_client(&folder).unwrap_or_else(report);
    }
    if wants(Part::Crates) {
        count = count + try_publish(options.no_verify).unwrap_or_else(report);
    }
    sum(&folder)?;
    println!("{}", folder.display());
    Ok(count)
}

/// Prints the reason of a failure. The other parts are made all the same.
fn report(why: String) -> Count {
    println!("FAIL {why}");
    Count::FAILED
}

fn skip(why: &str) -> Count {
    println!("skipped: {why}");
    Count::SKIPPED
}

/// Runs a command; its output goes to a log.
fn execute(command: &mut Command, name: &str) -> Result<(), String> {
    let log = process::target().join(format!("xtask/dist-{name}.log"));
    process::run(command, &log, LIMIT)?.check(name, &log)
}

fn archive(target: &Target, options: &Options, folder: &Path) -> Outcome {
    let sysroot = output_of(Command::new("rustc").args(["--print", "sysroot"])).unwrap_or_default();
    if !Path::new(sysroot.trim()).join("lib/rustlib").join(target.name).join("lib").is_dir() {
        return Ok(skip(&format!("no standard library for {0} (rustup target add {0})", target.name)));
    }
    let Some(compiler) = target.compilers.iter().find_map(|name| find_program(name)) else {
        return Ok(skip(&format!("no C compiler for {} ({})", target.name, target.remedy)));
    };
    let name = format!("sinews-{}-{}", env!("CARGO_PKG_VERSION"), target.name);
    let built = build(target, &compiler, options)?;
    let program = split_debug(&built, folder, &name, sysroot.trim())?;
    let bytes = fs::read(&program).map_err(|error| format!("{}: {error}", program.display()))?;
    if !is_static(&bytes) {
        println!("FAIL {}: the program needs a dynamic linker", target.name);
        return Ok(Count::FAILED);
    }
    if has_debug_information(&bytes) {
        println!("FAIL {}: the program has debug information", target.name);
        return Ok(Count::FAILED);
    }
    let content = folder.join(&name);
    let _ = fs::remove_dir_all(&content);
    fill(&content, &program).map_err(|error| format!("{}: {error}", content.display()))?;
    document(&content, &program)?;
    fs::remove_file(&program).map_err(|error| format!("{}: {error}", program.display()))?;
    compress(folder, &name)?;
    fs::remove_dir_all(&content).map_err(|error| format!("{}: {error}", content.display()))?;
    println!("ok {name}.tar.gz, program of {:.1} MiB", bytes.len() as f64 / f64::from(1 << 20));
    Ok(Count::PASSED + try_archive(folder, &name).unwrap_or_else(report))
}

/// Unpacks an archive as a user does, looks for its files, and asks the program whether it is alive, if this machine can run it.
fn try_archive(folder: &Path, name: &str) -> Outcome {
    let unpacked = process::target().join("xtask/dist-unpacked");
    let _ = fs::remove_dir_all(&unpacked);
    fs::create_dir_all(&unpacked).map_err(|error| format!("{}: {error}", unpacked.display()))?;
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(folder.join(format!("{name}.tar.gz"))).current_dir(&unpacked);
    execute(&mut tar, "unpack")?;
    let content = unpacked.join(name);
    let missing: Vec<&str> = EXPECTED.into_iter().filter(|file| !content.join(file).is_file()).collect();
    if !missing.is_empty() {
        return Err(format!("{name}.tar.gz does not contain {}", missing.join(", ")));
    }
    let program = content.join("sinews");
    let Some(version) = output_of(Command::new(&program).arg("--version")) else {
        return Ok(skip(&format!("the program of {name}.tar.gz: this machine cannot run it")));
    };
    if !version.contains(name.trim_start_matches("sinews-").split_once('-').unwrap_or_default().1) {
        return Err(format!("the program of {name}.tar.gz is of another target: {version}"));
    }
    let server =
        Server::start(&program, &["--threads", "1"], &process::target().join("xtask/dist-server.log"))?;
    let answer = get(server.address(), "/healthz").map_err(|error| format!("GET /healthz: {error}"))?;
    if !answer.starts_with("HTTP/1.1 200 ") {
        return Err(format!("{name}.tar.gz: GET /healthz: {answer}"));
    }
    println!("ok the program of {name}.tar.gz serves");
    Ok(Count::PASSED)
}

pub(crate) fn get(address: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn build(target: &Target, compiler: &Path, options: &Options) -> Result<PathBuf, String> {
    let mut command = process::cargo();
    let [profile, subfolder] = if options.trial { ["dev", "debug"] } else { [DIST_PROFILE; 2] };
    command.args(["build", "--profile", profile, "--locked", "--package", "sinews-cli", "--bin", "sinews"]);
    command.args(["--target", target.name, "--features", &options.features]);
    let variable = target.name.replace('-', "_");
    command.env(format!("CC_{variable}"), compiler);
    if !target.name.starts_with(env::consts::ARCH) {
        command.env(format!("CARGO_TARGET_{}_LINKER", variable.to_uppercase()), "rust-lld");
    }
    execute(&mut command, target.name)?;
    Ok(process::target().join(target.name).join(subfolder).join("sinews"))
}

/// Copies the program without debug information, which would triple its size, and writes this to a file of its own. Symbols stay
/// for backtraces. `split-debuginfo` of cargo leaves most of it in the program on Linux.
fn split_debug(built: &Path, folder: &Path, name: &str, sysroot: &str) -> Result<PathBuf, String> {
    let host = output_of(Command::new("rustc").arg("-vV")).unwrap_or_default();
    let host = host.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or_default();
    // It knows all targets; that of the system only this machine's.
    let tool = Path::new(sysroot).join("lib/rustlib").join(host).join("bin/rust-objcopy");
    let tool = if tool.is_file() { tool } else { PathBuf::from("objcopy") };
    // Its own libraries are not found otherwise.
    let run = |command: &mut Command, step| {
        execute(command.env("LD_LIBRARY_PATH", Path::new(sysroot).join("lib")), step)
    };
    let [program, debug] = ["program", "debug"].map(|what| folder.join(format!("{name}.{what}")));
    let mut separate = Command::new(&tool);
    run(separate.arg("--only-keep-debug").arg(built).arg(&debug), "objcopy-debug")?;
    let mut strip = Command::new(&tool);
    // The link is the name of the file, which a debugger looks for beside the program. It is read for a checksum.
    strip.arg("--strip-debug").arg(format!("--add-gnu-debuglink={}", debug.display()));
    run(strip.arg(built).arg(&program), "objcopy-strip")?;
    execute(Command::new("gzip").arg("-nf9").arg(&debug), "gzip")?;
    Ok(program)
}

/// Whether a 64-bit little-endian ELF file has a section of debug information in DWARF.
fn has_debug_information(file: &[u8]) -> bool {
    const SECTION: &[u8] = b".debug_info\0";
    // The section with the names of sections: its header, and there its place.
    let names = || {
        let (start, size, index) = (number(file, 40, 8)?, number(file, 58, 2)?, number(file, 62, 2)?);
        let header = start + index * size;
        file.get(number(file, header + 24, 8)?..)?.get(..number(file, header + 32, 8)?)
    };
    names().is_some_and(|names| names.windows(SECTION.len()).any(|window| window == SECTION))
}

/// Reads a number of a little-endian file.
fn number(file: &[u8], at: usize, bytes: usize) -> Option<usize> {
    let slice = file.get(at..at + bytes)?;
    usize::try_from(slice.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte))).ok()
}

/// Whether a 64-bit little-endian ELF file names no interpreter (PT_INTERP).
fn is_static(file: &[u8]) -> bool {
    const PT_INTERP: usize = 3;
    let headers = || {
        let (start, size, count) = (number(file, 32, 8)?, number(file, 54, 2)?, number(file, 56, 2)?);
        (0..count).map(|index| number(file, start + index * size, 4)).collect::<Option<Vec<_>>>()
    };
    let is_elf = file.starts_with(b"\x7fELF\x02\x01");
    is_elf && headers().is_some_and(|kinds| !kinds.is_empty() && !kinds.contains(&PT_INTERP))
}

fn fill(content: &Path, program: &Path) -> std::io::Result<()> {
    fs::create_dir_all(content)?;
    fs::copy(program, content.join("sinews"))?;
    for file in FILES {
        let name = Path::new(file).file_name().unwrap_or_default();
        fs::copy(process::root().join(file), content.join(name))?;
    }
    Ok(())
}

/// Adds the completions and manual pages that the program writes, or its build for this machine.
fn document(content: &Path, program: &Path) -> Result<(), String> {
    let runs = output_of(Command::new(program).arg("--version")).is_some();
    let program = if runs { program.to_owned() } else { server::build_debug("sinews")? };
    let folder = |name: &str| {
        let folder = content.join(name);
        fs::create_dir_all(&folder).map(|()| folder).map_err(|error| format!("{name}: {error}"))
    };
    execute(Command::new(&program).arg("man").arg(folder("man")?), "man")?;
    let completions = folder("completions")?;
    for shell in SHELLS {
        let script = output_of(Command::new(&program).args(["completions", shell]));
        let script = script.ok_or_else(|| format!("{} completions {shell} failed", program.display()))?;
        let file = completions.join(format!("sinews.{shell}"));
        fs::write(&file, script).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    Ok(())
}

/// Makes an archive that depends on the content only: the time is that of the commit, and names are sorted.
fn compress(folder: &Path, name: &str) -> Result<(), String> {
    let mut git = Command::new("git");
    git.args(["log", "-1", "--format=%ct"]).current_dir(process::root());
    let time = output_of(&mut git).unwrap_or_else(|| "0".to_owned());
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mode=u+rw,go+r-w"]);
    tar.arg(format!("--mtime=@{}", time.trim())).args(["--use-compress-program", "gzip -n9"]);
    tar.arg("-cf").arg(format!("{name}.tar.gz")).arg(name).current_dir(folder);
    execute(&mut tar, "tar")
}

fn pack_client(folder: &Path) -> Outcome {
    if find_program("npm").is_none() {
        return Ok(skip("the npm package: no npm (apt-get install npm)"));
    }
    for package in ["clients/js", "clients/pusher-recovery"] {
        let mut command = Command::new("npm");
        command.args(["pack", "--pack-destination"]).arg(folder).current_dir(process::root().join(package));
        execute(&mut command, "npm")?;
        println!("ok the npm package of {package}");
    }
    Ok(Count::PASSED)
}

/// Publishes the crates to nowhere: `cargo publish --dry-run` packages them, and compiles each from its package.
fn try_publish(no_verify: bool) -> Outcome {
    let mut command = process::cargo();
    command.args(["publish", "--dry-run", "--locked", "--allow-dirty"]);
    let crates = published()?;
    command.args(crates.iter().flat_map(|name| ["--package", name]));
    if no_verify {
        command.arg("--no-verify");
    }
    execute(&mut command, "crates")?;
    println!("ok {} crates can be published: {}", crates.len(), crates.join(", "));
    Ok(Count::PASSED)
}

/// The names of the packages whose manifests permit publishing.
fn published() -> Result<Vec<String>, String> {
    let packages = manifests()?;
    Ok(packages.iter().filter_map(|package| package["name"].as_str()).map(str::to_owned).collect())
}

/// The packages of the workspace whose manifests permit publishing.
fn manifests() -> Result<Vec<serde_json::Value>, String> {
    let metadata = output_of(process::cargo().args(["metadata", "--no-deps", "--format-version", "1"]));
    let metadata: serde_json::Value =
        metadata.and_then(|text| serde_json::from_str(&text).ok()).ok_or("cargo metadata failed")?;
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    Ok(packages.iter().filter(|package| package["publish"].is_null()).cloned().collect())
}

/// Writes the checksums of all archives.
fn sum(folder: &Path) -> Result<(), String> {
    let mut archives: Vec<_> = fs::read_dir(folder)
        .map_err(|error| format!("{}: {error}", folder.display()))?
        .flatten()
        .map(|entry| entry.file_name())
        .filter(|name| {
            Path::new(name).extension().is_some_and(|extension| extension == "gz" || extension == "tgz")
        })
        .collect();
    archives.sort();
    if archives.is_empty() {
        return Ok(());
    }
    let mut command = Command::new("sha256sum");
    let sums = output_of(command.args(archives).current_dir(folder)).ok_or("sha256sum failed")?;
    fs::write(folder.join("SHA256SUMS"), sums).map_err(|error| format!("SHA256SUMS: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF file with program headers of these kinds.
    fn elf(kinds: &[u32]) -> Vec<u8> {
        let mut file = vec![0; 64];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[32] = 64;
        file[54] = 56;
        file[56] = u8::try_from(kinds.len()).expect("few kinds");
        for kind in kinds {
            file.extend(kind.to_le_bytes());
            file.extend([0; 52]);
        }
        file
    }

    #[test]
    fn program_with_an_interpreter_is_not_static() {
        assert!(is_static(&elf(&[6, 1, 2])));
        assert!(!is_static(&elf(&[6, 3, 1])));
        assert!(!is_static(&elf(&[])));
        assert!(!is_static(&elf(&[1])[..66]));
        assert!(!is_static(b"#!/bin/sh\n"));
    }

    #[test]
    fn debug_information_goes_to_a_file_of_its_own() {
        let folder = process::target().join("xtask/self-test-debug");
        fs::create_dir_all(&folder).expect("the target folder is writable");
        let sysroot = output_of(Command::new("rustc").args(["--print", "sysroot"])).unwrap_or_default();
        let (source, built) = (folder.join("a.rs"), folder.join("a"));
        fs::write(&source, "fn main() {}").expect("the folder is writable");
        let mut compiler = Command::new("rustc");
        compiler.args(["-Cdebuginfo=1", "--edition=2024", "-o"]).arg(&built).arg(&source);
        execute(&mut compiler, "self-test-debug").expect("it compiles");
        assert!(has_debug_information(&fs::read(&built).expect("it exists")));
        let program = split_debug(&built, &folder, "a-1.0.0", sysroot.trim()).expect("it is split");
        assert!(!has_debug_information(&fs::read(&program).expect("it is written")));
        assert!(folder.join("a-1.0.0.debug.gz").is_file());
        assert!(output_of(&mut Command::new(&program)).is_some(), "it runs");
    }

    #[test]
    fn product_crates_are_published_and_tools_are_not() {
        let crates = published().expect("cargo runs");
        assert!(
            ["sinews", "sinews-cli", "sinews-hub"]
                .iter()
                .all(|name| crates.iter().any(|known| known == name))
        );
        assert!(!crates.iter().any(|name| name == "xtask" || name == "sinews-testkit"), "{crates:?}");
    }

    #[test]
    fn published_crates_describe_themselves_and_contain_their_licenses() {
        for package in manifests().expect("cargo runs") {
            let name = &package["name"];
            let length = |key: &str| package[key].as_array().map_or(0, Vec::len);
            let text = |key: &str| package[key].as_str().unwrap_or_default();
            assert!(text("description").len() > 20, "{name} has no description");
            assert!((1..=5).contains(&length("keywords")), "{name} has {} keywords", length("keywords"));
            assert!(
                (1..=5).contains(&length("categories")),
                "{name} has {} categories",
                length("categories")
            );
            assert_eq!(text("license"), "MIT OR Apache-2.0", "{name}");
            let folder = Path::new(text("manifest_path")).parent().expect("a folder");
            for file in ["README.md", "LICENSE-APACHE", "LICENSE-MIT"] {
                assert!(folder.join(file).is_file(), "{name} has no {file}");
            }
        }
    }

    #[test]
    fn checksums_name_every_archive() {
        let folder = process::target().join("xtask/self-test-dist");
        fs::create_dir_all(&folder).expect("the target folder is writable");
        fs::write(folder.join("a.tar.gz"), "a").expect("the target folder is writable");
        fs::write(folder.join("b.tgz"), "b").expect("the target folder is writable");
        sum(&folder).expect("sha256sum runs");
        let sums = fs::read_to_string(folder.join("SHA256SUMS")).expect("it was written");
        assert!(
            sums.starts_with("ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb  a.tar.gz\n")
        );
        assert_eq!(sums.lines().count(), 2);
    }
}
