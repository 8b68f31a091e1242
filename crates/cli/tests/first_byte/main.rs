//! How long an idle server takes for the first byte of each operation. A test program of its own, with one test, so that
//! nothing else of the tests runs beside it.

use std::process::Command;

use serde_json::Value;

/// No operation may take longer on a server that has nothing else to do. Sleeping until the next event takes a second.
const BOUND_US: f64 = 50_000.0;

/// Of each operation.
const ROUNDS: usize = 5;

/// What was measured of each operation with this in its name, in order of size.
fn measure(only: &str) -> Vec<(String, Vec<f64>)> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sinews"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("SINEWS_")) {
        command.env_remove(name);
    }
    // What a disk takes to sync is not what this is about.
    command.args(["bench", "first-byte", "--json", "--quiet", "--serve=--streams-fsync=never"]);
    command.args(["--rounds", &ROUNDS.to_string(), "--only", only]);
    if let Ok(backend) = std::env::var("SINEWS_TEST_BACKEND") {
        command.args(["--backend", &backend]);
    }
    let output = command.output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let times =
        |one: &Value| one["each_us"].as_array().unwrap().iter().map(|time| time.as_f64().unwrap()).collect();
    let operations = report["operations"].as_array().unwrap();
    operations.iter().map(|one| (one["name"].as_str().unwrap().to_owned(), times(one))).collect()
}

/// The machine may look away once.
fn is_late(times: &[f64]) -> bool {
    assert_eq!(times.len(), ROUNDS);
    times[ROUNDS - 2] > BOUND_US
}

#[test]
fn the_first_byte_of_each_operation_comes_within_50_ms_on_an_idle_server() {
    let all = measure("");
    for part in ["/ws consume, first records", "/ws subscribe kept last", "binary tcp fetch", "POST /streams"]
    {
        assert!(all.iter().any(|(name, _)| name.contains(part)), "{part} is measured: {all:?}");
    }
    let late: Vec<_> = all.into_iter().filter(|(_, times)| is_late(times)).collect();
    // A machine that is busy with something else is late here and there; a server that sleeps is late again.
    let again = late.iter().flat_map(|(name, _)| measure(name)).filter(|(_, times)| is_late(times));
    let stalls: Vec<_> = again.collect();
    assert!(stalls.is_empty(), "microseconds to the first byte: {stalls:?}");
}
