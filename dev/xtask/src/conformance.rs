//! The Autobahn suite against the server: installed, run in shards, judged more strictly than it
//! judges itself (see [`crate::report`]).

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde_json::json;

use crate::Outcome;
use crate::backend::{Backend, Choice};
use crate::count::Count;
use crate::process;
use crate::report::{self, numbers};
use crate::server::{self, Server};

/// All cases of the frozen version: a run with fewer would be no full run.
const ALL_CASES: usize = 517;
/// For the installation from nothing: 33 packages, one of them compiled.
const INSTALL_LIMIT: Duration = Duration::from_secs(10 * 60);
/// For one section with few messages per compression case.
const SECTION_LIMIT: Duration = Duration::from_secs(10 * 60);
/// For one section with the suite's own 1,000 messages: up to 480 s in each of 18 cases.
const SECTION_LIMIT_FULL: Duration = Duration::from_secs(60 * 60);

#[derive(Args)]
pub(crate) struct Options {
    /// Cases, such as `1.1.*,6.3.1`
    #[arg(long, default_value = "*")]
    cases: String,
    /// Messages in each case of sections 12 and 13
    #[arg(long, default_value_t = 20, conflicts_with = "full")]
    count: u32,
    /// The suite's own 1,000 messages in each case of sections 12 and 13
    #[arg(long)]
    full: bool,
    /// Sections run at the same time
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=16))]
    jobs: u8,
    /// Test this address in place of a server started here
    #[arg(long, conflicts_with_all = ["binary", "deflate", "backend"])]
    url: Option<String>,
    /// The `sinews` program to test, in place of one built here
    #[arg(long)]
    binary: Option<PathBuf>,
    /// How the started server compresses
    #[arg(long, value_enum, default_value_t = Deflate::Dedicated)]
    deflate: Deflate,
    /// What the started server waits with: all cases run once for each
    #[arg(long, value_enum, default_value_t = Choice::Both)]
    backend: Choice,
}

#[derive(Clone, Copy, ValueEnum)]
enum Deflate {
    Shared,
    Dedicated,
}

/// Sets the suite up, starts the server and runs every case.
pub(crate) fn run(options: &Options) -> Outcome {
    let Some(interpreter) = find_python() else {
        println!(
            "skipped: no CPython 2.7 (pyenv install 2.7.18, or set AB_PY27); the suite runs on nothing newer"
        );
        return Ok(Count::SKIPPED);
    };
    let suite = match Suite::install(&interpreter) {
        Ok(suite) => suite,
        Err(why) => {
            println!("skipped: the suite could not be installed from PyPI: {why}");
            return Ok(Count::SKIPPED);
        }
    };
    let expected = suite.list(&options.cases)?;
    let out = process::target().join("xtask/autobahn");
    let _ = fs::remove_dir_all(&out);
    if let Some(url) = &options.url {
        return Run { suite: &suite, options, expected: &expected, out }.against(url);
    }
    let binary = server::binary(options.binary.as_deref())?;
    let permitted = options.backend.permitted(&binary)?;
    let mut count = permitted.print_skipped();
    for backend in permitted.backends {
        let out = out.join(backend.name());
        count = count + Run { suite: &suite, options, expected: &expected, out }.on(backend, &binary)?;
    }
    Ok(count)
}

/// All cases against one server.
struct Run<'a> {
    suite: &'a Suite,
    options: &'a Options,
    expected: &'a [String],
    /// Where its reports go.
    out: PathBuf,
}

