//! No output has the content of a secret, whatever is wrong with it: every setting that may have a secret gets malformed content,
//! every other one a URL with a password, and the log, errors, `/metrics` and `sinews config check` are searched for it.

use std::fs::File;
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use sinews_testkit::{exchange, last_get};

use crate::directory::Directory;
use crate::reference::{self, ReferenceSetting};
use crate::support::{TIMEOUT, program};

/// It stands for a secret.
const MARKER: &str = "Xy7MARKERq9";

/// Files that one process checks.
const FILES_AT_A_TIME: usize = 50;

/// Contents of a file.
fn contents() -> Vec<String> {
    let long = format!("{MARKER}{}", "a".repeat(64));
    vec![
        MARKER.to_owned(),
        format!("{long}\n{long}\n"),
        format!("{long} name publish\n"),
        format!("name publish {long}\n"),
        format!("name {long} publish:{MARKER}..\n"),
        format!("name {long} publish\nname {long} {MARKER}\n"),
        format!("-----BEGIN PRIVATE KEY----- {MARKER} -----END PRIVATE KEY-----"),
        format!("-----BEGIN PRIVATE KEY-----\n{MARKER}\n"),
        format!("-----BEGIN PRIVATE KEY-----\n{MARKER}!!\n-----END PRIVATE KEY-----\n"),
        format!("-----BEGIN PRIVATE KEY-----\n{MARKER}\n-----END {MARKER}-----\n"),
        format!("-----BEGIN CERTIFICATE-----\n{MARKER}$\n-----END CERTIFICATE-----\n"),
        format!("-----BEGIN CERTIFICATE-----\n{MARKER}A=\n-----END CERTIFICATE-----\n"),
        format!("{{\"keys\":\"{MARKER}\"}}"),
        format!("{{\"keys\":[{{\"kty\":\"{MARKER}\",\"k\":\"{MARKER}\"}}]}}"),
        format!("{{\"keys\":[{{\"kty\":\"oct\",\"kid\":[\"{MARKER}\"],\"k\":\"{MARKER}\"}}]}}"),
        format!("{{\"{MARKER}"),
        format!("secret = {MARKER}\n"),
        format!("\u{0}{MARKER}"),
    ]
}

/// Contents of a file with an app.
fn apps() -> Vec<String> {
    let app = |id: &str, rest: &str| format!("id = {id}\nkey = \"k\"\n{rest}\n");
    vec![
        app("1", &format!("secret = \"{MARKER}\"")),
        app("\"1\"", &format!("secret = [\"{MARKER}\"]")),
        app("\"1\"", &format!("secret = \"{MARKER}\"\nunknown = \"{MARKER}\"")),
        app("\"1\"", &format!("secret = \"s\"\nmore_keys = [\"{MARKER}\"]")),
        app("\"1\"", &format!("secret = \"s\"\nwebhooks = [\"http://u:{MARKER}@a b/\"]")),
    ]
}

/// Values of a URL or a secret.
fn values() -> Vec<String> {
    let hosts = ["127.0.0.1:1/", "127.0.0.1:1/a?b=c", "ho st/", "127.0.0.1:x", ""];
    let mut all =
        vec![MARKER.to_owned(), format!("a={MARKER}"), format!("{MARKER}://a"), format!("//{MARKER}@a")];
    for scheme in ["http", "https", "ftp", "nats", "redis", "rediss", "kafka"] {
        all.push(format!("{scheme}://ann:{MARKER}"));
        all.push(format!("{scheme}://:{MARKER}?x@127.0.0.1:1"));
        all.push(format!("{scheme}://:{MARKER}/x@127.0.0.1:1"));
        all.push(format!("{scheme}://:{MARKER}#x@127.0.0.1:1"));
        all.push(format!("{scheme}://127.0.0.1:1/?maxlen={MARKER}"));
        all.push(format!("{scheme}://127.0.0.1:1/?{MARKER}"));
        all.extend(hosts.iter().map(|host| format!("{scheme}://ann:{MARKER}@{host}")));
        all.push(format!("issuer={scheme}://ann:{MARKER}@127.0.0.1:1"));
    }
    all
}

