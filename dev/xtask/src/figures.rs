//! `cargo xtask figures`: measures the program at the present commit, and writes the figures into the documents. One run
//! makes all of them, so that they belong to one commit, one machine and one way to measure.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Instant;

use clap::Args;
use serde_json::Value;

use crate::Outcome;
use crate::compare::{self, Load, PLAIN_NAME, Program, Programs};
use crate::count::Count;
use crate::process;
use crate::server::{DIST_PROFILE, Server};

/// The page that is written as a whole.
const PAGE: &str = "docs/book/src/internals/figures.md";
/// The book's list of pages, and the entry of the page.
const SUMMARY: &str = "docs/book/src/SUMMARY.md";
const ENTRY: &str = "* [Figures](internals/figures.md)";
/// The README's table: the lines after this mark, until an empty one.
const MARK: &str = "<!-- cargo xtask figures -->";
/// Servers in the README's table, with their names there.
const README_ROWS: [(&str, &str); 6] = [
    ("sinews", "**sinews, io_uring**"),
    ("sinews-poll", "**sinews, epoll**"),
    ("fastwebsockets", "fastwebsockets"),
    ("tokio-websockets", "tokio-websockets"),
    ("tokio-tungstenite", "tokio-tungstenite"),
    ("axum", "axum"),
];
/// Loads in the README's table, with their names there.
const README_COLUMNS: [(Load, &str); 5] = [
    (Load::Echo, "64 × 64 B"),
    (Load::Pipelined, "64 × 64 B, 16 in flight"),
    (Load::Text, "500 × 1 KiB text"),
    (Load::Large, "32 × 16 KiB"),
    (Load::Huge, "4 × 1 MiB"),
];
/// Time after the handshakes until the memory of idle connections is read: unused buffers are returned after 2 to 4 s.
const IDLE_DURATION: &str = "8s";

#[derive(Args)]
pub(crate) struct Options {
    /// Try the command in a minute or two: few short rounds, written to `target/xtask/figures` and not into the documents
    #[arg(long)]
    quick: bool,
    /// Measure no servers on other libraries
    #[arg(long)]
    no_peers: bool,
}

/// How long and how often is measured.
struct Settings {
    rounds: u32,
    duration: &'static str,
    warm_up: &'static str,
    idle_connections: u32,
}

impl Options {
    const fn settings(&self) -> Settings {
        if self.quick {
            Settings { rounds: 3, duration: "100ms", warm_up: "50ms", idle_connections: 200 }
        } else {
            // Eight rounds, so that a difference can show, and short ones: the machine changes less within a comparison.
            Settings { rounds: 8, duration: "400ms", warm_up: "100ms", idle_connections: 10_000 }
        }
    }
}

/// The figures of one load: `sinews bench compare --json`.
struct Measured {
    load: Load,
    servers: Vec<Value>,
    /// The same servers at the load's fixed rate, if it has one: processor time says little without the latency that it
    /// costs.
    at_rate: Vec<Value>,
}

impl Measured {
    fn run(load: Load, compared: &compare::Options, programs: &Programs) -> Result<Self, String> {
        let servers = |options: &compare::Options| {
            let mut figures = compare::figures(load, options, programs)?;
            Ok::<_, String>(figures["servers"].as_array_mut().map(std::mem::take).unwrap_or_default())
        };
        let at_rate = load.rate().map(|rate| servers(&compared.at_rate(rate))).transpose()?;
        Ok(Self { load, servers: servers(compared)?, at_rate: at_rate.unwrap_or_default() })
    }

    /// The figures of a server at the fixed rate.
    fn at_rate(&self, server: &Value) -> Option<&Value> {
        self.at_rate.iter().find(|other| other["name"] == server["name"])
    }
}