impl Run<'_> {
    /// Against a server of ours, which must outlive the run.
    fn on(&self, backend: Backend, binary: &Path) -> Outcome {
        let deflate = match self.options.deflate {
            Deflate::Shared => "shared",
            Deflate::Dedicated => "dedicated",
        };
        let arguments = ["--deflate", deflate, "--backend", backend.name()];
        let mut server = Server::start(binary, &arguments, &self.out.join("server.log"))?;
        println!("backend {}", backend.name());
        let count = self.against(&format!("{}/echo", server.url()))?;
        if let Some(usage) = server.usage() {
            let mib = usage.resident_kib_max / 1024;
            println!("server: {:.1} s of CPU, {mib} MiB resident at most", usage.cpu_seconds);
        }
        Ok(match server.ended() {
            None => count,
            Some(how) => {
                println!("  {how}");
                count + Count::FAILED
            }
        })
    }

    fn against(&self, url: &str) -> Outcome {
        let Self { suite, options, expected, out } = self;
        fs::create_dir_all(out).map_err(|error| format!("{}: {error}", out.display()))?;
        println!("{} cases against {url}", expected.len());
        let started = Instant::now();
        let faults = run_shards(suite, options, &shards(expected), url, out);
        let wall = started.elapsed();

        let mut cases = Vec::new();
        for shard in shards(expected) {
            // A shard without a report has been named among the faults; its cases count as not run.
            cases.extend(report::read(&out.join(&shard.name)).unwrap_or_default());
        }
        let count = report::judge(&cases, expected);
        for fault in faults {
            println!("  {fault}");
        }
        println!("wall {:.1} s; reports in {}", wall.as_secs_f64(), out.display());
        Ok(count)
    }
}

/// The interpreter named by `AB_PY27`, pyenv's, or the system's.
fn find_python() -> Option<PathBuf> {
    if let Some(given) = env::var_os("AB_PY27") {
        return Some(PathBuf::from(given)).filter(|path| path.is_file());
    }
    let home = |dir: &str| env::var_os("HOME").map(|home| PathBuf::from(home).join(dir));
    let pyenv = env::var_os("PYENV_ROOT").map(PathBuf::from).or_else(|| home(".pyenv"));
    let versions = pyenv.and_then(|root| fs::read_dir(root.join("versions")).ok());
    let installed = versions.into_iter().flatten().flatten().map(|entry| entry.path().join("bin/python2.7"));
    let usual = ["/usr/bin/python2.7", "/usr/local/bin/python2.7"].map(PathBuf::from);
    installed.chain(usual).find(|path| path.is_file())
}

/// An installed suite.
struct Suite {
    python: PathBuf,
    program: PathBuf,
}

impl Suite {
    /// Installs the frozen set of packages into `.cache/autobahn`; a finished installation of the
    /// same set is used as it is.
    fn install(interpreter: &Path) -> Result<Self, String> {
        let dir = process::cache("autobahn");
        let requirements = process::root().join("dev/autobahn/requirements-py27.txt");
        let wanted = fs::read_to_string(&requirements).map_err(|error| format!("requirements: {error}"))?;
        let wanted = format!("{}\n{wanted}", interpreter.display());
        let program = process::root().join("dev/autobahn/suite.py");
        let suite = Self { python: dir.join("venv/bin/python"), program };
        let stamp = dir.join("installed");
        if suite.python.is_file() && fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
            return Ok(suite);
        }
        println!("installing the suite into {}", dir.display());
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        let step = |command: &mut Command, what: &str| {
            let log = dir.join(format!("{what}.log"));
            process::run(command, &log, INSTALL_LIMIT)?.check(what, &log)
        };
        // This interpreter has no venv module, and its newest virtualenv is long fixed.
        let boot = dir.join("boot");
        let mut command = Command::new(interpreter);
        command.args(["-m", "pip", "--disable-pip-version-check", "install", "--target"]);
        step(command.arg(&boot).arg("virtualenv==20.15.1"), "virtualenv")?;
        let mut command = Command::new(interpreter);
        command.args(["-m", "virtualenv", "--no-download"]).env("PYTHONPATH", &boot);
        step(command.arg(dir.join("venv")), "venv")?;
        let mut command = Command::new(&suite.python);
        command.args(["-m", "pip", "--disable-pip-version-check", "install", "--requirement"]);
        step(command.arg(&requirements), "packages")?;
        fs::write(&stamp, wanted).map_err(|error| format!("{}: {error}", stamp.display()))?;
        Ok(suite)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.python);
        command.arg("-B").arg(&self.program);
        command
    }

    /// The ids of the cases that the patterns, separated by commas, select.
    fn list(&self, patterns: &str) -> Result<Vec<String>, String> {
        let mut command = self.command();
        command.arg("list").args(patterns.split(',').filter(|pattern| !pattern.is_empty()));
        let output = process::output_of(&mut command).ok_or_else(|| format!("no such cases: {patterns}"))?;
        let ids: Vec<String> = output.lines().map(str::to_owned).collect();
        match ids.len() {
            0 => Err(format!("no such cases: {patterns}")),
            found if patterns == "*" && found != ALL_CASES => {
                Err(format!("the suite has {found} cases in place of {ALL_CASES}"))
            }
            _ => Ok(ids),
        }
    }

    /// Runs one shard; its reports go to a directory of its name.
    fn run(&self, shard: &Shard, options: &Options, url: &str, out: &Path) -> Result<(), String> {
        let spec = json!({
            "outdir": out.join(&shard.name),
            "servers": [{ "agent": "sinews", "url": url }],
            "options": {},
            "cases": shard.cases,
            "exclude-cases": [],
            "exclude-agent-cases": {},
        });
        let file = out.join(format!("{}.json", shard.name));
        fs::write(&file, spec.to_string()).map_err(|error| format!("{}: {error}", file.display()))?;
        let mut command = self.command();
        command.arg("run").arg(&file);
        if !options.full {
            command.args(["--count", &options.count.to_string()]);
        }
        let limit = if options.full { SECTION_LIMIT_FULL } else { SECTION_LIMIT };
        let log = out.join(format!("{}.log", shard.name));
        process::run(&mut command, &log, limit)?.check(&format!("section {}", shard.name), &log)?;
        // The suite's exit status is 0 whatever happened. It writes its report at the very end.
        report::read(&out.join(&shard.name)).map(|_| ())
    }
}

