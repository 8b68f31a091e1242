//! External programs: found, run with a time limit, and stopped by their process id only.

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::times::{self, Spent};

/// Poll interval for a running program. Short compared with any program's run time, long compared with a poll's cost.
pub(crate) const POLL_EVERY: Duration = Duration::from_millis(10);
/// Time limit for any command. The longest, other projects' programs on both backends, need nine minutes on two cores
/// beside other steps; a hanging command is killed at this limit.
pub(crate) const COMMAND_LIMIT: Duration = Duration::from_secs(40 * 60);
/// Unit for process times in Linux, on every architecture we run on.
const TICKS_PER_SECOND: f64 = 100.0;
/// Lines printed from a failed program's output.
pub(crate) const TAIL_LINES: usize = 40;

/// Returns the repository's root: two levels above this package.
pub(crate) fn root() -> PathBuf {
    let here = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let here = PathBuf::from(here);
    here.ancestors().nth(2).map_or_else(|| here.clone(), Path::to_path_buf)
}

/// Returns cargo's target directory.
pub(crate) fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// Returns the log with this name.
pub(crate) fn log(name: &str) -> PathBuf {
    target().join("xtask").join(format!("{name}.log"))
}

/// Names the path in an error's text.
pub(crate) fn at(path: &Path) -> impl Fn(io::Error) -> String {
    move |error| format!("{}: {error}", path.display())
}

/// Returns a file's text; empty if it cannot be read.
pub(crate) fn read(path: &Path) -> String {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

pub(crate) fn write(path: &Path, text: impl AsRef<[u8]>) -> Result<(), String> {
    fs::write(path, text).map_err(at(path))
}

pub(crate) fn create_folder(path: &Path) -> Result<(), String> {
    fs::create_dir_all(path).map_err(at(path))
}

/// Returns git's answer in this repository, without its last newline.
pub(crate) fn git(arguments: &[&str]) -> Option<String> {
    let output = output_of(Command::new("git").current_dir(root()).args(arguments))?;
    Some(output.trim_end().to_owned())
}

/// Returns the workspace's packages, in cargo's description.
pub(crate) fn packages() -> Result<Vec<Value>, String> {
    let text = output_of(cargo().args(["metadata", "--no-deps", "--format-version", "1"]));
    let mut metadata: Value =
        text.and_then(|text| serde_json::from_str(&text).ok()).ok_or("cargo metadata failed")?;
    Ok(metadata["packages"].as_array_mut().map(std::mem::take).unwrap_or_default())
}

/// The cargo that runs this task, so that one toolchain does everything.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    remove_package_variables(&mut command);
    command
}

/// The compiler with Clippy's lints.
const LINTING_COMPILER: &str = "clippy-driver";

/// Returns cargo with Clippy's driver as the workspace's compiler, so that each package is compiled once for lints and
/// for tests. All debug builds for tests use it: another compiler would mean another build. [`warnings`] finds what it
/// reports.
///
/// # Errors
/// Clippy is not installed.
pub(crate) fn linting_cargo() -> Result<Command, String> {
    if find_program(LINTING_COMPILER).is_none() {
        return Err(format!("{LINTING_COMPILER} is not installed: rustup component add clippy"));
    }
    let mut command = cargo();
    command.env("RUSTC_WORKSPACE_WRAPPER", LINTING_COMPILER);
    Ok(command)
}

/// Returns the warning summaries in cargo's output. Cargo repeats the warnings for packages that it does not compile
/// again.
pub(crate) fn warnings(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| line.starts_with("warning: ") && line.contains(" generated "))
}

/// Removes the variables by which `cargo run` describes this package to this program. Build scripts of
/// dependencies watch variables with these names, and their packages would be compiled anew each time that cargo runs
/// from here and then from a shell.
pub(crate) fn remove_package_variables(command: &mut Command) {
    let describes = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(describes) {
            command.env_remove(name);
        }
    }
}

/// Returns the program's path, if it is an executable file or found on the search path.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|path| path.is_file());
    }
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|dir| dir.join(name)).find(|candidate| candidate.is_file())
}