pub(crate) fn run(options: &Options) -> Outcome {
    let started = Instant::now();
    let settings = options.settings();
    let origin = origin();
    println!("{}", origin.commit);
    let mut programs = Programs::new(DIST_PROFILE, 1, None);
    let own = [Program::Serve, Program::Hello, Program::Library, Program::Plain];
    programs.build(own.into_iter())?;
    let mut count = Count::default();
    if options.no_peers {
        println!("skipped: servers on other libraries: --no-peers");
        count = count + Count::SKIPPED;
    } else if let Err(why) = programs.build([Program::Peer].into_iter()) {
        println!("skipped: servers on other libraries: {why}");
        count = count + Count::SKIPPED;
    }
    let compared = compare::Options::for_figures(settings.rounds, settings.duration, settings.warm_up);
    let mut all = Vec::new();
    for load in &Load::PLAIN {
        match Measured::run(*load, &compared, &programs) {
            Ok(measured) => {
                println!("measured {} ({:.0} s)", compare::name(*load), started.elapsed().as_secs_f64());
                all.push(measured);
                count = count + Count::PASSED;
            }
            Err(why) => {
                println!("FAIL {why}");
                count = count + Count::FAILED;
            }
        }
    }
    let mut idle = Vec::new();
    for backend in ["uring", "poll"] {
        match idle_memory(backend, &settings, &programs.sinews()) {
            Ok(bytes) => {
                idle.push((backend, bytes));
                count = count + Count::PASSED;
            }
            Err(why) => {
                println!("skipped: memory of idle connections, {backend}: {why}");
                count = count + Count::SKIPPED;
            }
        }
    }
    let page = page(&origin, &settings, &all, &idle);
    let folder = if options.quick { process::target().join("xtask/figures") } else { process::root() };
    write(&folder.join(PAGE), &page)?;
    let summary = fs::read_to_string(process::root().join(SUMMARY)).unwrap_or_default();
    write(&folder.join(SUMMARY), &listed(&summary))?;
    if let Some(table) = readme_table(&all) {
        let readme = fs::read_to_string(process::root().join("README.md")).unwrap_or_default();
        let text = replaced(&readme, &table).ok_or_else(|| format!("README.md has no line with {MARK}"))?;
        write(&folder.join("README.md"), &text)?;
    } else {
        println!("skipped: the table of README.md: a server or a load of it was not measured");
        count = count + Count::SKIPPED;
    }
    Ok(count)
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    let fault = |error| format!("{}: {error}", path.display());
    path.parent().map_or(Ok(()), fs::create_dir_all).map_err(fault)?;
    fs::write(path, text).map_err(fault)?;
    println!("written: {}", path.display());
    Ok(())
}

/// What a reader must know to judge the figures, or to repeat them.
struct Origin {
    /// The commit, and whether its sources were changed.
    commit: String,
    machine: String,
    compiler: String,
    /// The day, in UTC.
    day: String,
    /// Runnable threads of the machine in the last minute, before the measurement.
    load: String,
}

fn origin() -> Origin {
    let git = |arguments: &[&str]| {
        process::output_of(Command::new("git").args(arguments).current_dir(process::root()))
            .map(|text| text.trim().to_owned())
    };
    let commit = describe(
        git(&["rev-parse", "--short", "HEAD"]).as_deref(),
        git(&["status", "--porcelain", "--untracked-files=no"]).as_deref(),
        git(&["rev-parse", "--is-shallow-repository"]).as_deref(),
    );
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_once(':'))
            .map(|(_, value)| value.trim().to_owned())
            .unwrap_or_default()
    };
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let machine = format!(
        "{processors} processors, {}; {} of memory; Linux {}",
        field(&read("/proc/cpuinfo"), "model name"),
        field(&read("/proc/meminfo"), "MemTotal"),
        read("/proc/sys/kernel/osrelease").trim()
    );
    let compiler = process::output_of(Command::new("rustc").arg("--version").current_dir(process::root()));
    let compiler = compiler.unwrap_or_default();
    // Without the compiler's commit, which is none of this repository.
    let version = compiler.split(" (").next().unwrap_or_default();
    Origin {
        commit,
        machine,
        compiler: version.trim().to_owned(),
        day: process::output_of(Command::new("date").args(["-u", "+%F"]))
            .unwrap_or_default()
            .trim()
            .to_owned(),
        load: read("/proc/loadavg").split(' ').next().unwrap_or_default().to_owned(),
    }
}

