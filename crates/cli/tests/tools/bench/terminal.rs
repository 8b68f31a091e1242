//! Terminal output, and the handling of Ctrl-C.

use std::collections::BTreeSet;
use std::process::Command;

use rexpect::session::{PtySession, spawn_command};

use super::support::{Answer, Served, websocket};

/// Starts the program in a terminal of the given width; afterwards the shell prints the exit code.
fn start(columns: u16, arguments: &[&str]) -> PtySession {
    // The shell receives Ctrl-C too, and must still print the exit code.
    let script = format!("stty rows {ROWS} cols {columns}; trap : INT; \"$@\"; echo \"code $?\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_sinews"), "bench"]).args(arguments);
    command.env("TERM", "xterm").env("LC_ALL", "C.UTF-8").env_remove("NO_COLOR");
    spawn_command(command, Some(PATIENCE_MS)).unwrap()
}

/// Returns each state of the progress line while these bytes arrive, and the final screen.
fn watch(columns: u16, bytes: &str) -> (BTreeSet<String>, String) {
    let mut terminal = vt100::Parser::new(ROWS, columns, 0);
    let mut lines = BTreeSet::new();
    // Each line is drawn completely before the cursor returns.
    for piece in bytes.split_inclusive('\r') {
        // Terminal input is decoded as one character per byte.
        let piece: Vec<u8> = piece.chars().filter_map(|byte| u8::try_from(byte).ok()).collect();
        terminal.process(&piece);
        let told: Vec<String> = terminal.screen().rows(0, columns).filter(|row| is_progress(row)).collect();
        assert!(told.len() <= 1, "the progress is a single line: {told:#?}");
        lines.extend(told);
    }
    (lines, terminal.screen().contents())
}

fn is_progress(row: &str) -> bool {
    ["connecting: ", "warming up: ", "measuring: ", "last answers: "].iter().any(|phase| row.contains(phase))
}

#[test]
fn progress_line_is_redrawn_and_replaced_by_the_summary() {
    let (_own, url) = Served::with_url(&[], "ws", "/echo");
    for columns in [100, 60, 30] {
        let mut terminal = start(columns, &[&url, "-c", "2", "-d", "1s", "--warm-up", "400ms"]);
        let all = terminal.exp_eof().unwrap();
        let (lines, end) = watch(columns, &all);
        assert!(lines.len() >= 2, "{lines:#?} in {all:?}");
        assert!(lines.iter().any(|line| line.contains("measuring: 2 open")), "{columns}: {lines:#?}");
        assert!(!end.lines().any(is_progress), "{end}");
        // Earlier output may have scrolled off a narrow screen.
        assert!(end.contains("load's processor") && end.contains("code 0"), "{end}");
        assert!(!end.contains(['\u{fffd}', '\u{1b}']) && !end.contains("[2K"), "{end}");
    }
}

#[test]
fn ctrl_c_ends_the_measurement_and_prints_its_figures() {
    let (_own, url) = Served::with_url(&[], "ws", "/echo");
    for load in [&["-d", "1h"][..], &["-n", "1000000000"], &["--rate", "100", "-d", "1h"]] {
        let mut terminal = start(100, &[&[&url, "-c", "2", "--warm-up", "0s"][..], load].concat());
        terminal.exp_string("measuring: 2 open, ").unwrap();
        terminal.exp_string("measuring: 2 open, ").unwrap();
        terminal.send_control('c').unwrap();
        let rest = terminal.exp_eof().unwrap();
        let (_, end) = watch(100, &rest);
        for part in [
            "interrupted: figures cover the time until the interrupt",
            "echoes, verified",
            "p99.99",
            "code 130",
        ] {
            assert!(end.contains(part), "{load:?}: {part} in {end}");
        }
        // Messages in flight were answered and are not errors.
        assert!(!end.contains("no_answer") && !end.contains("errors"), "{end}");
        assert!(!end.lines().any(is_progress), "{end}");
    }
}

#[test]
fn ctrl_c_before_the_measurement_is_reported() {
    let own = Served::start(&[]);
    let mut terminal = start(100, &[&own.url("ws", "/echo"), "-c", "1", "--warm-up", "1h"]);
    terminal.exp_string("warming up: 1 open").unwrap();
    terminal.send_control('c').unwrap();
    let rest = terminal.exp_eof().unwrap();
    assert!(rest.contains("interrupted before anything was measured") && rest.contains("code 130"), "{rest}");
}

#[test]
fn second_ctrl_c_exits_at_once() {
    let silent = websocket(|_, _| Answer::Raw(Vec::new()));
    let url = format!("ws://{silent}/");
    let mut terminal = start(100, &[&url, "-c", "1", "-d", "1h", "--warm-up", "0s", "--timeout", "1h"]);
    terminal.exp_string("measuring: 1 open").unwrap();
    terminal.send_control('c').unwrap();
    terminal.exp_string("waiting for the last answers").unwrap();
    terminal.send_control('c').unwrap();
    terminal.exp_string("code 130").unwrap();
}

#[test]
fn ctrl_c_ends_a_comparison_after_its_last_complete_round() {
    let (_own, url) = Served::with_url(&[], "ws", "/echo");
    let mut terminal =
        start(100, &["compare", &url, &url, "-c", "1", "-d", "50ms", "--warm-up", "0s", "--rounds", "1000"]);
    terminal.exp_string("round 2 of 1000: ").unwrap();
    terminal.send_control('c').unwrap();
    let rest = terminal.exp_eof().unwrap();
    let (_, end) = watch(100, &rest);
    for part in [" of 1000 rounds are complete", "median latency:", "code 130"] {
        assert!(end.contains(part), "{part} in {end}");
    }
}

/// More than the lines of a summary, including wrapped lines.
const ROWS: u16 = 60;

/// Longer than any step takes on a busy machine.
const PATIENCE_MS: u64 = 60_000;
