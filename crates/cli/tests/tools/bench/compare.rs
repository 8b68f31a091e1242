//! `sinews bench compare`.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use sinews_testkit::until;

use super::support::{Answer, Served, http, run, websocket};
use crate::directory::Directory;
use crate::ports::unused_address;

#[test]
fn servers_alternate_and_three_rounds_decide_nothing() {
    let own = Served::start(&[]);
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
        "400ms",
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
        assert!(server["rate"]["differs"].is_null(), "three rounds decide nothing: {server:#}");
    }
    assert_eq!(result["rounds_to_decide"], 8);
    assert!(run.stderr.contains("3 rounds show no significant difference; 8 can"), "{}", run.stderr);
    assert_eq!(servers[0]["rate"]["ratio"], 1.0);
}

/// However large a difference is, few rounds do not decide, and must not claim that there is none.
#[test]
fn table_claims_equality_only_with_enough_rounds() {
    let own = Served::start(&[]);
    let (url, late) = (own.url("ws", "/echo"), format!("ws://{}/", late_echo()));
    for (rounds, other, expected) in [
        ("3", &url, "undecided with 3 rounds, 8 can decide"),
        ("7", &late, "undecided with 7 rounds, 8 can decide"),
        ("8", &late, ")\np99"),
    ] {
        let run = run(&["compare", &url, other, "--rounds", rounds, "-c", "1", "-n", "5", "-q"]);
        assert!(run.success && run.stderr.is_empty(), "{}", run.stderr);
        assert!(run.stdout.contains(expected), "{rounds} rounds: {}", run.stdout);
        let latency = run.stdout.split("median latency").nth(1).unwrap().split("p99").next().unwrap();
        assert!(!latency.contains("no difference"), "{rounds} rounds: {latency}");
    }
}

/// The address of an echo that answers after 20 ms.
fn late_echo() -> SocketAddr {
    websocket(|_, bytes| {
        thread::sleep(Duration::from_millis(20));
        Answer::Echo(bytes)
    })
}

#[test]
fn options_of_one_server_replace_those_for_all() {
    let (own, url) = Served::with_url(&["--http-http2-clear-text"], "ws", "/echo");
    let (one, two) = (format!("one={url}"), format!("two={url}"));
    let load = ["compare", &one, &two, "--rounds", "3", "-c", "1", "-n", "5", "-q", "--options"];
    let sound = run(&[&load[..], &["two=-c 2 -n 30 --http2 --sockets-per-connection 5"]].concat());
    assert!(sound.success, "{}", sound.stderr);
    let metrics = own.get("/metrics");
    assert!(metrics.contains("sinews_http2_websockets_total 30"), "three rounds of ten: {metrics}");
    for (options, reason) in [
        ("three=-c 2", "expected NAME=OPTIONS with the name of a server (one, two)"),
        ("two=--no-such-option", "--options two"),
    ] {
        let wrong = run(&[&load[..], &[options]].concat());
        assert!(!wrong.success && wrong.stderr.contains(reason), "{options}: {}", wrong.stderr);
    }
}

#[test]
fn compare_fails_if_a_server_does_not_start() {
    let (_own, url) = Served::with_url(&[], "ws", "/echo");
    let run = run(&["compare", &url, "other=ws://127.0.0.1:1/=false", "--rounds", "3", "-n", "5"]);
    assert!(!run.success && run.stderr.contains("exited with"), "{}", run.stderr);
}

/// A port for a server.
fn free_port() -> u16 {
    unused_address().port()
}

/// The `sinews serve` command, with a prefix and a suffix.
fn command(name: &str, port: u16, before: &str, behind: &str) -> String {
    let program = env!("CARGO_BIN_EXE_sinews");
    let serve = format!("serve --listen 127.0.0.1:{port} --threads 1");
    format!("{name}=ws://127.0.0.1:{port}/echo={before} {program} {serve} {behind}")
}

const SHORT: [&str; 9] = ["--rounds", "3", "-c", "2", "-n", "40", "--json", "--timeout", "20s"];

#[test]
fn commands_run_for_one_round_each() {
    let directory = Directory::new();
    let list = directory.path("pids");
    // The shell writes the process ids; quotes, variables and child processes need a shell.
    let note = format!("note='{}'; echo $$ >> \"$note\";", list);
    let (one, two) = (free_port(), free_port());
    let first = command("one", one, &note, "& echo $! >> \"$note\"; wait");
    let second = command("two", two, &format!("{note} exec"), "");
    let run = run(&[&["compare", &first, &second][..], &SHORT].concat());
    assert!(run.success, "{}", run.stderr);
    let result: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    for (server, name) in result["servers"].as_array().unwrap().iter().zip(["one", "two"]) {
        assert_eq!((&server["name"], &server["rounds"]), (&name.into(), &3.into()));
        if cfg!(target_os = "linux") {
            assert!(server["server_s_CPU"]["median"].as_f64().unwrap() > 0.0, "{server:#}");
        }
    }
    let pids = std::fs::read_to_string(&list).unwrap();
    // Two ids for the shell that stays, and one for the shell that execs the server.
    assert_eq!(pids.lines().count(), 3 * 2 + 3, "{pids}");
    // A zombie may not have been reaped by its new parent yet.
    let lives = |pid: &str| {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z"))
    };
    until("the commands have ended", || !pids.lines().any(lives));
}