/// The commit in words, from the answers of git, which are missing without a history.
fn describe(commit: Option<&str>, changes: Option<&str>, is_shallow: Option<&str>) -> String {
    let Some(commit) = commit else { return "commit unknown: there is no git history".to_owned() };
    let mut text = format!("commit `{commit}`");
    if changes.is_none_or(|changes| !changes.is_empty()) {
        text += ", with changes that are not committed";
    }
    if is_shallow == Some("true") {
        text += ", in a checkout without older history";
    }
    text
}

/// Bytes of the server's memory per idle connection.
fn idle_memory(backend: &str, settings: &Settings, sinews: &Path) -> Result<u64, String> {
    let log = process::target().join(format!("xtask/figures-idle-{backend}.log"));
    let options = ["--threads", "1", "--deflate", "off", "--log", "error", "--backend", backend];
    let server = Server::start(sinews, &options, &log)?;
    let mut bench = Command::new(sinews);
    bench.args(["bench", &format!("{}/echo", server.url()), "--mode", "idle", "--json"]);
    bench.args(["--connections", &settings.idle_connections.to_string()]);
    bench.args(["--duration", IDLE_DURATION, "--pid", &server.pid().to_string()]);
    let text = process::output_of(&mut bench).ok_or("sinews bench failed")?;
    let result: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let bytes = result["server"]["memory_per_connection_bytes"].as_f64();
    bytes.map(|bytes| bytes as u64).ok_or_else(|| "the system reports no memory".to_owned())
}

/// The generated page.
fn page(origin: &Origin, settings: &Settings, all: &[Measured], idle: &[(&str, u64)]) -> String {
    let Settings { rounds, duration, warm_up, idle_connections } = settings;
    let Origin { commit, machine, compiler, day, load } = origin;
    let mut text = format!(
        "# Figures\n\n\
         `cargo xtask figures` measures these figures and writes this page. All of them come from one run at one commit; edits are\n\
         overwritten. [Performance](performance.md) explains the method and has more loads.\n\n\
         | | |\n|---|---|\n\
         | sources | {commit} |\n\
         | machine | {machine} |\n\
         | compiler | {compiler}, profile `{DIST_PROFILE}` |\n\
         | measured | {day}, load average before: {load} |\n\
         | rounds | {rounds} for each server, {duration} each after {warm_up} of warm-up, in an order that changes |\n\
         | processors | the server on 0, with one thread; the load on 1 |\n\n\
         Figures are medians of the rounds. *CPU* is the processor time of the server for each message, request or delivery.\n\
         Ratios are taken within rounds; a ratio is bold if its 99 % confidence interval does not contain 1. A column with a\n\
         rate is of an open loop (`--rate`) below saturation, in the same run.\n"
    );
    for measured in all {
        let Measured { load, servers, .. } = measured;
        let first = servers.first().and_then(|first| first["name"].as_str()).unwrap_or_default();
        let (rate_heads, rate_line) = load.rate().map_or_else(Default::default, |rate| {
            (format!(" p50 at {rate}/s | p99 at {rate}/s | CPU at {rate}/s |"), "---|---|---|")
        });
        text += &format!(
            "\n## {}\n\n`sinews bench compare --rounds {rounds} --duration {duration} --warm-up {warm_up} --server-core 0 \
             --load-core 1 {}`\n\n| server | thousand/s | p50, µs | p99, µs | CPU, µs | CPU ÷ {first} |{rate_heads}\n\
             |---|---|---|---|---|---|{rate_line}\n",
            compare::name(*load),
            load.options().join(" ")
        );
        text.extend(servers.iter().map(|server| {
            let at_rate = load.rate().map(|_| rate_cells(measured.at_rate(server)));
            row(server, &at_rate.unwrap_or_default())
        }));
    }
    if !idle.is_empty() {
        text += &format!(
            "\n## Idle connections\n\n`sinews bench URL --mode idle --connections {idle_connections} --duration {IDLE_DURATION} \
             --pid PID`\n\n| backend | bytes of the server's memory per connection |\n|---|---|\n"
        );
        text.extend(idle.iter().map(|(backend, bytes)| format!("| {backend} | {bytes} |\n")));
    }
    text
}

