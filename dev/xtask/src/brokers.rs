//! Tests the bridges to Kafka, Redis and NATS against real brokers. `dev/brokers` starts the brokers. The
//! ignored tests of `sinews-brokers` and of the server use, kill and freeze them; then they are stopped.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;

use crate::Outcome;
use crate::count::Count;
use crate::process::{self, End};
use crate::server;
use crate::tools::Missing;

/// Time limit for a broker's first download and its start.
const START_LIMIT: Duration = Duration::from_secs(6 * 60);
/// Time limit for the tests of one broker, in parallel with the tests of other brokers: they take two to five minutes beside
/// other steps.
const TESTS_LIMIT: Duration = Duration::from_secs(20 * 60);
/// A broker exits by itself after this time, in seconds: that of a build, and of its tests.
const BROKER_SECONDS: &str = "3600";
/// Exit status of the scripts when a broker is unavailable.
const SKIPPED: i32 = 77;

const BROKERS: [&str; 3] = ["kafka", "redis", "nats"];

/// Brokers of a cluster.
const CLUSTER_BROKERS: [&str; 2] = ["redis", "nats"];

/// Begin of figures in a line of the output of a test.
const FIGURE: &str = "measured: ";

#[derive(Args)]
pub(crate) struct Options {
    /// Brokers to test: kafka, redis, nats [default: all]
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Measures 10,000 members over three nodes of a cluster, of which one is killed, with an optimized build. No other test
    /// runs
    #[arg(long)]
    measure: bool,
}

/// A running broker, stopped on drop.
struct Broker {
    name: &'static str,
    port: u16,
    controller_port: u16,
    logs: PathBuf,
}

/// Starts each available broker, and runs its tests. An unavailable broker is skipped; in CI, where all
/// brokers should be available, that is a failure. The tests mostly wait, so the tests of all brokers run
/// side by side, from one build.
pub(crate) fn run(options: &Options) -> Outcome {
    if let Some(unknown) = options.only.iter().find(|only| !BROKERS.contains(&&***only)) {
        return Err(format!("no such broker: {unknown}"));
    }
    let is_wanted = |name: &&&str| options.only.is_empty() || options.only.iter().any(|only| only == **name);
    let wanted: Vec<&'static str> = BROKERS.iter().filter(is_wanted).copied().collect();
    let logs = process::target().join("xtask/brokers");
    if options.measure {
        return measure(&wanted, &logs);
    }
    let started = Instant::now();
    let (brokers, built) = thread::scope(|scope| {
        // The brokers are downloaded and started while the tests are built.
        let starting: Vec<_> =
            wanted.iter().map(|name| scope.spawn(|| (*name, Broker::start(name, logs.clone())))).collect();
        let log = logs.join("build.log");
        let built = process::run(tests(&wanted, &[]).arg("--no-run"), &log, process::COMMAND_LIMIT)
            .and_then(|end| end.check("building the tests", &log));
        let brokers: Vec<_> = starting.into_iter().filter_map(|starting| starting.join().ok()).collect();
        (brokers, built)
    });
    built?;
    println!("built and started in {:.1} s", started.elapsed().as_secs_f64());
    thread::scope(|scope| {
        let mut running = Vec::new();
        running.push(scope.spawn(|| {
            // With librdkafka's mock cluster, whose errors are on demand.
            let mut command = tests(&wanted, &["lib", "bridges"]);
            run_tests("the library and scripted peers", &mut command, &logs.join("library.log"))
        }));
        if wanted.contains(&BROKERS[0]) {
            running.push(scope.spawn(|| {
                let mut command = tests(&wanted, &["program"]);
                command.args(["--", "store::kafka::"]);
                run_tests("the server with it", &mut command, &logs.join("server-mock.log"))
            }));
        }
        for (name, broker) in brokers {
            let wanted = &wanted;
            running.push(scope.spawn(move || run_broker(name, broker, wanted)));
        }
        running.into_iter().try_fold(Count::default(), |count, running| {
            let outcome = running.join().unwrap_or_else(|_| Err("a thread has panicked".to_owned()));
            Ok(count + outcome?)
        })
    })
}

