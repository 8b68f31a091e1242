//! The container image: built from the Dockerfile, started, and asked whether it is alive. Skipped without a daemon.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::count::Count;
use crate::dist::get;
use crate::process::{self, output_of};

/// Programs that build and run images, by the commands of Docker.
const ENGINES: [&str; 2] = ["docker", "podman"];

const IMAGE: &str = "sinews-check";

/// Time of a build: an optimized program, on two cores.
const BUILD_LIMIT: Duration = Duration::from_secs(60 * 60);

/// Time from the start of a container to its first answer.
const START_LIMIT: Duration = Duration::from_secs(30);

const INTERVAL: Duration = Duration::from_millis(100);

/// Builds the image and runs it.
pub(crate) fn check_image(logs: &Path) -> Count {
    // A list of images needs the daemon.
    let answers = |engine: &&str| output_of(Command::new(engine).args(["images", "--quiet"])).is_some();
    let Some(engine) = ENGINES.into_iter().find(answers) else {
        println!("skipped: the container image: no daemon of docker or podman answers");
        return Count::SKIPPED;
    };
    let log = logs.join("image.log");
    let mut build = Command::new(engine);
    build.args(["build", "--tag", IMAGE, "."]).current_dir(process::root());
    let built = process::run(&mut build, &log, BUILD_LIMIT).and_then(|end| end.check("docker build", &log));
    match built.and_then(|()| run(engine)) {
        Ok(()) => {
            println!("ok the container image serves, and stops at SIGTERM");
            Count::PASSED
        }
        Err(why) => {
            println!("FAIL the container image: {why}");
            Count::FAILED
        }
    }
}

/// Starts a container, requests `/healthz`, and stops the container.
fn run(engine: &str) -> Result<(), String> {
    let output = |arguments: &[&str]| {
        output_of(Command::new(engine).args(arguments))
            .map(|text| text.trim().to_owned())
            .ok_or_else(|| format!("{engine} {} has failed", arguments.join(" ")))
    };
    let id = output(&["run", "--detach", "--publish", "127.0.0.1::8080", IMAGE])?;
    let checked = output(&["port", &id, "8080"]).and_then(|address| serves(&address));
    // SIGTERM, as the image names it.
    let stopped = output(&["stop", "--time", "20", &id]);
    let code = output(&["inspect", "--format", "{{.State.ExitCode}}", &id]);
    let removed = output(&["rm", "--force", &id]);
    checked?;
    stopped.and(removed)?;
    match code?.as_str() {
        "0" => Ok(()),
        code => Err(format!("the container ended with {code} at SIGTERM")),
    }
}

/// Waits for an answer of `/healthz`.
fn serves(address: &str) -> Result<(), String> {
    let first = address.lines().next().unwrap_or_default();
    let address: SocketAddr = first.parse().map_err(|error| format!("{first}: {error}"))?;
    let begin = Instant::now();
    loop {
        match get(address, "/healthz") {
            Ok(answer) if answer.starts_with("HTTP/1.1 200 ") => return Ok(()),
            Ok(answer) if !answer.is_empty() => return Err(format!("GET /healthz: {answer}")),
            // The proxy of the engine accepts connections before the server does.
            _ if begin.elapsed() < START_LIMIT => thread::sleep(INTERVAL),
            _ => return Err(format!("GET /healthz: no answer within {} s", START_LIMIT.as_secs())),
        }
    }
}