/// The row of a server, with these further cells.
fn row(server: &Value, more: &str) -> String {
    let median = |name: &str, unit: f64, digits: usize| median(Some(server), name, unit, digits);
    let cpu = &server["server_s_CPU"];
    let ratio = cpu["ratio"].as_f64().map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2}"));
    let ratio = if cpu["differs"] == true { format!("**{ratio}**") } else { ratio };
    format!(
        "| {} | {} | {} | {} | {} | {ratio} |{more}\n",
        server["name"].as_str().unwrap_or_default(),
        median("rate", 1e3, 1),
        median("median_latency", 1e3, 0),
        median("p99_latency", 1e3, 0),
        median("server_s_CPU", 1.0, 2),
    )
}

/// The cells of a server at the fixed rate.
fn rate_cells(server: Option<&Value>) -> String {
    let cells = [("median_latency", 1e3, 0), ("p99_latency", 1e3, 0), ("server_s_CPU", 1.0, 2)];
    cells.map(|(name, unit, digits)| format!(" {} |", median(server, name, unit, digits))).concat()
}

fn median(server: Option<&Value>, name: &str, unit: f64, digits: usize) -> String {
    let value = server.and_then(|server| server[name]["median"].as_f64());
    value.map_or_else(|| "–".to_owned(), |value| format!("{:.digits$}", value / unit))
}

/// The README's table; `None` if a figure of it is missing.
fn readme_table(all: &[Measured]) -> Option<String> {
    let columns: Vec<_> = README_COLUMNS.iter().map(|(load, _)| column(all, *load)).collect::<Option<_>>()?;
    let lowest = columns.iter().map(|column| column.ratios.iter().copied().fold(f64::INFINITY, f64::min));
    let lowest: Vec<String> = lowest.map(|ratio| format!("{ratio:.2}")).collect();
    let heads = README_COLUMNS.map(|(load, name)| {
        let rate = load.rate().map(|rate| format!(" (at {rate}/s)")).unwrap_or_default();
        format!(" {name}{rate} |")
    });
    let heads = heads.concat();
    let mut text = format!("| |{heads}\n|---|{}\n", "---|".repeat(columns.len()));
    for (place, (_, name)) in README_ROWS.iter().enumerate() {
        text += &format!("| {name} |");
        for (column, lowest) in columns.iter().zip(&lowest) {
            let Column { ratios, latencies } = column;
            let ratio = format!("{:.2}", ratios[place]);
            let ratio = if ratio == *lowest { format!("**{ratio}**") } else { ratio };
            text += &format!(" {ratio} ({}) |", latencies[place]);
        }
        text.push('\n');
    }
    Some(text)
}

/// A column of the README's table, by the README's servers.
struct Column {
    /// Processor time over that of the plain echo.
    ratios: Vec<f64>,
    /// Median and 99th percentile at the load's fixed rate, in microseconds.
    latencies: Vec<String>,
}

fn column(all: &[Measured], load: Load) -> Option<Column> {
    let measured = all.iter().find(|measured| measured.load == load)?;
    if measured.servers.first()?["name"] != PLAIN_NAME {
        return None;
    }
    let find = |name: &str| measured.servers.iter().find(|server| server["name"] == name);
    let ratio = |name: &str| find(name)?["server_s_CPU"]["ratio"].as_f64();
    let latency = |name: &str| {
        let server = measured.at_rate(find(name)?);
        let [median, p99] = ["median_latency", "p99_latency"].map(|name| median(server, name, 1e3, 0));
        Some(format!("{median}, {p99} µs"))
    };
    Some(Column {
        ratios: README_ROWS.iter().map(|(name, _)| ratio(name)).collect::<Option<_>>()?,
        latencies: README_ROWS.iter().map(|(name, _)| latency(name)).collect::<Option<_>>()?,
    })
}

/// The list of pages with the entry of the page, at the end of its last part if it is new.
fn listed(summary: &str) -> String {
    let summary = summary.trim_end();
    if summary.lines().any(|line| line == ENTRY) {
        format!("{summary}\n")
    } else {
        format!("{summary}\n{ENTRY}\n")
    }
}

