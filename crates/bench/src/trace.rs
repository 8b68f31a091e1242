//! The server's system calls per message, counted by strace in a separate run: tracing costs time.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::interrupt::Interrupt;
use super::load::{self, WatchedProcesses};
use super::plan::LoadPlan;
use super::result::SystemCalls;

/// # Errors
///
/// Returns an error if strace is missing or lacks permission, with strace's own message.
pub(crate) fn calls_per_message(
    plan: &Arc<LoadPlan>,
    pids: &[u32],
    interrupt: &Interrupt,
) -> Result<SystemCalls, String> {
    let log = std::env::temp_dir().join(format!("sinews-bench-{}.calls", std::process::id()));
    let mut strace = Command::new("strace");
    strace.args(["-f", "-c", "-U", "calls,name", "-o"]).arg(&log);
    for pid in pids {
        strace.args(["-p", &pid.to_string()]);
    }
    let child = strace.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut child = child.map_err(|error| format!("strace: {error}"))?;
    // strace attaches to the processes and exits on failure.
    thread::sleep(ATTACHING);
    if child.try_wait().map_err(|error| error.to_string())?.is_some() {
        let message = child.wait_with_output().map_err(|error| error.to_string())?;
        return Err(String::from_utf8_lossy(&message.stderr).trim().to_owned());
    }
    let mut short = LoadPlan::clone(plan);
    (short.duration, short.warm_up, short.count) = (MEASURED, Duration::ZERO, None);
    let outcome = load::run(Arc::new(short), WatchedProcesses::default(), interrupt, |_| ());
    end(&mut child)?;
    let summary = fs::read_to_string(&log).map_err(|error| error.to_string());
    let _ = fs::remove_file(&log);
    let messages = outcome?.tally.messages;
    let calls = SystemCalls::parse(&summary?, messages);
    if messages == 0 || calls.per_message.is_empty() {
        return Err("strace counted no system calls".to_owned());
    }
    Ok(calls)
}

/// Stops strace, so that it prints its summary.
fn end(child: &mut Child) -> Result<(), String> {
    let interrupted = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    interrupted.map_err(|error| format!("kill: {error}"))?;
    let deadline = Instant::now() + ENDING;
    while child.try_wait().map_err(|error| error.to_string())?.is_none() {
        if Instant::now() >= deadline {
            let _ = child.kill();
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

const ATTACHING: Duration = Duration::from_millis(500);
const MEASURED: Duration = Duration::from_secs(1);
const ENDING: Duration = Duration::from_secs(5);
