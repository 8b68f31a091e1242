//! The Autobahn suite: installation, list of cases, and runs as a client or as a server.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::process;
use crate::report::{self, numbers};
use crate::server::{self, Server};

/// All cases of the frozen version: a run with fewer cases is incomplete.
const ALL_CASES: usize = 517;
/// Time limit of the installation from nothing: 33 packages, one of them compiled.
const INSTALL_LIMIT: Duration = Duration::from_secs(10 * 60);
/// Time limit of one section with few messages per compression case.
const SECTION_LIMIT: Duration = Duration::from_secs(10 * 60);
/// Time limit of one section with the suite's own 1,000 messages: up to 480 s in each of 18 cases.
const SECTION_LIMIT_FULL: Duration = Duration::from_secs(60 * 60);

/// Returns the interpreter in `AB_PY27`, pyenv's, or the system's.
pub(crate) fn find_python() -> Option<PathBuf> {
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
pub(crate) struct Suite {
    python: PathBuf,
    program: PathBuf,
}

impl Suite {
    /// Installs the frozen set of packages into `.cache/autobahn`; a finished installation of the
    /// same set is used as it is.
    pub(crate) fn install(interpreter: &Path) -> Result<Self, String> {
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
        // This interpreter has no venv module; the last virtualenv with support for it is pinned.
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
    pub(crate) fn list(&self, patterns: &str) -> Result<Vec<String>, String> {
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

    /// Runs a shard; its reports go to a directory with its name.
    pub(crate) fn run(
        &self,
        shard: &Shard,
        messages: Messages,
        subject: Subject<'_>,
        out: &Path,
    ) -> Result<(), String> {
        match subject {
            Subject::Server(url) => self.run_client(shard, messages, url, out),
            Subject::Client(program) => self.run_server(shard, messages, program, out),
        }?;
        // The suite's exit status is always 0. It writes its report at the very end.
        report::read(&out.join(&shard.name)).map(|_| ())
    }

    fn run_client(&self, shard: &Shard, messages: Messages, url: &str, out: &Path) -> Result<(), String> {
        let whom = json!({ "servers": [{ "agent": AGENT, "url": url }] });
        let mut command = self.command_for("client", shard, messages, whom, out)?;
        let log = out.join(format!("{}.log", shard.name));
        let end = process::run(&mut command, &log, messages.section_limit())?;
        end.check(&format!("section {}", shard.name), &log)
    }

    /// The program connects for each case, and requests the reports at its end.
    fn run_server(
        &self,
        shard: &Shard,
        messages: Messages,
        program: &Path,
        out: &Path,
    ) -> Result<(), String> {
        let address = server::free_address()?;
        let url = url_of(address);
        let mut command = self.command_for("server", shard, messages, json!({ "url": url }), out)?;
        let mut suite =
            Server::start_on(&mut command, address, &out.join(format!("{}-suite.log", shard.name)))?;
        let log = out.join(format!("{}.log", shard.name));
        let end = process::run(Command::new(program).arg(url), &log, messages.section_limit())?;
        end.check(&format!("section {}", shard.name), &log)?;
        suite.ended().map_or(Ok(()), |how| Err(format!("section {}: the suite: {how}", shard.name)))
    }

    /// Returns the command with a specification file; `whom` is its entry for the other end.
    fn command_for(
        &self,
        role: &str,
        shard: &Shard,
        messages: Messages,
        whom: Value,
        out: &Path,
    ) -> Result<Command, String> {
        let mut spec = json!({
            "outdir": out.join(&shard.name),
            "options": {},
            "cases": shard.cases,
            "exclude-cases": [],
            "exclude-agent-cases": {},
        });
        if let (Value::Object(spec), Value::Object(whom)) = (&mut spec, whom) {
            spec.extend(whom);
        }
        let file = out.join(format!("{}.json", shard.name));
        fs::write(&file, spec.to_string()).map_err(|error| format!("{}: {error}", file.display()))?;
        let mut command = self.command();
        command.arg(role).arg(&file);
        if let Messages::Few(count) = messages {
            command.args(["--count", &count.to_string()]);
        }
        Ok(command)
    }
}

/// Name of the subject in the reports. Otherwise the suite's client would ask the server for it.
const AGENT: &str = "sinews";

fn url_of(address: SocketAddr) -> String {
    format!("ws://{address}")
}

/// The subject of the tests.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Subject<'a> {
    /// A server at this URL, with the suite as its client.
    Server(&'a str),
    /// A program that connects to the URL in its arguments, with the suite as the server.
    Client(&'a Path),
}

/// Messages in each case of sections 12 and 13.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Messages {
    Few(u32),
    /// The suite's own 1,000.
    All,
}

impl Messages {
    const fn section_limit(self) -> Duration {
        match self {
            Self::Few(_) => SECTION_LIMIT,
            Self::All => SECTION_LIMIT_FULL,
        }
    }
}

/// Cases that one process of the suite runs.
#[derive(Debug, PartialEq)]
pub(crate) struct Shard {
    pub(crate) name: String,
    cases: Vec<String>,
}

/// Splits the cases into one shard per section; sections 12 and 13 are long and are split by subsection. The
/// suite writes its report only at its end, so a crash or a timeout costs one shard instead of the whole run.
pub(crate) fn shards(cases: &[String]) -> Vec<Shard> {
    let mut shards = BTreeMap::<Vec<u32>, Vec<String>>::new();
    for case in cases {
        let parts = numbers(case);
        let depth = if parts.first().is_some_and(|section| *section >= 12) { 2 } else { 1 };
        shards.entry(parts[..depth.min(parts.len())].to_vec()).or_default().push(case.clone());
    }
    let name = |key: &[u32]| key.iter().map(u32::to_string).collect::<Vec<_>>().join(".");
    shards.into_iter().map(|(key, cases)| Shard { name: name(&key), cases }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compression_sections_are_split_by_subsection() {
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