/// The text with another table behind the mark.
fn replaced(text: &str, table: &str) -> Option<String> {
    let start = text.find(MARK)? + MARK.len();
    let start = start + text[start..].find("\n\n")? + 2;
    let end = start + text[start..].find("\n\n")? + 1;
    Some(format!("{}{table}{}", &text[..start], &text[end..]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn measured(load: Load) -> Measured {
        let figure = |ratio: f64| json!({ "median": 2.0, "ratio": ratio, "differs": ratio > 1.5 });
        let server =
            |name: &str, ratio| json!({ "name": name, "rate": figure(1.0), "server_s_CPU": figure(ratio) });
        let own =
            README_ROWS.iter().zip(1..).map(|((name, _), place)| server(name, 1.0 + f64::from(place) / 4.0));
        let servers: Vec<Value> = std::iter::once(server(PLAIN_NAME, 1.0)).chain(own).collect();
        let at_rate = servers.iter().map(|server| {
            json!({ "name": server["name"], "median_latency": { "median": 15e3 }, "p99_latency": { "median": 29e3 } })
        });
        let at_rate = if load.rate().is_some() { at_rate.collect() } else { Vec::new() };
        Measured { load, servers, at_rate }
    }

    #[test]
    fn page_names_commit_machine_commands_and_figures() {
        let origin = Origin {
            commit: describe(Some("1234abc"), Some(""), Some("false")),
            machine: "2 processors".to_owned(),
            compiler: "rustc 1.0".to_owned(),
            day: "2000-02-29".to_owned(),
            load: "0.1".to_owned(),
        };
        let settings = Options { quick: true, no_peers: true }.settings();
        let page = page(&origin, &settings, &[measured(Load::Echo)], &[("poll", 450)]);
        for part in [
            "| sources | commit `1234abc` |",
            "| machine | 2 processors |",
            "| compiler | rustc 1.0, profile `dist` |",
            "2000-02-29",
            "--load-core 1 -c 64 -s 64 --binary`",
            "| CPU ÷ plain-echo | p50 at 20000/s | p99 at 20000/s | CPU at 20000/s |\n|---|---|---|---|---|---|---|---|---|",
            "| sinews | 0.0 | – | – | 2.00 | 1.25 | 15 | 29 | – |",
            "| sinews-poll | 0.0 | – | – | 2.00 | 1.50 | 15 | 29 | – |",
            "| fastwebsockets | 0.0 | – | – | 2.00 | **1.75** | 15 | 29 | – |",
            "| poll | 450 |",
        ] {
            assert!(page.contains(part), "{part} in {page}");
        }
    }

    #[test]
    fn changed_and_shallow_sources_are_named() {
        assert_eq!(
            describe(Some("a"), Some(" M x"), Some("false")),
            "commit `a`, with changes that are not committed"
        );
        assert_eq!(
            describe(Some("a"), Some(""), Some("true")),
            "commit `a`, in a checkout without older history"
        );
        assert_eq!(describe(None, None, None), "commit unknown: there is no git history");
    }

    #[test]
    fn table_of_the_readme_is_replaced_whole_or_not_at_all() {
        let all = README_COLUMNS.map(|(load, _)| measured(load));
        let table = readme_table(&all).expect("all figures are there");
        assert!(table.contains("| **sinews, io_uring** | **1.25** (15, 29 µs) |"), "{table}");
        assert!(
            table.contains("| axum | 2.50 (15, 29 µs) |") && table.contains("64 × 64 B (at 20000/s)"),
            "{table}"
        );
        assert_eq!(readme_table(&all[1..]), None);
        let text = format!("a {MARK}\n\n| old |\n| 1 |\n\nb\n");
        assert_eq!(replaced(&text, "| new |\n"), Some(format!("a {MARK}\n\n| new |\n\nb\n")));
        assert_eq!(replaced("a\n\n| old |\n\nb\n", "| new |\n"), None);
    }

    #[test]
    fn page_is_listed_once() {
        let once = listed("# Summary\n\n* [A](a.md)\n");
        assert_eq!(once, format!("# Summary\n\n* [A](a.md)\n{ENTRY}\n"));
        assert_eq!(listed(&once), once);
    }

    #[test]
    fn readme_has_the_mark() {
        let readme = fs::read_to_string(process::root().join("README.md")).expect("there is a README");
        assert!(replaced(&readme, "").is_some());
    }
}