/// Runs the tests that measure, one broker after the other, and prints their figures.
fn measure(wanted: &[&'static str], logs: &Path) -> Outcome {
    let mut count = Count::default();
    for name in CLUSTER_BROKERS.iter().filter(|name| wanted.contains(name)) {
        let broker = match Broker::start(name, logs.to_path_buf()) {
            Ok(broker) => broker,
            Err(missing) => return Ok(missing.report(name)),
        };
        let mut command = process::cargo();
        command.args(["test", "--profile", server::DIST_PROFILE, "--package", "sinews-cli", "--features"]);
        // Those of both brokers, for one build.
        command.args(["sinews-cli/redis,sinews-cli/nats", "--test", "program", "--"]);
        command.args(["--ignored", "--nocapture", "--test-threads", "1"]);
        command.args([format!("{name}::members_of_a_killed_node"), format!("{name}::users_are_added")]);
        broker.configure(&mut command);
        let log = logs.join(format!("{name}-measured.log"));
        process::run(&mut command, &log, process::COMMAND_LIMIT)?.check(name, &log)?;
        let text = std::fs::read_to_string(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        let figures = text.lines().filter_map(|line| Some(line.split_once(FIGURE)?.1));
        figures.for_each(|figure| println!("{name}: {figure}"));
        count = count + Count::parse_cargo_test(&text);
    }
    Ok(count)
}

fn run_broker(name: &'static str, broker: Result<Broker, Missing>, features: &[&str]) -> Outcome {
    let broker = match broker {
        Ok(broker) => broker,
        Err(Missing::Tool(why)) if env::var_os("CI").is_some_and(|ci| ci == "true") => {
            println!("FAIL {why}, and this is CI, which should have it");
            return Ok(Count::FAILED);
        }
        Err(missing) => return Ok(missing.report(name)),
    };
    // Run one after the other: each test kills a broker that other tests need.
    let mut command = tests(features, &["bridges", "program"]);
    command.args(["--", "--ignored", "--test-threads", "1", &format!("{name}::")]);
    broker.configure(&mut command);
    run_tests(name, &mut command, &broker.logs.join(format!("{name}-tests.log")))
}

/// The tests of the bridges, in the library and in the server, with all features at once: each set of
/// features would be a separate build.
fn tests(features: &[&str], targets: &[&str]) -> Command {
    // The packages below the server are those of the other tests.
    let mut command = process::linting_cargo().unwrap_or_else(|_missing| process::cargo());
    command.args([
        "test",
        "--no-fail-fast",
        "--package",
        "sinews-brokers",
        "--package",
        "sinews-cli",
        "--features",
    ]);
    command.arg(features.iter().map(|name| format!("sinews-cli/{name}")).collect::<Vec<_>>().join(","));
    let all = ["lib", "bridges", "program"];
    for target in if targets.is_empty() { &all[..] } else { targets } {
        match *target {
            "lib" => command.arg("--lib"),
            test => command.args(["--test", test]),
        };
    }
    command
}

/// The places and words of the panics in the output of tests, on one line: a report has the lines that begin with `FAIL`.
fn panics(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let panics = lines.iter().enumerate().filter(|(_, line)| line.contains("panicked at "));
    let words = panics.map(|(index, _)| lines[index..].iter().take(4).copied().collect::<Vec<_>>().join(" "));
    match words.take(5).collect::<Vec<_>>().join("; ") {
        none if none.is_empty() => lines.last().copied().unwrap_or_default().to_owned(),
        words => words,
    }
}

fn run_tests(name: &str, command: &mut Command, log: &Path) -> Outcome {
    let started = Instant::now();
    let end = process::run(command, log, TESTS_LIMIT)?.check(name, log);
    let text = std::fs::read_to_string(log).map_err(|error| format!("{}: {error}", log.display()))?;
    let mut count = Count::parse_cargo_test(&text);
    if count == Count::default() || count.failed == 0 && end.is_err() {
        count = count + Count::FAILED;
    }
    if count.failed > 0 {
        println!("FAIL {name}: {}", panics(&text));
    }
    println!("{name}: {count} in {:.1} s", started.elapsed().as_secs_f64());
    Ok(count)
}

impl Broker {
    fn start(name: &'static str, logs: PathBuf) -> Result<Self, Missing> {
        let broken = |why: String| Missing::Broken(format!("{name}: {why}"));
        let ports = free_ports().map_err(broken)?;
        let broker = Self { name, port: ports[0], controller_port: ports[1], logs };
        let log = broker.logs.join(format!("{name}-start.log"));
        let end = process::run(&mut broker.script("up"), &log, START_LIMIT).map_err(broken)?;
        match end {
            End::Exit(status) if status.code() == Some(SKIPPED) => {
                let why = process::tail(&log, 1);
                Err(Missing::Tool(why.strip_prefix(&format!("{name}: ")).unwrap_or(&why).to_owned()))
            }
            end => end.check(name, &log).map(|()| broker).map_err(Missing::Broken),
        }
    }

    fn script(&self, verb: &str) -> Command {
        let mut command = Command::new(script(self.name));
        command.arg(verb);
        self.configure(&mut command);
        command
    }

    /// The tests run the same script to stop the broker and to start it again.
    fn configure(&self, command: &mut Command) {
        command.env("BROKER_PORT", self.port.to_string());
        command.env("BROKER_RUN", self.logs.join(format!("{}-run", self.name)));
        command.env("BROKER_SECONDS", BROKER_SECONDS);
        command.env("KAFKA_CONTROLLER_PORT", self.controller_port.to_string());
        command.env("SINEWS_TEST_BROKER", format!("{}://127.0.0.1:{}", self.name, self.port));
        command.env("SINEWS_TEST_BROKER_SCRIPT", script(self.name));
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let log = self.logs.join(format!("{}-stop.log", self.name));
        if let Err(why) = process::run(&mut self.script("down"), &log, START_LIMIT) {
            println!("{}: {why}", self.name);
        }
    }
}

fn script(name: &str) -> PathBuf {
    process::root().join(Path::new("dev/brokers")).join(format!("{name}.sh"))
}

/// Returns two ports that are free at the moment.
fn free_ports() -> Result<[u16; 2], String> {
    Ok([server::free_address()?.port(), server::free_address()?.port()])
}