/// A program's end.
#[derive(Debug)]
pub(crate) enum End {
    /// The program exited by itself.
    Exit(ExitStatus),
    /// The program was killed after this time.
    TimeOut(Duration),
}

impl End {
    /// Returns an error unless the program succeeded. The error names the program, its exit and its last
    /// lines.
    pub(crate) fn check(&self, what: &str, log: &Path) -> Result<(), String> {
        let how = match self {
            Self::Exit(status) if status.success() => return Ok(()),
            Self::Exit(status) => format!("{status}"),
            Self::TimeOut(limit) => format!("not done within {} s", limit.as_secs()),
        };
        Err(format!("{what}: {how}, see {}\n{}", log.display(), tail(log, TAIL_LINES)))
    }
}

/// Runs the program without standard input, its output and its errors in the file `log`.
pub(crate) fn run(command: &mut Command, log: &Path, limit: Duration) -> Result<End, String> {
    let started = Instant::now();
    let child = spawn(command, log)?;
    let (end, cpu) = wait(child, limit).map_err(at(Path::new(command.get_program())))?;
    times::record_command(command, log, Spent { wall: started.elapsed(), cpu });
    Ok(end)
}

/// Runs a program that must succeed.
pub(crate) fn succeed(command: &mut Command, what: &str, log: &Path) -> Result<(), String> {
    run(command, log, COMMAND_LIMIT)?.check(what, log)
}

/// Starts the program as [`run`] does.
pub(crate) fn spawn(command: &mut Command, log: &Path) -> Result<Child, String> {
    log.parent().map_or(Ok(()), create_folder)?;
    let output = File::create(log).map_err(at(log))?;
    let errors = output.try_clone().map_err(at(log))?;
    let child = command.stdin(Stdio::null()).stdout(output).stderr(errors).spawn();
    child.map_err(at(Path::new(command.get_program())))
}

/// Runs the program and returns its standard output if it succeeded.
pub(crate) fn output_of(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Waits for the program's end. Returns also its processor time, if the system tells.
fn wait(mut child: Child, limit: Duration) -> io::Result<(End, Option<f64>)> {
    let deadline = Instant::now() + limit;
    loop {
        // An exited program tells its whole time until it is waited for.
        let usage = Stat::read(child.id());
        let cpu = usage.as_ref().map(|usage| usage.cpu);
        if usage.is_none_or(|usage| usage.has_exited)
            && let Some(status) = child.try_wait()?
        {
            return Ok((End::Exit(status), cpu));
        }
        if Instant::now() >= deadline {
            kill_descendants(child.id());
            child.kill()?;
            child.wait()?;
            return Ok((End::TimeOut(limit), cpu));
        }
        thread::sleep(POLL_EVERY);
    }
}

/// Does the work for each item, in list order, and some at a time.
pub(crate) fn run_beside<T: Send, R: Send>(
    items: Vec<T>,
    at_a_time: usize,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    let queue = Mutex::new(items.into_iter());
    let take = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    thread::scope(|scope| {
        let take_all = || std::iter::from_fn(&take).map(&work).collect::<Vec<_>>();
        let threads: Vec<_> = (0..at_a_time).map(|_| scope.spawn(take_all)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("the work does not panic")).collect()
    })
}

/// The facts of `/proc` about a process.
#[derive(Debug, PartialEq)]
struct Stat {
    /// The process is a zombie: it has exited, and its parent has not waited for it.
    has_exited: bool,
    parent: u32,
    /// Processor time in seconds, with that of the descendants that were waited for.
    cpu: f64,
}

impl Stat {
    fn read(process: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
    }

    fn parse(stat: &str) -> Option<Self> {
        // The name, field 2, is in parentheses and may itself hold any character.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        let (has_exited, parent) = (fields.next()? == "Z", fields.next()?.parse().ok()?);
        // Fields 14 to 17: user and system time of the process, and of its descendants.
        let ticks = fields.skip(9).take(4).map(|field| field.parse::<u32>().ok());
        let cpu = ticks.map(|ticks| ticks.map(f64::from)).sum::<Option<f64>>()? / TICKS_PER_SECOND;
        Some(Self { has_exited, parent, cpu })
    }
}

/// Kills all descendants of the process. A program past its limit is often a cargo with a hanging test binary: killing
/// cargo alone would leave the test running.
fn kill_descendants(ancestor: u32) {
    let family = descendants(ancestor, &parents());
    if !family.is_empty() {
        let ids = family.iter().map(u32::to_string);
        let _ = Command::new("kill").arg("-KILL").args(ids).stderr(Stdio::null()).status();
    }
}

/// Returns each process with its parent, from `/proc`; empty on systems without it.
fn parents() -> BTreeMap<u32, u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter_map(|id| Some((id, Stat::read(id)?.parent))).collect()
}

