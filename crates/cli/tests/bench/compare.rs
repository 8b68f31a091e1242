//! `sinews bench compare`.

use super::support::{Own, run};

#[test]
fn servers_are_measured_by_turns_and_a_server_is_as_fast_as_itself() {
    let own = Own::start(&[]);
    let (one, two) = (format!("one={}", own.url("ws", "/echo")), format!("two={}", own.url("ws", "/echo")));
    let run = run(&[
        "compare",
        &one,
        &two,
        "--rounds",
        "3",
        "-c",
        "2",
        "-d",
        "60ms",
        "--warm-up",
        "10ms",
        "--json",
    ]);
    assert!(run.success, "{}", run.stderr);
    let rounds: Vec<&str> = run.stderr.lines().filter(|line| line.contains("round ")).collect();
    let order: Vec<&str> =
        rounds.iter().map(|line| if line.contains(" one ") { "one" } else { "two" }).collect();
    assert_eq!(order, ["one", "two", "two", "one", "one", "two"]);
    let result: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    let servers = result["servers"].as_array().unwrap();
    assert_eq!(servers.len(), 2);
    for server in servers {
        assert_eq!(server["rate"]["all"].as_array().unwrap().len(), 3);
        assert_eq!(server["rate"]["differs"], false, "three rounds can show nothing: {server:#}");
    }
    assert_eq!(servers[0]["rate"]["ratio"], 1.0);
}

#[test]
fn the_table_says_that_there_is_no_difference() {
    let own = Own::start(&[]);
    let url = own.url("ws", "/echo");
    let run =
        run(&["compare", &url, &url, "--rounds", "3", "-c", "1", "-d", "40ms", "--warm-up", "0s", "-q"]);
    assert!(
        run.success && run.stdout.contains("no difference that this run can show"),
        "{}{}",
        run.stdout,
        run.stderr
    );
}

#[test]
fn a_server_that_does_not_start_is_no_contender() {
    let own = Own::start(&[]);
    let url = own.url("ws", "/echo");
    let run = run(&["compare", &url, "other=ws://127.0.0.1:1/=false", "--rounds", "3", "-d", "10ms"]);
    assert!(!run.success && run.stderr.contains("it ended"), "{}", run.stderr);
}
