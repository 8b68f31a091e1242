//! Instructions of the server for a message, delivery or request, counted by callgrind and compared with the recorded counts.
//!
//! Counts do not depend on the load of the machine. Two runs of different lengths give the count of a round without the
//! start. The program runs on readiness: valgrind knows io_uring only in part. Both backends share all code above the loop.

use std::collections::BTreeMap;
use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::Args;

use crate::Outcome;
use crate::count::Count;
use crate::process;

const PACKAGE: &str = "sinews-instructions";
/// The profile of the workspace, and the name of its folder. Its options do not depend on the environment.
const PROFILE: &str = "instructions";
/// Variables that change code in spite of the profile.
const VARIABLES: [&str; 4] =
    ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_RUSTFLAGS", "CARGO_INCREMENTAL"];
/// The recorded counts, from the root of the repository.
const RECORD: &str = "dev/xtask/instructions.txt";
/// Code paths of the program, with the messages, deliveries or requests of one round.
const PATHS: [(&str, u64); 8] = [
    ("echo", 1),
    ("burst", 16),
    ("fan-out", 200),
    ("wildcard", 800),
    ("json", 200),
    ("http", 16),
    ("publish", 1),
    ("event", 1),
];
/// Rounds of the two runs.
const ROUNDS: [u64; 2] = [100, 300];
/// The permitted growth, in percent.
const GROWTH_MAX: f64 = 3.0;
/// Time limit of one run, which needs two to four seconds, and on a busy machine minutes.
const RUN_LIMIT: Duration = Duration::from_secs(10 * 60);

#[derive(Args)]
pub(crate) struct Options {
    /// Write the counts of this machine's architecture and compiler anew, after an intended change
    #[arg(long)]
    bless: bool,
}

/// Instructions by architecture, compiler and path.
type Record = BTreeMap<(String, String, String), f64>;

#[derive(Debug, PartialEq)]
enum Verdict {
    Equal,
    /// Fewer by more than the tolerance: the record should follow.
    Fewer,
    More,
    Unknown,
}

pub(crate) fn run(options: &Options) -> Outcome {
    if process::find_program("valgrind").is_none() {
        println!("skipped: no valgrind (apt-get install valgrind)");
        return Ok(Count::SKIPPED);
    }
    let compiler = compiler()?;
    let program = build()?;
    let mut measured = Vec::new();
    for (path, items) in PATHS {
        let [short, long] = [count(&program, path, ROUNDS[0])?, count(&program, path, ROUNDS[1])?];
        let items = (ROUNDS[1] - ROUNDS[0]) * items;
        measured.push((path, long.saturating_sub(short) as f64 / items as f64));
    }
    let file = process::root().join(RECORD);
    let mut record = parse(&fs::read_to_string(&file).unwrap_or_default())?;
    if options.bless {
        // Counts of an earlier compiler are of no use.
        record.retain(|(arch, ..), _| arch != ARCH);
        let key = |path: &str| (ARCH.to_owned(), compiler.clone(), path.to_owned());
        record.extend(measured.iter().map(|(path, count)| (key(path), *count)));
        fs::write(&file, write(&record)).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    Ok(compare(&record, &compiler, &measured))
}

/// Compares and prints each count.
fn compare(record: &Record, compiler: &str, measured: &[(&str, f64)]) -> Count {
    let mut count = Count::default();
    for (path, now) in measured {
        let key = (ARCH.to_owned(), compiler.to_owned(), (*path).to_owned());
        let before = record.get(&key).copied();
        let change = before.map_or_else(String::new, |before| {
            format!(", {before:.1} recorded, {:+.1} %", (now / before - 1.0) * 100.0)
        });
        let (word, one) = match verdict(before, *now) {
            Verdict::Equal => ("ok", Count::PASSED),
            Verdict::Fewer => ("ok, record it with `cargo xtask instructions --bless`:", Count::PASSED),
            Verdict::More => ("FAIL", Count::FAILED),
            Verdict::Unknown => ("skipped: no count of this architecture and compiler:", Count::SKIPPED),
        };
        println!("{word} {path}: {now:.1} instructions{change}");
        count = count + one;
    }
    count
}

fn verdict(before: Option<f64>, now: f64) -> Verdict {
    let Some(before) = before else { return Verdict::Unknown };
    let growth = (now / before - 1.0) * 100.0;
    if growth > GROWTH_MAX {
        Verdict::More
    } else if growth < -GROWTH_MAX {
        Verdict::Fewer
    } else {
        Verdict::Equal
    }
}

/// Returns the version of the compiler.
fn compiler() -> Result<String, String> {
    let version = process::output_of(Command::new("rustc").current_dir(process::root()).arg("--version"));
    let version = version.as_deref().and_then(|text| text.split_whitespace().nth(1));
    version.map(str::to_owned).ok_or_else(|| "rustc --version failed".to_owned())
}

fn build() -> Result<PathBuf, String> {
    let log = process::target().join("xtask/instructions-build.log");
    let mut command = process::cargo();
    command.args(["build", "--package", PACKAGE, "--profile", PROFILE]);
    VARIABLES.iter().for_each(|name| {
        command.env_remove(name);
    });
    process::run(&mut command, &log, process::COMMAND_LIMIT)?.check("build of the program", &log)?;
    Ok(process::target().join(PROFILE).join(PACKAGE))
}

/// Runs the program under callgrind. Returns the instructions of all threads but the first, which is the client.
fn count(program: &Path, path: &str, rounds: u64) -> Result<u64, String> {
    let folder = process::target().join("xtask/instructions");
    let name = format!("{path}-{rounds}");
    // Files of an earlier run, which may have had more threads.
    let _ = fs::remove_dir_all(folder.join(&name));
    fs::create_dir_all(folder.join(&name)).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--separate-threads=yes"]);
    command.arg(format!("--callgrind-out-file={}", folder.join(&name).join("out").display()));
    command.arg(program).args([path, "poll", &rounds.to_string()]);
    let log = folder.join(format!("{name}.log"));
    process::run(&mut command, &log, RUN_LIMIT)?.check(&name, &log)?;
    let files = fs::read_dir(folder.join(&name)).map_err(|error| format!("{name}: {error}"))?;
    let texts = files.flatten().filter(|file| is_of_server(&file.file_name().to_string_lossy()));
    let totals = texts.filter_map(|file| total(&fs::read_to_string(file.path()).ok()?));
    totals.reduce(|sum, total| sum + total).ok_or_else(|| format!("{name}: callgrind wrote no totals"))
}

/// Callgrind numbers the threads, which end the names of its files.
fn is_of_server(file: &str) -> bool {
    file.rsplit_once('-').is_some_and(|(_, thread)| thread != "01")
}

fn total(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("totals: ")?.trim().parse().ok())
}