#[test]
fn command_failures_are_reported() {
    let (own, url) = Served::with_url(&[], "ws", "/echo");
    let port = own.address.port();
    for (server, message) in [
        (command("a", free_port(), "", "--no-such-option"), "exited with exit status: 2: "),
        (format!("a=ws://127.0.0.1:{}/=echo why not >&2; exit 3", free_port()), "exit status: 3: why not"),
        (format!("a=ws://127.0.0.1:{}/=no-such-program", free_port()), "no-such-program"),
        (command("a", port, "", ""), "another process already accepts connections at"),
        ("a=".to_owned(), "expected a URL, or NAME=URL=COMMAND"),
        ("=ws://127.0.0.1:1/".to_owned(), "expected a URL, or NAME=URL=COMMAND"),
    ] {
        let run = run(&[&["compare", &url, &server][..], &SHORT].concat());
        assert!(!run.success && run.stderr.contains(message), "{server}: {}", run.stderr);
    }
}

#[test]
fn failed_server_is_named() {
    let own = Served::start(&[]);
    let (sound, broken) = (own.url("ws", "/echo"), format!("other={}", own.url("ws", "/nowhere")));
    let run = run(&[&["compare", &sound, &broken][..], &SHORT].concat());
    let message = "comparison is invalid: other: 2 errors: handshake_refused";
    assert!(!run.success && run.stderr.contains(message), "{}", run.stderr);
    let result: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert!(result["invalid"].as_str().unwrap().starts_with(message), "{result:#}");
    assert_eq!(result["servers"].as_array().unwrap().len(), 0, "{result:#}");
}

/// The first faulty round ends the comparison with its reason, in the place of figures.
#[test]
fn invalid_comparison_has_no_table() {
    let own = Served::start(&[]);
    let (url, page) = (own.url("ws", "/echo"), own.url("http", "/healthz"));
    let missing = format!("http://{}/", http(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"));
    let silent = format!("ws://{}/", websocket(|_, _| Answer::Raw(Vec::new())));
    for (first, other, arguments, reason) in [
        (&url, &own.url("ws", "/nowhere"), &["-n", "20"][..], "handshake_refused"),
        (&page, &missing, &["-n", "20"], "http_status"),
        (&missing, &page, &["-n", "20"], "http_status"),
        (&url, &silent, &["-d", "50ms", "--timeout", "1s"], "no_answer"),
        (&url, &"ws://127.0.0.1:1/".to_owned(), &["-n", "20"], "connection_refused"),
        (&url, &url, &["--mode", "idle"], "sinews bench idle"),
    ] {
        let run = run(&[&["compare", first, other, "--rounds", "3", "-c", "2", "-q"], arguments].concat());
        assert!(!run.success && run.stdout.is_empty(), "{reason}: {}", run.stdout);
        assert!(run.stderr.contains(reason), "{reason}: {}", run.stderr);
        assert_eq!(run.stderr.lines().count(), 1, "{reason}: {}", run.stderr);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn servers_and_load_are_pinned_to_given_processors() {
    let allowed = |pid: &str| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        list.map(|list| list.trim().to_owned()).unwrap_or_default()
    };
    let core = allowed("self").split([',', '-']).next().unwrap().to_owned();
    let directory = Directory::new();
    let list = directory.path("allowed");
    // The server's shell writes its own allowed processors, and its parent's.
    let note = format!("grep -h Cpus_allowed_list /proc/self/status /proc/$PPID/status >> {}; exec", list);
    let servers = [command("a", free_port(), &note, ""), command("b", free_port(), &note, "")];
    let cores = ["--server-core", &core, "--load-core", &core];
    let run = run(&[&["compare", &servers[0], &servers[1]][..], &cores, &SHORT].concat());
    assert!(run.success, "{}", run.stderr);
    let written = std::fs::read_to_string(&list).unwrap();
    let found: Vec<&str> = written.lines().map(|line| line.rsplit('\t').next().unwrap()).collect();
    assert_eq!(found, vec![&core[..]; 2 * 2 * 3], "{written}");
}
