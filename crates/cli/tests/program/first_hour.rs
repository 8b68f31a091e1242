//! `sinews init`, `sub`, `pub` and `health`: the first hour of an operator.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use crate::config::Directory;
use crate::support::{Running, fails, program, until, unused_address};

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The words behind a beginning, in the text of `init`.
fn behind<'a>(text: &'a str, begin: &str) -> &'a str {
    let line = text.lines().find_map(|line| line.strip_prefix(begin)).unwrap_or_else(|| panic!("{text}"));
    line.split('\'').next().unwrap()
}

#[test]
fn init_writes_a_configuration_whose_token_and_key_work() {
    let directory = Directory::new();
    let target = directory.path("new server");
    let text = output(program().args(["init", &target]));
    let config = format!("{target}/sinews.toml");
    assert_eq!(output(program().args(["config", "check", &config])), format!("{config}: good\n"));
    for secret in ["sinews.secret", "sinews.api-keys"] {
        let mode = std::fs::metadata(format!("{target}/{secret}")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{secret}");
    }
    let before = std::fs::read_to_string(&config).unwrap();
    let refused = fails(program().args(["init", &target]));
    assert!(refused.contains("sinews.toml: it exists already, and is not overwritten"), "{refused}");
    assert_eq!(std::fs::read_to_string(&config).unwrap(), before);

    let server = Running::start(program().args(["serve", "--listen", "127.0.0.1:0", "--config", &config]));
    let (token, key) =
        (behind(&text, "export SINEWS_TOKEN="), behind(&text, "curl -H 'Authorization: Bearer "));
    let url = format!("http://{}", server.address);
    output(program().args(["pub", "chat.room", "{\"n\":1}", "--url", &url, "--token", token]));
    let answer = server.request(
        &format!("POST /api/v1/publish HTTP/1.1\r\nAuthorization: Bearer {key}"),
        "{\"topic\":\"chat.room\",\"data\":\"by the backend\"}",
    );
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let mut sub = program();
    sub.args(["sub", "chat.room", "--last", "2", "--count", "2", "--url", &url]).env("SINEWS_TOKEN", token);
    assert_eq!(output(&mut sub), "chat.room\t{\"n\":1}\nchat.room\t\"by the backend\"\n");
    let missing = fails(program().args(["pub", "chat.room", "x", "--url", &url]));
    assert!(missing.contains("401") && !missing.contains(token), "{missing}");
}

#[test]
fn published_lines_arrive_at_a_subscriber_of_a_pattern() {
    let server = Running::serve(&[]);
    let url = format!("ws://{}", server.address);
    let mut sub = program().args(["sub", "chat.>", "--count", "5", "--url", &url]).spawn().unwrap();
    let probe = || server.request("POST /topics/chat.probe HTTP/1.1", "probe").contains("\"subscribers\":1");
    until("the subscription", probe);
    let mut publish = program().args(["pub", "chat.a", "--url", &url]).stdin(Stdio::piped()).spawn().unwrap();
    let lines = "{\"n\": 1}\nplain text\n[1,\n";
    publish.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    assert!(publish.wait().unwrap().success());
    output(program().args(["pub", "chat.a.b", "--text", "7", "--url", &url]));
    let printed: Vec<String> =
        BufReader::new(sub.stdout.take().unwrap()).lines().map(Result::unwrap).collect();
    let expected = [
        "chat.probe\t\"probe\"",
        "chat.a\t{\"n\":1}",
        "chat.a\t\"plain text\"",
        "chat.a\t\"[1,\"",
        "chat.a.b\t\"7\"",
    ];
    assert_eq!(printed, expected);
    assert!(sub.wait().unwrap().success());
    let invalid = fails(program().args(["pub", "chat.>", "x", "--url", &url]));
    assert!(invalid.contains("(422)"), "{invalid}");
    let invalid = fails(program().args(["sub", "a..b", "--url", &url]));
    assert!(invalid.contains("(422)"), "{invalid}");
}

#[test]
fn health_reports_whether_the_server_serves() {
    let server = Running::serve(&[]);
    let url = format!("http://{}", server.address);
    assert_eq!(output(program().args(["health", &url])), "ok\n");
    assert_eq!(output(program().args(["health", "--ready"]).env("SINEWS_HEALTH_URL", &url)), "ok\n");
    let missing = fails(program().args(["health", &format!("{url}/nothing")]));
    assert!(missing.contains("/nothing answers 404"), "{missing}");
    let gone = fails(program().args(["health", &unused_address().to_string()]));
    assert!(gone.contains("refused"), "{gone}");
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let late = fails(program().args(["health", "--timeout", "100ms", &address]));
    assert!(late.contains("no answer in time"), "{late}");
}
