//! SIGHUP, with flags and environment variables alone: the files that they name are read again.

use sinews_testkit::{TestCertificate, process};
use std::io::{BufRead, BufReader, Lines};
use std::process::ChildStderr;
use std::time::Instant;

use crate::auth::{SECRET, keys, post, status, token};
use crate::directory::Directory;
use crate::reference::{self, ReferenceSetting};
use crate::support::{Running, TIMEOUT, program, until, unused_address};
use crate::tls;

type Log = Lines<BufReader<ChildStderr>>;

fn log_of(server: &mut Running) -> Log {
    BufReader::new(server.child.stderr.take().unwrap()).lines()
}

fn reload(server: &Running, log: &mut Log) -> String {
    server.signal("HUP");
    // Changes of the directory of apps have lines of their own.
    log.find_map(|line| line.ok().filter(|line| line.contains("the configuration ")))
        .expect("a line about the reload")
}

#[test]
fn signal_without_files_has_no_effect() {
    let mut server = Running::serve(&[]);
    let mut log = log_of(&mut server);
    let line = reload(&server, &mut log);
    assert!(line.contains("no setting names a file that can be reloaded"), "{line}");
    assert!(server.get("/healthz").starts_with("HTTP/1.1 200 "));
}

/// The server listens before it prints its addresses.
#[test]
fn signal_during_the_start_has_no_effect() {
    let address = unused_address();
    let mut child = program().args(["serve", "--listen", &address.to_string()]).spawn().unwrap();
    let deadline = Instant::now() + TIMEOUT;
    // The start of the handler of signals: the first thread of the program.
    let tasks = format!("/proc/{}/task", child.id());
    while std::fs::read_dir(&tasks).is_ok_and(|tasks| tasks.count() < 2) {
        assert!(Instant::now() < deadline);
    }
    until("the server listens", || {
        assert!(child.try_wait().unwrap().is_none(), "it has ended");
        assert!(process::signal(child.id(), "HUP"));
        std::net::TcpStream::connect(address).is_ok()
    });
    assert!(child.try_wait().unwrap().is_none());
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn files_of_flags_and_variables_are_read_again() {
    let directory = Directory::new();
    let made = TestCertificate::new();
    let (certificate, key) = directory.write_tls(&made);
    let secret = directory.write("secret", SECRET);
    let former = "k".repeat(32);
    let keys = directory.write("keys", &format!("a {former} publish\n"));
    let former_token = token(&secret, &["--publish", "a"]);
    let mut command = program();
    command.args(["serve", "--listen", "127.0.0.1:0", "--auth-secret-file", &secret]);
    let mut plain = Running::start(command.env("SINEWS_API_KEYS_FILE", &keys));
    let flags = ["--tls-certificate", &certificate, "--tls-key", &key];
    let mut encrypted = Running::serve(&flags);
    let (mut plain_log, mut encrypted_log) = (log_of(&mut plain), log_of(&mut encrypted));
    assert_eq!(status(&post(&plain, "a", Some(&former_token))), "200");
    assert!(tls::get(&encrypted, "localhost", &[&made]).is_ok());

    directory.write("secret", &SECRET.replace('0', "x"));
    let next = "n".repeat(32);
    directory.write("keys", &format!("a {next} publish\n"));
    let line = reload(&plain, &mut plain_log);
    assert!(line.contains(&format!("--auth-secret-file {secret}")), "{line}");
    assert!(line.contains(&format!("SINEWS_API_KEYS_FILE {keys}")), "{line}");
    assert_eq!(status(&post(&plain, "a", Some(&former_token))), "401");
    assert_eq!(status(&post(&plain, "a", Some(&token(&secret, &["--publish", "a"])))), "200");
    for (key, expected) in [(&former, "401"), (&next, "200")] {
        let head = format!("POST /api/v1/publish HTTP/1.1\r\nX-API-Key: {key}");
        assert_eq!(status(&plain.request(&head, r#"{"topic":"a","data":1}"#)), expected);
    }

    let renewed = TestCertificate::new();
    directory.write("a.pem", &renewed.pem());
    directory.write("a.key", &renewed.key_pem());
    let line = reload(&encrypted, &mut encrypted_log);
    assert!(line.contains(&format!("--tls-certificate {certificate}, --tls-key {key}")), "{line}");
    assert!(tls::get(&encrypted, "localhost", &[&renewed]).is_ok());
    directory.write("a.key", "no key");
    assert!(reload(&encrypted, &mut encrypted_log).contains("not applied"));
    assert!(tls::get(&encrypted, "localhost", &[&renewed]).is_ok(), "the server runs with the former key");
}

#[test]
fn changed_file_that_is_read_at_the_start_needs_a_restart() {
    let directory = Directory::new();
    let password = directory.write("password", "one");
    let broker = format!("nats://ann@{}", unused_address());
    let mut server = Running::serve(&["--cluster", &broker, "--cluster-password-file", &password]);
    let mut log = log_of(&mut server);
    assert!(!reload(&server, &mut log).contains("restart"));
    directory.write("password", "two");
    let line = reload(&server, &mut log);
    assert!(line.ends_with("this needs a restart: cluster.password_file"), "{line}");
}

/// Content of the file that a setting names, or of a file in its directory.
fn content(name: &str, made: &TestCertificate) -> String {
    let read = |name| std::fs::read_to_string(keys(name)).unwrap();
    match name {
        "auth.secret_file"
        | "hooks.signing_key_file"
        | "webhook.*.secret_file"
        | "pusher.app[].secret_file"
        | "cluster.password_file"
        | "streams.store_password_file" => SECRET.to_owned(),
        "auth.public_key_file" => read("rsa.pub.pem"),
        "auth.jwks_file" => read("jwks.json"),
        "api.keys_file" => format!("a {SECRET} publish\n"),
        "auth.jwks_ca_file"
        | "hooks.ca_file"
        | "webhook.*.ca_file"
        | "pusher.app[].webhook_ca_file"
        | "tls.certificate" => made.pem(),
        "tls.key" => made.key_pem(),
        "pusher.apps_directory" => "id = \"1\"\nkey = \"k\"\nsecret = \"s\"\n".to_owned(),
        _ => panic!("a content for the file of {name}"),
    }
}

#[test]
fn each_file_of_a_setting_is_read_again_or_its_change_needs_a_restart() {
    let made = TestCertificate::new();
    let has_store = cfg!(feature = "nats");
    let settings = reference::settings();
    // A directory whose change needs a restart has data of the server.
    let has_content =
        |setting: &&ReferenceSetting| setting.is_file() || setting.is_directory() && setting.reloads;
    let files = settings.iter().filter(has_content);
    for setting in files.filter(|setting| has_store || !setting.key.starts_with("store_")) {
        let (name, directory) = (&*setting.name, Directory::new());
        let good = content(name, &made);
        let file = directory.write("file.toml", &good);
        let path = if setting.is_directory() { directory.path("") } else { file };
        let mut with = setting.with(&path);
        match name {
            "tls.certificate" => with[1].1 = directory.write("key", &made.key_pem()),
            "tls.key" => with[1].1 = directory.write("certificate", &made.pem()),
            _ => {}
        }
        let mut command = program();
        command.args(["serve", "--listen", "127.0.0.1:0"]);
        if setting.is_in_section() {
            command.arg("--config").arg(directory.write("sinews.toml", &setting.file(&with)));
        } else {
            command.args(setting.flags(&with));
        }
        let mut server = Running::start(&mut command);
        let mut log = log_of(&mut server);
        let mut reload_with = |content: &str| {
            directory.write("file.toml", content);
            reload(&server, &mut log)
        };
        let line = reload_with(&good);
        assert!(line.contains("read again") && line.contains(&path) == setting.reloads, "{name}: {line}");
        // An app may have any secret.
        let line = reload_with(if name.starts_with("pusher.app") { "" } else { "bad" });
        let expected =
            if setting.reloads { "not applied".to_owned() } else { format!("this needs a restart: {name}") };
        assert!(line.contains(&expected), "{name}: {line}");
        // The error names the file, its setting, or the table of the file of settings.
        let flag = format!("--{}", name.replace(['_', '.'], "-"));
        let table = setting.table.trim_end_matches(['*', '.', '[', ']']);
        let is_named = line.contains(&path)
            || if setting.is_in_section() { line.contains(table) } else { line.contains(&flag) };
        assert!(!setting.reloads || is_named, "{name}: {line}");
        let line = reload_with(&good);
        assert!(line.contains("read again") && !line.contains("restart"), "{name}: {line}");
    }
}