fn parse(text: &str) -> Result<Record, String> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let fields: Vec<_> = line.split_whitespace().collect();
            let [arch, compiler, path, count] = fields[..] else {
                return Err(format!("{RECORD}: {line}"));
            };
            let count = count.parse().map_err(|_| format!("{RECORD}: {line}"))?;
            Ok(((arch.to_owned(), compiler.to_owned(), path.to_owned()), count))
        })
        .collect()
}

fn write(record: &Record) -> String {
    let head = "# Instructions of the server: architecture, compiler, path, instructions for a message (echo, burst),\n\
                # a delivery (fan-out, wildcard, json) or a request (http, publish, event). Written by\n\
                # `cargo xtask instructions --bless`.\n";
    let line = |((arch, compiler, path), count): (&(String, String, String), &f64)| {
        format!("{arch} {compiler} {path} {count:.1}\n")
    };
    head.to_owned() + &record.iter().map(line).collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_beyond_three_percent_fails() {
        assert_eq!(verdict(Some(1000.0), 1029.0), Verdict::Equal);
        assert_eq!(verdict(Some(1000.0), 1031.0), Verdict::More);
        assert_eq!(verdict(Some(1000.0), 960.0), Verdict::Fewer);
        assert_eq!(verdict(None, 960.0), Verdict::Unknown);
        let key = |path: &str| (ARCH.to_owned(), "1.95.0".to_owned(), path.to_owned());
        let record = Record::from([(key("echo"), 1000.0), (key("http"), 1000.0)]);
        let measured = [("echo", 1001.0), ("http", 1100.0), ("fan-out", 1.0)];
        assert_eq!(compare(&record, "1.95.0", &measured), Count { passed: 1, failed: 1, skipped: 1 });
        assert_eq!(compare(&record, "1.96.0", &measured), Count { skipped: 3, ..Count::default() });
    }

    #[test]
    fn record_reads_back_as_written() {
        let key = |arch: &str| (arch.to_owned(), "1.95.0".to_owned(), "echo".to_owned());
        let record = Record::from([(key("x86_64"), 4135.9), (key("aarch64"), 4000.0)]);
        assert_eq!(parse(&write(&record)), Ok(record));
        assert!(parse("x86_64 1.95.0 echo many").is_err());
    }

    #[test]
    fn instructions_of_the_client_do_not_count() {
        assert!(is_of_server("out-02"));
        assert!(!is_of_server("out-01") && !is_of_server("out"));
        assert_eq!(total("events: Ir\nfn=(1)\ntotals: 4135\n"), Some(4135));
        assert_eq!(total("events: Ir\n"), None);
    }
}