/// Cases that one process of the suite runs.
#[derive(Debug, PartialEq)]
struct Shard {
    name: String,
    cases: Vec<String>,
}

/// One shard per section; sections 12 and 13 are long and go by subsection. The suite writes its
/// report at its end only, so a crash or a time-out costs one shard and not the whole run.
fn shards(cases: &[String]) -> Vec<Shard> {
    let mut shards = BTreeMap::<Vec<u32>, Vec<String>>::new();
    for case in cases {
        let parts = numbers(case);
        let depth = if parts.first().is_some_and(|section| *section >= 12) { 2 } else { 1 };
        shards.entry(parts[..depth.min(parts.len())].to_vec()).or_default().push(case.clone());
    }
    let name = |key: &[u32]| key.iter().map(u32::to_string).collect::<Vec<_>>().join(".");
    shards.into_iter().map(|(key, cases)| Shard { name: name(&key), cases }).collect()
}

/// Runs the shards, `--jobs` at a time, the last sections first since they take longest.
fn run_shards(suite: &Suite, options: &Options, shards: &[Shard], url: &str, out: &Path) -> Vec<String> {
    let queue = Mutex::new(shards.iter().collect::<Vec<_>>());
    let faults = Mutex::new(Vec::new());
    let take = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop();
    thread::scope(|scope| {
        for _ in 0..options.jobs {
            scope.spawn(|| {
                while let Some(shard) = take() {
                    if let Err(fault) = suite.run(shard, options, url, out) {
                        faults.lock().unwrap_or_else(PoisonError::into_inner).push(fault);
                    }
                }
            });
        }
    });
    faults.into_inner().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compression_is_cut_finer_than_the_rest() {
        let cases = ["1.1.1", "1.2.8", "10.1.1", "12.1.1", "12.1.2", "12.2.1"].map(str::to_owned);
        let shard = |name: &str, cases: &[&str]| Shard {
            name: name.to_owned(),
            cases: cases.iter().map(|case| (*case).to_owned()).collect(),
        };
        let expected = [
            shard("1", &["1.1.1", "1.2.8"]),
            shard("10", &["10.1.1"]),
            shard("12.1", &["12.1.1", "12.1.2"]),
            shard("12.2", &["12.2.1"]),
        ];
        assert_eq!(shards(&cases), expected);
    }
}
