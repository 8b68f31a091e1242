//! The configuration file: precedence, errors, and reload.

use std::io::{BufRead, BufReader};

pub(crate) use crate::directory::Directory;
use crate::support::{Running, fails, program};

fn says(arguments: &[&str]) -> String {
    let output = program().args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn command_line_overrides_environment_and_environment_overrides_file() {
    let directory = Directory::new();
    let file = directory.write(
        "sinews.toml",
        "listen = [\"127.0.0.1:0\", \"127.0.0.1:0\"]\nthreads = 2\ndeflate = \"off\"\nlog = \"error\"\n\
         origin = [\"https://a.example\"]\n",
    );
    let start = |flags: &[&str], variables: &[(&str, &str)]| {
        let mut command = program();
        command.args(["serve", "--config", &file]).args(flags).envs(variables.iter().copied());
        Running::start(&mut command)
    };
    let server = start(&[], &[]);
    assert!(server.table.contains("2 threads") && server.table.contains("deflate off"), "{}", server.table);
    assert_eq!(server.table.matches("/healthz").count(), 2, "{}", server.table);
    assert!(!server.rejects_origin("/echo", "https://a.example"));
    assert!(server.rejects_origin("/echo", "https://b.example"));

    let server = start(&["--threads", "1"], &[("SINEWS_THREADS", "3"), ("SINEWS_DEFLATE", "dedicated")]);
    assert!(server.table.contains("1 thread "), "{}", server.table);
    assert!(server.table.contains("deflate dedicated"), "{}", server.table);

    let mut command = program();
    command.env("SINEWS_CONFIG", &file).env("SINEWS_ORIGIN", "https://b.example");
    let server = Running::start(&mut command);
    assert!(server.table.contains("2 threads"), "the environment names the file: {}", server.table);
    assert!(!server.rejects_origin("/echo", "https://b.example"));
    server.signal("TERM");
    assert_eq!(server.wait().1, "", "no line below the level");
}

#[test]
fn invalid_file_is_rejected_with_the_line_of_the_fault() {
    let directory = Directory::new();
    let file = directory.write("sinews.toml", "# mine\nlissten = \"127.0.0.1:0\"\n");
    let expected = format!("sinews: {file}:2: unknown key lissten; did you mean listen?\n");
    assert_eq!(fails(program().args(["serve", "--config", &file])), expected);
    assert_eq!(fails(program().args(["config", "check", &file])), expected);

    let file = directory.write("sinews.toml", "backend = \"epoll\"");
    let expected =
        format!("sinews: {file}:1: backend must be \"auto\", \"poll\" or \"uring\", not \"epoll\"\n");
    assert_eq!(fails(program().args(["config", "check", &file])), expected);

    // Errors beyond the types.
    for (text, parts) in [
        ("origin = \"example.com\"", [":1: origin example.com: ", "origin"]),
        ("\nlog = \"a=b=c\"", [":2: log a=b=c: ", "log"]),
        ("[auth]\nsecret_file = \"/nowhere/secret\"", [":2: auth.secret_file: ", "/nowhere/secret: "]),
        ("[auth]\nsecret = \"short\"", [":2: auth.secret: ", "the secret has 5 bytes"]),
        ("[auth]\npublic_publish = \"a.>.b\"", [":2: auth.public_publish: ", "\"a.>.b\""]),
    ] {
        let file = directory.write("sinews.toml", text);
        let message = fails(program().args(["config", "check", &file]));
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(message.starts_with(&format!("sinews: {file}{}", parts[0])), "{message}");
        assert!(message.contains(parts[1]), "{message}");
        assert_eq!(fails(program().args(["serve", "--config", &file])), message);
    }
    let missing = fails(program().args(["serve", "--config", "/nowhere/sinews.toml"]));
    assert!(missing.starts_with("sinews: /nowhere/sinews.toml: "), "{missing}");
}

#[test]
fn check_of_several_files_names_the_good_ones_and_all_faults() {
    let directory = Directory::new();
    let files =
        [("1", "threads = 1"), ("2", "thread = 1"), ("3", "log = \"off\""), ("4", "[auth]\nsecret = \"a\"")];
    let files = files.map(|(name, text)| directory.write(name, text));
    let output = program().args(["config", "check"]).args(&files).output().unwrap();
    assert!(!output.status.success());
    let [first, second, third, fourth] = &files;
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{first}: good\n{third}: good\n"));
    let faults = String::from_utf8_lossy(&output.stderr).into_owned();
    let lines: Vec<_> = faults.lines().collect();
    assert!(lines[0].starts_with(&format!("sinews: {second}:1: ")), "{faults}");
    assert!(lines[1].starts_with(&format!("{fourth}:2: ")) && lines.len() == 2, "{faults}");
    assert_eq!(says(&["config", "check", first, third]), format!("{first}: good\n{third}: good\n"));
}

#[test]
fn contradictions_of_settings_are_found_by_the_check() {
    let directory = Directory::new();
    let streams = directory.path("streams");
    let of_streams = |more: &str| format!("[streams]\ndirectory = {streams:?}\n{more}\n");
    let cluster = "[cluster]\nurl = \"nats://127.0.0.1:1\"\n";
    let good = directory.write("sinews.toml", &format!("{}{cluster}", of_streams("compact = \"a\"")));
    assert_eq!(says(&["config", "check", &good]), format!("{good}: good\n"));
    let store = if cfg!(feature = "redis") { "redis://a" } else { "nats://a" };
    let with_topic_store = format!("[cluster]\nstore = {store:?}\n") + &of_streams("durable_keys = \"a\"");
    let with_topic_store = (with_topic_store, ":2: cluster.store: ", "streams.durable_keys");
    let with_topic_store = cfg!(any(feature = "nats", feature = "redis")).then_some(with_topic_store);
    for (text, begin, part) in [
        ("[cluster]\nurl = \"kafka://a\"".to_owned(), ":2: cluster.url: ", "scheme"),
        ("[cluster]\nnode_name = \"a\"".to_owned(), ":2: cluster.node_name: ", "needs cluster.url"),
        (of_streams("durable_topics = \"a\"") + cluster, ":5: cluster.url: ", "durable topics"),
        (of_streams("durable_keys = \"a\"") + cluster, ":5: cluster.url: ", "streams.durable_keys"),
        (
            of_streams("[namespace.a]\ndurable_keys = true") + cluster,
            ":6: cluster.url: ",
            "namespace.*.durable_keys",
        ),
        (
            of_streams("durable_topics = \"a\"\ncompact = \"*\""),
            ":4: streams.compact: ",
            "streams.durable_topics",
        ),
        (
            of_streams("compact = \"*\"\n[namespace.a]\ndurable = true"),
            ":3: streams.compact: ",
            "namespace.*.durable",
        ),
        ("[streams]\nstore = \"mysql://a\"".to_owned(), ":2: streams.store: ", "mysql"),
        ("[cluster]\nstore = \"kafka://u:secret@a\"".to_owned(), ":2: cluster.store: ", "redis+sentinel"),
    ]
    .into_iter()
    .chain(with_topic_store)
    {
        let file = directory.write("sinews.toml", &text);
        let message = fails(program().args(["config", "check", &file]));
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(message.starts_with(&format!("sinews: {file}{begin}")), "{message}");
        assert!(message.contains(part) && !message.contains("secret"), "{message}");
        assert!(fails(program().args(["serve", "--config", &file])).ends_with(&message), "{message}");
    }
    let file = directory.write("sinews.toml", "history = \"a=1\"\n[namespace.a]\nhistory = 2\n");
    let message = fails(program().args(["config", "check", &file]));
    let fault = "namespace \"a\": its history is set by `history`, too";
    assert_eq!(message, format!("sinews: {fault}\n"));
    assert_eq!(fails(program().args(["serve", "--config", &file])), message);
    let other = directory.write("other.toml", "threads = 1");
    let both = fails(program().args(["config", "check", &other, &file]));
    assert_eq!(both, format!("sinews: {file}: {fault}\n"), "one of several files is named");
    assert!(!std::path::Path::new(&streams).exists(), "nothing is created");
}

#[test]
fn invalid_variable_is_rejected_with_its_name() {
    for (variable, value, expected) in [
        (
            "SINEWS_THREADS",
            "x",
            "error: invalid value 'x' for 'SINEWS_THREADS': expected a whole number of at least 1",
        ),
        ("SINEWS_BACKEND", "urin", "error: invalid value 'urin' for 'SINEWS_BACKEND'"),
        ("SINEWS_LOG", "inof", "sinews: SINEWS_LOG inof: \"inof\" is not a level"),
    ] {
        let message = fails(program().arg("serve").env(variable, value));
        assert!(message.starts_with(expected), "{message}");
    }
    let message = fails(program().args(["serve", "--threads=x"]).env("SINEWS_THREADS", "x"));
    assert!(
        message.starts_with("error: invalid value 'x' for '--threads <N>': expected a whole number"),
        "{message}"
    );
}

#[test]
fn printed_default_file_is_valid() {
    let directory = Directory::new();
    let printed = says(&["config", "default"]);
    let file = directory.write("sinews.toml", &printed);
    assert_eq!(says(&["config", "check", &file]), format!("{file}: good\n"));
    for line in ["listen = [\"127.0.0.1:8080\"]", "max_message = \"16m\"", "[auth]", "#secret_file = "] {
        assert!(printed.lines().any(|found| found.starts_with(line)), "{line} in {printed}");
    }
}

#[test]
fn file_is_reloaded_on_sighup() {
    let directory = Directory::new();
    let file = directory.write("sinews.toml", "log = \"info\"\norigin = [\"https://a.example\"]\n");
    let mut server = Running::serve(&["--config", &file]);
    let mut log = BufReader::new(server.child.stderr.take().unwrap());
    let mut until = |message: &str| {
        let mut line = String::new();
        while !line.contains(message) {
            line.clear();
            assert_ne!(log.read_line(&mut line).unwrap(), 0, "the log ended before {message:?}");
        }
        line
    };
    let from = |server: &Running, origin: &str| {
        let posted = server.request(&format!("POST /topics/a HTTP/1.1\r\nOrigin: {origin}"), "x");
        let upgraded = !server.rejects_origin("/topics/a", origin);
        assert_eq!(posted.starts_with("HTTP/1.1 200 "), upgraded, "{posted}");
        upgraded
    };
    assert!(from(&server, "https://a.example") && !from(&server, "https://b.example"));

    directory.write("sinews.toml", "origin = [\"https://b.example\"]\nthreads = 7\ndeflate = \"off\"\n");
    server.signal("HUP");
    assert!(until("read again").contains("this needs a restart: threads, deflate"));
    assert!(!from(&server, "https://a.example") && from(&server, "https://b.example"));

    directory.write("sinews.toml", "origni = \"any\"\n");
    server.signal("HUP");
    let line = until("was not applied");
    assert!(line.contains("sinews.toml:1: unknown key origni; did you mean origin?"), "{line}");
    assert!(!from(&server, "https://a.example") && from(&server, "https://b.example"));

    // With a secret, all clients need a token.
    let secret = directory.write("secret", "0123456789abcdef0123456789abcdef\n");
    directory.write("sinews.toml", &format!("log = \"warn\"\n[auth]\nsecret_file = \"{secret}\"\n"));
    server.signal("HUP");
    // The reload's own log lines are below the new level, so the test observes the policy.
    crate::support::until("clients need a token", || {
        server.request("POST /topics/a HTTP/1.1", "x").starts_with("HTTP/1.1 401 ")
    });
    server.signal("TERM");
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut log, &mut rest).unwrap();
    // Except for rejections before the reload.
    let is_earlier = |line: &str| line.contains("rejected: pages of the origin https://a.example");
    assert!(rest.lines().all(is_earlier), "below the reloaded level: {rest}");
    assert!(server.child.wait().unwrap().success());
}