/// The output of the server: until it ends, or after a reload and the metrics.
fn run(directory: &Directory, mut command: Command, id: usize) -> String {
    let [out, err] = ["out", "err"].map(|name| directory.path(&format!("{id}.{name}")));
    let file = |path: &str| Stdio::from(File::create(path).unwrap());
    let mut child = command.stdout(file(&out)).stderr(file(&err)).spawn().unwrap();
    let read = |path: &str| String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned();
    let process = child.id().to_string();
    let signal = |name: &str| {
        let _ = Command::new("kill").args(["-s", name, &process]).status();
    };
    let (deadline, mut metrics, mut is_signalled) = (Instant::now() + TIMEOUT, String::new(), false);
    while child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "the server does not stop: {}", read(&err));
        let table = read(&out);
        if table.contains("Ctrl-C stops.") && !is_signalled {
            let address = table.split_once("://").unwrap().1.split('/').next().unwrap();
            if !table.contains("https://") {
                metrics = get_metrics(address);
            }
            signal("HUP");
            is_signalled = true;
        }
        if is_signalled && ["read again", "not applied"].iter().any(|words| read(&err).contains(words)) {
            signal("TERM");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    format!("{}{}{metrics}", read(&out), read(&err))
}

fn get_metrics(address: &str) -> String {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    exchange(stream, &last_get("/metrics")).unwrap()
}

/// The lines of an output with a part of the secret.
fn leaks(output: &str, case: &str) -> Vec<String> {
    // Bytes of the secret as decimal or hexadecimal numbers, too.
    let bytes = &MARKER.as_bytes()[3..9];
    let decimal: Vec<String> = bytes.iter().map(u8::to_string).collect();
    let hexadecimal: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let forms = [&MARKER[3..9], &decimal.join(", "), &hexadecimal.concat(), &hexadecimal.join(" ")];
    let has_secret = |line: &&str| forms.iter().any(|form| line.contains(form));
    output.lines().filter(has_secret).map(|line| format!("{case}: {line}")).collect()
}

fn assert_hidden(output: &str, case: &str) {
    assert_eq!(leaks(output, case), Vec::<String>::new());
}

#[test]
fn no_output_has_the_content_of_a_malformed_file_or_url() {
    let directory = Directory::new();
    let settings = reference::settings();
    let secret = settings.iter().filter(|setting| setting.may_have_secret()).count();
    assert!((38..settings.len() / 2).contains(&secret), "{secret}");
    let mut cases = Vec::new();
    for setting in &settings {
        let values = if setting.is_directory() {
            let write = |(at, content): (usize, String)| {
                let path = directory.path(&format!("{}{at}", setting.name));
                std::fs::create_dir(&path).unwrap();
                std::fs::write(format!("{path}/a.toml"), content).unwrap();
                path
            };
            contents().into_iter().chain(apps()).enumerate().map(write).collect()
        } else if setting.is_file() {
            let write = |(at, content): (usize, String)| directory.write(&format!("content{at}"), &content);
            contents().into_iter().enumerate().map(write).collect()
        } else if setting.may_have_secret() {
            values()
        } else {
            vec![format!("https://ann:{MARKER}@127.0.0.1:1/"), format!("redis://:{MARKER}@127.0.0.1:1")]
        };
        cases.extend(values.into_iter().map(|value| (setting, value)));
    }
    let file = |at: usize| format!("{at}.toml");
    for (at, (setting, value)) in cases.iter().enumerate() {
        directory.write(&file(at), &setting.file(&setting.with(value)));
    }
    // The check of a file takes the errors of the start.
    for from in (0..cases.len()).step_by(FILES_AT_A_TIME) {
        let files = (from..cases.len().min(from + FILES_AT_A_TIME)).map(|at| directory.path(&file(at)));
        let output = program().args(["config", "check"]).args(files).output().unwrap();
        let output = [output.stdout, output.stderr].concat();
        assert_hidden(&String::from_utf8_lossy(&output), &format!("{} and the next", cases[from].0.name));
    }
    // Every seventh case also runs the server, by flags and by variables in turn.
    let cases = Mutex::new(cases.into_iter().enumerate().step_by(7));
    let found = Mutex::new(Vec::new());
    let next = || cases.lock().unwrap().next();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some((at, (setting, value))) = next() {
                    let leaks = leaks_of_server(&directory, at, setting, &value);
                    found.lock().unwrap().extend(leaks);
                }
            });
        }
    });
    assert_eq!(found.into_inner().unwrap(), Vec::<String>::new());
}

fn leaks_of_server(directory: &Directory, at: usize, setting: &ReferenceSetting, value: &str) -> Vec<String> {
    let case = format!("{} = {value:?}", setting.name);
    let with = setting.with(value);
    let mut command = program();
    command.args(["serve", "--listen", "127.0.0.1:0"]);
    if setting.is_in_section() {
        command.args(["--config", &directory.path(&format!("{at}.toml"))]);
    } else if at.is_multiple_of(2) {
        command.args(setting.flags(&with));
    } else {
        for (key, value) in &with {
            command.env(setting.variable(key), value);
        }
    }
    leaks(&run(directory, command, at), &case)
}

