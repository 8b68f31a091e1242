//! Basic use of the command line: help, version, typing errors, completions, the log's format.

use crate::support::{Running, fails, program};

fn output(arguments: &[&str]) -> String {
    let output = program().args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn top_level_help_lists_commands_and_leaves_the_options_to_serve() {
    for flag in ["-h", "--help"] {
        let help = output(&[flag]);
        assert!(help.lines().count() <= 45, "{} lines: {help}", help.lines().count());
        assert!(!help.contains("--streams-fsync"), "{help}");
        for expected in ["sinews serve --help", "connect", "bench", "token", "completions"] {
            assert!(help.contains(expected), "{expected} in {help}");
        }
    }
    assert!(output(&["serve", "--help"]).contains("--streams-fsync"));
}

#[test]
fn version_names_commit_features_and_backends() {
    let version = output(&["--version"]);
    assert!(version.starts_with(concat!("sinews ", env!("CARGO_PKG_VERSION"))), "{version}");
    for field in ["\ncommit ", "\ntarget ", "\nfeatures ", "\nbackend "] {
        assert!(version.contains(field), "{field:?} in {version}");
    }
    assert_eq!(output(&["-V"]).lines().count(), 1);
}

#[test]
fn misspelled_commands_flags_and_values_get_a_suggestion() {
    for (arguments, expected) in [
        (&["srve"][..], "'serve'"),
        (&["--lisen", "127.0.0.1:0"], "'--listen'"),
        (&["serve", "--lisen", "127.0.0.1:0"], "'--listen'"),
        (&["--backend", "urin"], "'uring'"),
        (&["--log", "inof"], "did you mean info?"),
        (&["--log", "inof,sinews_engine=debug"], "did you mean info?"),
        (&["--threads", "99999"], "--threads 99999 exceeds the limit of "),
    ] {
        let message = fails(program().args(arguments));
        assert!(message.contains(expected), "{arguments:?}: {message}");
    }
}

#[test]
fn unknown_environment_variables_are_warned_of() {
    let mut command = program();
    command.args(["serve", "--listen", "127.0.0.1:0"]);
    // Kubernetes sets the second kind for a service named "sinews".
    command.env("SINEWS_LISTN", "127.0.0.1:1").env("SINEWS_SERVICE_HOST", "10.0.0.1");
    command.env("SINEWS_PORT_8080_TCP", "tcp://10.0.0.1:8080");
    let server = Running::start(&mut command);
    server.signal("TERM");
    let (_, log) = server.wait();
    assert!(log.contains("SINEWS_LISTN") && log.contains("SINEWS_LISTEN"), "{log}");
    assert!(!log.contains("SERVICE_HOST") && !log.contains("PORT_8080"), "{log}");
}

#[test]
fn listen_takes_a_port_alone_and_a_host_name() {
    for address in ["0", "localhost:0"] {
        let server = Running::start(program().args(["serve", "--listen", address]));
        assert!(server.address.ip().is_loopback(), "{address}: {}", server.table);
        assert!(server.get("/healthz").ends_with("ok\n"));
    }
    let server = Running::start(program().args(["serve", "--listen", ":0"]));
    assert!(server.table.contains("http://localhost:"), "all interfaces: {}", server.table);
    assert!(server.get("/healthz").ends_with("ok\n"));
    let message = fails(program().args(["serve", "--listen", "80800"]));
    assert!(message.contains("80800") && message.contains("65535"), "{message}");
}

#[test]
fn log_filter_of_one_target_retains_other_targets() {
    let server = Running::serve(&["--log", "sinews_engine=debug"]);
    server.signal("TERM");
    let (_, log) = server.wait();
    assert!(log.contains("INFO") && log.contains("stopped"), "{log}");
}

#[test]
fn log_format_json_writes_an_object_for_each_event() {
    let server = Running::serve(&["--log-format", "json", "--access-log"]);
    server.get("/healthz");
    server.signal("TERM");
    let (_, log) = server.wait();
    assert!(log.lines().count() >= 2, "{log}");
    for line in log.lines() {
        let event: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
        for field in ["timestamp", "level", "message"] {
            assert!(event[field].is_string(), "{field} in {line}");
        }
    }
}

#[test]
fn completions_and_man_pages_are_written() {
    for (shell, expected) in
        [("bash", "complete -F"), ("zsh", "#compdef sinews"), ("fish", "complete -c sinews")]
    {
        let script = output(&["completions", shell]);
        assert!(script.contains(expected) && script.contains("--max-message") || shell == "fish", "{shell}");
    }
    let directory = crate::config::Directory::new();
    let path = directory.path("man");
    output(&["man", &path]);
    let serve = std::fs::read_to_string(format!("{path}/sinews-serve.1")).unwrap();
    assert!(serve.contains(".TH sinews-serve 1") && serve.contains("max\\-message"), "{serve}");
    assert!(output(&["man"]).contains(".TH sinews 1"));
}
