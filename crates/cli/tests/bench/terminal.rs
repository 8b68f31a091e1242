//! What a person sees who starts it in a terminal, and what Ctrl-C does.

use std::collections::BTreeSet;
use std::process::Command;

use rexpect::session::{PtySession, spawn_command};

use super::support::{Answer, Own, websocket};

/// The program in a terminal of this many columns; behind its end the shell says how it went.
fn start(columns: u16, arguments: &[&str]) -> PtySession {
    // The shell hears Ctrl-C as well, and is to say the code all the same.
    let script = format!("stty rows {ROWS} cols {columns}; trap : INT; \"$@\"; echo \"code $?\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_sinews"), "bench"]).args(arguments);
    command.env("TERM", "xterm").env("LC_ALL", "C.UTF-8").env_remove("NO_COLOR");
    spawn_command(command, Some(PATIENCE_MS)).unwrap()
}

/// All that a terminal shows while these bytes come, of the line that tells how far it is; and what it shows at the end.
fn watch(columns: u16, bytes: &str) -> (BTreeSet<String>, String) {
    let mut terminal = vt100::Parser::new(ROWS, columns, 0);
    let mut lines = BTreeSet::new();
    // A line is drawn whole before the cursor goes back.
    for piece in bytes.split_inclusive('\r') {
        // What is read of a terminal is a character for each byte.
        let piece: Vec<u8> = piece.chars().filter_map(|byte| u8::try_from(byte).ok()).collect();
        terminal.process(&piece);
        let told: Vec<String> = terminal.screen().rows(0, columns).filter(|row| is_progress(row)).collect();
        assert!(told.len() <= 1, "one line is drawn again and again: {told:#?}");
        lines.extend(told);
    }
    (lines, terminal.screen().contents())
}

fn is_progress(row: &str) -> bool {
    ["connecting: ", "warming up: ", "measuring: ", "last answers: "].iter().any(|phase| row.contains(phase))
}

#[test]
fn a_line_is_drawn_again_and_again_and_makes_room_for_the_summary() {
    let own = Own::start(&[]);
    let url = own.url("ws", "/echo");
    for columns in [100, 60, 30] {
        let mut terminal = start(columns, &[&url, "-c", "2", "-d", "1s", "--warm-up", "400ms"]);
        let all = terminal.exp_eof().unwrap();
        let (lines, end) = watch(columns, &all);
        assert!(lines.len() >= 2, "{lines:#?} in {all:?}");
        assert!(lines.iter().any(|line| line.contains("measuring: 2 open")), "{columns}: {lines:#?}");
        assert!(!end.lines().any(is_progress), "{end}");
        // What was said before may have left a screen as narrow as that.
        assert!(end.contains("load's processor") && end.contains("code 0"), "{end}");
        assert!(!end.contains(['\u{fffd}', '\u{1b}']) && !end.contains("[2K"), "{end}");
    }
}

#[test]
fn ctrl_c_ends_the_measurement_and_shows_what_was_measured() {
    let own = Own::start(&[]);
    let url = own.url("ws", "/echo");
    for load in [&["-d", "1h"][..], &["-n", "1000000000"], &["--rate", "100", "-d", "1h"]] {
        let mut terminal = start(100, &[&[&url, "-c", "2", "--warm-up", "0s"][..], load].concat());
        terminal.exp_string("measuring: 2 open, ").unwrap();
        terminal.exp_string("measuring: 2 open, ").unwrap();
        terminal.send_control('c').unwrap();
        let rest = terminal.exp_eof().unwrap();
        let (_, end) = watch(100, &rest);
        for part in
            ["interrupted: this is what was measured so far", "echoes, verified", "p99.99", "code 130"]
        {
            assert!(end.contains(part), "{load:?}: {part} in {end}");
        }
        // Those on their way were answered, and are no errors.
        assert!(!end.contains("no_answer") && !end.contains("errors"), "{end}");
        assert!(!end.lines().any(is_progress), "{end}");
    }
}

#[test]
fn ctrl_c_before_anything_was_measured_says_so() {
    let own = Own::start(&[]);
    let mut terminal = start(100, &[&own.url("ws", "/echo"), "-c", "1", "--warm-up", "1h"]);
    terminal.exp_string("warming up: 1 open").unwrap();
    terminal.send_control('c').unwrap();
    let rest = terminal.exp_eof().unwrap();
    assert!(rest.contains("interrupted before anything was measured") && rest.contains("code 130"), "{rest}");
}

#[test]
fn a_second_ctrl_c_waits_for_nothing() {
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
fn ctrl_c_ends_a_comparison_behind_its_last_whole_round() {
    let own = Own::start(&[]);
    let url = own.url("ws", "/echo");
    let mut terminal =
        start(100, &["compare", &url, &url, "-c", "1", "-d", "50ms", "--warm-up", "0s", "--rounds", "1000"]);
    terminal.exp_string("round 2 of 1000: ").unwrap();
    terminal.send_control('c').unwrap();
    let rest = terminal.exp_eof().unwrap();
    let (_, end) = watch(100, &rest);
    for part in ["interrupted: of 1000 rounds, ", "median latency:", "code 130"] {
        assert!(end.contains(part), "{part} in {end}");
    }
}

/// More than a summary has lines, wrapped ones too.
const ROWS: u16 = 60;

/// Longer than anything here takes on a busy machine.
const PATIENCE_MS: u64 = 60_000;
