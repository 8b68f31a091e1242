//! Output of the program, by destination.

use super::support::{Served, bench, run};
use crate::directory::Directory;

#[test]
fn pipe_output_is_plain_lines_and_a_table() {
    let (_own, url) = Served::with_url(&[], "ws", "/echo");
    let run = run(&[&url, "-c", "2", "-d", "300ms", "--warm-up", "0s"]);
    assert!(run.success, "{}", run.stderr);
    assert!(!run.stdout.contains('\u{1b}') && !run.stderr.contains('\u{1b}'), "{}{}", run.stdout, run.stderr);
    for word in ["echoes, verified", "latency", "p99.99", "connections open"] {
        assert!(run.stdout.contains(word), "{}", run.stdout);
    }
    assert!(run.stderr.contains("sinews bench: measuring"), "{}", run.stderr);
}

#[test]
fn csv_has_one_value_per_name() {
    let (_own, url) = Served::with_url(&[], "ws", "/echo");
    let run = run(&[&url, "-c", "2", "-n", "20", "--csv", "-q"]);
    let lines: Vec<&str> = run.stdout.lines().collect();
    assert_eq!(lines.len(), 2, "{}", run.stdout);
    // No value of this run contains a comma.
    let [names, values] = [0, 1].map(|line: usize| lines[line].split(',').collect::<Vec<_>>());
    assert_eq!(names.len(), values.len());
    let value = |name: &str| values[names.iter().position(|one| *one == name).expect(name)];
    assert_eq!((value("messages"), value("errors"), value("latency_us.count")), ("20", "0", "20"));
}

#[test]
fn csv_columns_are_the_same_without_answers() {
    let (_own, url) = Served::with_url(&[], "ws", "/echo");
    let names = |arguments: &[&str]| {
        let run = run(&[&[&url[..], "-c", "1", "--csv", "-q"], arguments].concat());
        run.stdout.lines().next().expect("names").to_owned()
    };
    assert_eq!(names(&["-m", "idle", "-d", "50ms", "--warm-up", "0s"]), names(&["-n", "3"]));
}

#[test]
fn html_report_is_self_contained() {
    let own = Served::start(&[]);
    let (url, pid) = (own.url("ws", "/echo?_a=<b>"), own.pid());
    let directory = Directory::new();
    let path = directory.path("report.html");
    let run = run(&[&url, "-c", "2", "-d", "700ms", "-q", "--pid", &pid, "--report", &path]);
    assert!(run.success, "{}", run.stderr);
    let page = std::fs::read_to_string(&path).unwrap();
    let charts = if cfg!(target_os = "linux") { 3 } else { 2 };
    assert_eq!(page.matches("<svg").count(), charts, "latency, rate, memory");
    assert!(page.contains("prefers-color-scheme:dark") && page.contains("/echo?_a=&lt;b&gt;"));
    for outside in ["<script", "src=", "<link", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    let named = page.replace("http://www.w3.org/2000/svg", "");
    assert!(!named.contains("http://") && !named.contains("https://"), "the page makes no requests");
    assert!(!page.contains("#010101") && page.contains("currentColor"), "the charts use the page's colors");
}

#[test]
fn closed_pipe_does_not_fail_the_run() {
    let (_own, url) = Served::with_url(&[], "ws", "/echo");
    let mut child = bench(&[&url, "-c", "1", "-n", "5", "-q"]).spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
}

#[test]
fn help_lists_every_option_group() {
    let help = run(&["--help"]).stdout;
    for group in ["Amount of load", "Content", "Connections", "Load modes other than echo", "Output"] {
        assert!(help.contains(&format!("{group}:")), "{group} in {help}");
    }
}
