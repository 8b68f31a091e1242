//! `sinews bench compare`.

use super::directory::Directory;
use super::ports::unused_address;
use super::support::{ServeProcess, run};

#[test]
fn servers_alternate_and_equal_servers_show_no_difference() {
    let own = ServeProcess::start(&[]);
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
        assert_eq!(server["rate"]["differs"], false, "three rounds can show nothing: {server:#}");
    }
    assert_eq!(servers[0]["rate"]["ratio"], 1.0);
}

#[test]
fn table_states_that_no_difference_is_significant() {
    let own = ServeProcess::start(&[]);
    let url = own.url("ws", "/echo");
    let run =
        run(&["compare", &url, &url, "--rounds", "3", "-c", "1", "-d", "400ms", "--warm-up", "0s", "-q"]);
    assert!(
        run.success && run.stdout.contains("no difference that this run can show"),
        "{}{}",
        run.stdout,
        run.stderr
    );
}

#[test]
fn compare_fails_if_a_server_does_not_start() {
    let own = ServeProcess::start(&[]);
    let url = own.url("ws", "/echo");
    let run = run(&["compare", &url, "other=ws://127.0.0.1:1/=false", "--rounds", "3", "-d", "10ms"]);
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
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while pids.lines().any(lives) {
        assert!(std::time::Instant::now() < deadline, "the commands are still running");
        std::thread::park_timeout(std::time::Duration::from_millis(5));
    }
}

#[test]
fn command_failures_are_reported() {
    let own = ServeProcess::start(&[]);
    let url = own.url("ws", "/echo");
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
    let own = ServeProcess::start(&[]);
    let (sound, broken) = (own.url("ws", "/echo"), format!("other={}", own.url("ws", "/nowhere")));
    let run = run(&[&["compare", &sound, &broken][..], &SHORT].concat());
    let message = "comparison is invalid: other: 2 errors: handshake_refused";
    assert!(!run.success && run.stderr.contains(message), "{}", run.stderr);
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