fn descendants(ancestor: u32, parents: &BTreeMap<u32, u32>) -> Vec<u32> {
    let mut family = vec![ancestor];
    let mut next = 0;
    while next < family.len() {
        let parent = family[next];
        family.extend(parents.iter().filter(|(_, of)| **of == parent).map(|(id, _)| *id));
        next += 1;
    }
    family.split_off(1)
}

/// Returns a file's last lines; empty if it cannot be read.
pub(crate) fn tail(path: &Path, lines: usize) -> String {
    let text = read(path);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use super::*;

    #[test]
    fn cargo_runs_at_the_root_and_is_not_told_of_this_package() {
        assert!(root().join("dev/xtask").is_dir());
        let command = cargo();
        let is_removed =
            |wanted: &str| command.get_envs().any(|(name, value)| name == wanted && value.is_none());
        assert!(is_removed("CARGO_MANIFEST_DIR") && !is_removed("CARGO_TERM_COLOR"), "{command:?}");
    }

    #[test]
    fn warnings_are_found_by_their_summaries() {
        let text = "warning: unused variable: `a`\n --> a.rs:1:1\nwarning: `a` (lib) generated 1 warning\nrunning 1 test";
        assert_eq!(warnings(text).collect::<Vec<_>>(), ["warning: `a` (lib) generated 1 warning"]);
        assert_eq!(warnings("test reports_a_warning ... ok").next(), None);
    }

    #[test]
    fn program_is_killed_with_its_children_at_the_time_limit() {
        let mut command = Command::new("sh");
        command.args(["-c", "sh -c 'sleep 600 & echo $!; wait'; :"]).stdout(Stdio::piped());
        let mut child = command.spawn().expect("sh runs");
        let mut line = String::new();
        let output = child.stdout.take().expect("it was asked for");
        BufReader::new(output).read_line(&mut line).expect("sh prints a line");
        let sleeper: u32 = line.trim().parse().expect("the line is a process id");

        let (end, _) = wait(child, Duration::ZERO).expect("a child can be waited for");
        assert!(matches!(end, End::TimeOut(_)), "{end:?}");
        let gone = (0..6000).any(|_| {
            thread::sleep(POLL_EVERY);
            // Until its new parent waits for it, an exited process remains as a zombie.
            Stat::read(sleeper).is_none_or(|stat| stat.has_exited)
        });
        assert!(gone, "process {sleeper} outlived its limit");
    }

    #[test]
    fn processor_time_of_a_program_includes_its_children() {
        let stat = "7 (a) b) Z 1 7 7 0 -1 4194560 90 0 0 0 100 50 25 25 20 0 3 0 99 1 2 3";
        assert_eq!(Stat::parse(stat), Some(Stat { has_exited: true, parent: 1, cpu: 2.0 }));
        if Path::new("/proc/self/stat").exists() {
            let mut command = Command::new("sh");
            // The inner shell works, the outer one only waits.
            command.args(["-c", "sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done'; :"]);
            let child = command.spawn().expect("sh runs");
            let (_, cpu) = wait(child, Duration::from_secs(60)).expect("a child can be waited for");
            assert!(cpu.is_some_and(|cpu| cpu > 0.0), "{cpu:?}");
        }
    }

    #[test]
    fn failure_contains_the_last_output() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo first; echo last words >&2; exit 3"]);
        let message = succeed(&mut command, "the thing", &log("self-test-failure")).expect_err("status 3");
        assert!(message.starts_with("the thing: exit status: 3, see "), "{message}");
        assert!(message.ends_with("last words"), "{message}");
    }
}