#[test]
fn no_output_has_the_content_of_a_malformed_configuration() {
    let directory = Directory::new();
    let secret = directory.write("secret", &format!("{MARKER}\n"));
    for text in [
        format!("[auth]\nsecret = {MARKER}\n"),
        format!("[auth]\nsecret = \"{MARKER}\n"),
        format!("[auth]\nsecret = '{MARKER}\n"),
        format!("[auth]\nsecret = \"{MARKER}\\q\"\n"),
        format!("[auth]\nsecret = [\"{MARKER}\"]\n"),
        format!("[auth]\nsecret = {{ a = \"{MARKER}\" }}\n"),
        format!("[auth]\nsecret \"{MARKER}\"\n"),
        format!("[api]\nkey = \"{MARKER}\"\n"),
        format!("[hooks]\nsigning_key = \"{MARKER}\"\n"),
        format!("[hooks]\nconnect = [\"http://u:{MARKER}@a/\"]\n"),
        format!("[namespace.a]\nrpc_hook = \"http://u:{MARKER}@a/\"\n"),
        format!("[webhook.a]\nurl = \"http://u:{MARKER}@a/\"\n"),
        format!("[webhook.a]\nurl = \"http://a/\"\nsecret = \"{MARKER}\"\n"),
        format!("[webhook.a]\nurl = \"http://a/\"\nsecret_file = {secret:?}\n"),
        format!("[[pusher.app]]\nid = \"1\"\nkey = \"k\"\nsecret = [\"{MARKER}\"]\n"),
        format!("[[pusher.app]]\nid = \"1\"\nkey = \"k\"\nsecret = \"s\"\nmore_keys = [\"{MARKER}\"]\n"),
        format!(
            "[[pusher.app]]\nid = \"1\"\nkey = \"k\"\nsecret = \"s\"\nwebhooks = [\"http://u:{MARKER}@a/\"]\n"
        ),
        format!(
            "[[pusher.app]]\nid = \"1\"\nkey = \"k\"\nsecret = \"s\"\nwebhooks = [\"http://a/\"]\n\
             webhook_headers = [\"{MARKER}\"]\n"
        ),
        format!(
            "[[pusher.app]]\nid = \"1\"\nkey = \"k\"\nsecret = \"s\"\nwebhooks = [\"http://a/\"]\n\
             webhook_headers = [\"Authorization: {MARKER}\\u0001\"]\n"
        ),
        format!("[cluster]\nurl = [\"nats://u:{MARKER}@a\"]\n"),
        format!("[streams]\nstore = \"nats://u:{MARKER}@a/b/c\"\n"),
        format!("origin = \"https://u:{MARKER}@a\"\n"),
        format!("listen = \"redis://:{MARKER}@a\"\n"),
    ] {
        let file = directory.write("sinews.toml", &text);
        let output = program().args(["config", "check", &file]).output().unwrap();
        assert!(!output.status.success(), "{text}");
        let output = [output.stdout, output.stderr].concat();
        assert_hidden(&String::from_utf8_lossy(&output), &text);
    }
}

#[test]
fn other_commands_and_the_help_do_not_show_passwords() {
    let url = format!("redis://:{MARKER}@127.0.0.1:1");
    let web = format!("ws://ann:{MARKER}@127.0.0.1:1/?token={MARKER}");
    let proxy = format!("http://ann:{MARKER}@127.0.0.1:1");
    for arguments in [
        &["nodes", &url][..],
        &["nodes", &format!("redis://ann:{MARKER}")],
        &["connect", &web],
        &["connect", &format!("ws://ann:{MARKER}@ho st/")],
        &["connect", &format!("ftp://ann:{MARKER}@a/")],
        &["connect", "--proxy", &proxy, "ws://127.0.0.1:1/"],
        &["connect", "--proxy", &format!("ftp://ann:{MARKER}@a"), "ws://127.0.0.1:1/"],
        &["bench", "--duration", "1s", &web],
        &["serve", "--help"],
        &["serve", "--threads", &proxy],
        &["serve", "--origin", &proxy],
        &["token", "inspect", MARKER],
    ] {
        let mut command = program();
        for name in ["HOOKS_CONNECT", "AUTH_JWKS_URL", "CLUSTER_URL", "STREAMS_STORE", "AUTH_SECRET"] {
            command.env(format!("SINEWS_{name}"), &proxy);
        }
        let output = command.args(arguments).output().unwrap();
        let output = [output.stdout, output.stderr].concat();
        assert_hidden(&String::from_utf8_lossy(&output), &format!("{arguments:?}"));
    }
}
