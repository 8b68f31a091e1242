//! Posts bodies with wrk, and parses its output.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::Error;

/// Result of one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Posted {
    /// Requests answered with 2xx.
    pub(crate) answered: u64,
    pub(crate) elapsed: Duration,
    /// Median latency of an answer, in milliseconds.
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
}

/// Posts bodies of `bytes` bytes for a time in whole seconds.
pub(crate) fn post(
    address: SocketAddr,
    connections: usize,
    window: Duration,
    script: &Path,
    bytes: usize,
) -> Result<Posted, Error> {
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", "1", "wrk", "-t1", "--timeout", "30s"]);
    command.arg(format!("-c{connections}")).arg(format!("-d{}", window.as_secs_f64().ceil().max(1.)));
    command.arg("-s").arg(script).arg(format!("http://{address}/events"));
    let output = command.args(["--", &bytes.to_string()]).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    posted(&text).ok_or_else(|| {
        format!("wrk: {}{text}{}", output.status, String::from_utf8_lossy(&output.stderr)).into()
    })
}

/// Parses the output of the script, if wrk reports no errors.
fn posted(text: &str) -> Option<Posted> {
    let line = text.lines().find_map(|line| line.strip_prefix("posted "))?;
    let mut numbers = line.split_whitespace().map(str::parse::<u64>);
    let mut next = || numbers.next()?.ok();
    let (answered, micros, failed, p50, p99) = (next()?, next()?, next()?, next()?, next()?);
    (failed == 0 && answered > 0).then(|| Posted {
        answered,
        elapsed: Duration::from_micros(micros),
        p50_ms: p50 as f64 / 1e3,
        p99_ms: p99 as f64 / 1e3,
    })
}

/// Repeats the same request.
pub(crate) const SCRIPT: &str = "\
function init(args)
  wrk.method = \"POST\"
  wrk.headers[\"Content-Type\"] = \"application/octet-stream\"
  wrk.body = string.rep(\"x\", tonumber(args[1]))
end

function done(summary, latency, requests)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  print(string.format(\"posted %d %d %d %d %d\", summary.requests, summary.duration, failed,
    latency:percentile(50), latency:percentile(99)))
end
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_the_script_is_parsed_without_errors_only() {
        let text = "Running 2s test\nRequests/sec: 1.0\nposted 30000 2001000 0 4100 9800\n";
        let expected =
            Posted { answered: 30_000, elapsed: Duration::from_micros(2_001_000), p50_ms: 4.1, p99_ms: 9.8 };
        assert_eq!(posted(text), Some(expected));
        assert_eq!(posted("posted 30000 2001000 1 4100 9800\n"), None);
        assert_eq!(posted("posted 0 2001000 0 0 0\n"), None);
        assert_eq!(posted("unable to connect"), None);
    }
}
