//! Apps of the Pusher protocol in a directory that changes while the server runs.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use sinews_testkit::{Frame, Reply, until_equal};

use crate::config::Directory;
use crate::support::{Running, Socket, fails, program};

/// Limit of each wait.
const LIMIT: Duration = Duration::from_secs(60);

fn app(id: &str, key: &str) -> String {
    format!("id = \"{id}\"\nkey = \"{key}\"\nsecret = \"hidden\"\n")
}

/// Starts a server with the apps of a directory, and returns the lines of its log.
fn serve(directory: &Directory, more: &[&str]) -> (Running, Receiver<String>) {
    let mut server = Running::serve(&[&["--pusher-apps-directory", &directory.path("")], more].concat());
    let log = BufReader::new(server.child.stderr.take().unwrap());
    let (sender, lines) = channel();
    thread::spawn(move || {
        // The test may have ended.
        let _ = log.lines().map_while(Result::ok).try_for_each(|line| sender.send(line));
    });
    (server, lines)
}

/// Connects to an app.
///
/// # Errors
/// The close code, or 404 without apps.
fn connect(server: &Running, key: &str) -> Result<Socket, u16> {
    let Ok(mut socket) = server.try_websocket(&format!("/app/{key}?protocol=7"), "") else { return Err(404) };
    loop {
        match socket.next() {
            Some(Reply::Close(Some(code), _)) => return Err(code),
            Some(Reply::Message(_, text))
                if text.windows(22).any(|part| part == b"connection_established") =>
            {
                return Ok(socket);
            }
            Some(_) => {}
            None => panic!("the connection ended without a Close"),
        }
    }
}

/// Connects until the result is this one.
fn wait_for(server: &Running, key: &str, expected: Result<(), u16>) {
    until_equal(key, expected, || connect(server, key).map(drop));
}

/// Reads the log up to a line with this text.
fn wait_for_line(lines: &Receiver<String>, text: &str) -> String {
    let deadline = Instant::now() + LIMIT;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let line = lines.recv_timeout(left).unwrap_or_else(|_| panic!("no line of the log with {text}"));
        if line.contains(text) {
            return line;
        }
    }
}

/// Writes a file beside its target, and renames it.
fn replace(directory: &Directory, name: &str, text: &str) {
    let next = directory.write(&format!(".{name}.next"), text);
    fs::rename(next, directory.path(name)).unwrap();
}

#[test]
fn apps_are_added_changed_and_removed_without_a_signal() {
    let directory = Directory::new();
    let (server, _log) = serve(&directory, &[]);
    assert_eq!(connect(&server, "a").map(drop), Err(404), "no apps");
    directory.write("ignored.toml~", "no = TOML");
    directory.write(".ignored.toml", "no = TOML");
    directory.write("a.toml", &app("1", "a"));
    wait_for(&server, "a", Ok(()));
    let mut open = connect(&server, "a").ok().unwrap();
    replace(&directory, "b.toml", &app("2", "b"));
    wait_for(&server, "b", Ok(()));
    replace(&directory, "b.toml", &app("2", "c"));
    wait_for(&server, "c", Ok(()));
    assert_eq!(connect(&server, "b").map(drop), Err(4001));
    open.send(&Frame::text(r#"{"event":"pusher:ping","data":{}}"#));
    assert!(matches!(open.next(), Some(Reply::Message(..))), "other apps remain");

    fs::remove_file(directory.path("a.toml")).unwrap();
    wait_for(&server, "a", Err(4001));
    open.send(&Frame::text(r#"{"event":"pusher:ping","data":{}}"#));
    let code = std::iter::from_fn(|| open.next()).find_map(|reply| reply.close_code());
    assert_eq!(code, Some(4001), "an open connection follows");
    wait_for(&server, "c", Ok(()));
}

#[test]
fn replaced_links_of_a_mounted_secret_are_followed() {
    let directory = Directory::new();
    for (version, key) in [("..1", "a"), ("..2", "b")] {
        fs::create_dir(directory.path(version)).unwrap();
        directory.write(&format!("{version}/app.toml"), &app("1", key));
    }
    symlink("..1", directory.path("..data")).unwrap();
    symlink("..data/app.toml", directory.path("app.toml")).unwrap();
    let (server, _log) = serve(&directory, &[]);
    wait_for(&server, "a", Ok(()));
    symlink("..2", directory.path("..next")).unwrap();
    fs::rename(directory.path("..next"), directory.path("..data")).unwrap();
    wait_for(&server, "b", Ok(()));
    assert_eq!(connect(&server, "a").map(drop), Err(4001));
}

#[test]
fn faulty_file_is_logged_once_and_the_former_apps_remain() {
    let directory = Directory::new();
    directory.write("a.toml", &app("1", "a"));
    let (server, log) = serve(&directory, &[]);
    // Each at once, since half of a file would be another fault.
    let faulty = directory.path("b.toml");
    replace(&directory, "b.toml", &format!("{}client_event = true\n", app("2", "b")));
    let line = wait_for_line(&log, "were not applied");
    assert!(
        line.contains(&format!("{faulty}:4: unknown key client_event; did you mean client_events?")),
        "{line}"
    );
    assert_eq!((connect(&server, "a").map(drop), connect(&server, "b").map(drop)), (Ok(()), Err(4001)));

    // A duplicate is another fault.
    replace(&directory, "b.toml", &app("1", "b"));
    let line = wait_for_line(&log, "were not applied");
    let first = directory.path("a.toml");
    assert!(line.contains(&format!("{faulty}:1: ")) && line.contains(&format!("at {first}:1")), "{line}");
    assert_eq!((connect(&server, "a").map(drop), connect(&server, "b").map(drop)), (Ok(()), Err(4001)));

    replace(&directory, "b.toml", &app("2", "b"));
    wait_for(&server, "b", Ok(()));
    assert_eq!(connect(&server, "a").map(drop), Ok(()));
    server.signal("TERM");
    let rest: Vec<String> = log.iter().collect();
    assert!(rest.iter().any(|line| line.contains("the apps have been read again")), "{rest:?}");
    assert!(!rest.iter().any(|line| line.contains("were not applied")), "{rest:?}");
}

/// A line of the configuration file that is not in force does not come into force with an app.
#[test]
fn signal_reloads_the_directory_and_the_file_and_a_change_of_the_directory_only_apps() {
    let (directory, configuration) = (Directory::new(), Directory::new());
    let file = configuration.write("sinews.toml", "");
    let (server, log) = serve(&directory, &["--config", &file]);
    configuration.write("sinews.toml", &format!("[[pusher.app]]\n{}", app("1", "a")));
    directory.write("b.toml", &app("2", "b"));
    wait_for(&server, "b", Ok(()));
    assert_eq!(connect(&server, "a").map(drop), Err(4001));
    server.signal("HUP");
    wait_for_line(&log, "the configuration has been read again");
    assert_eq!((connect(&server, "a").map(drop), connect(&server, "b").map(drop)), (Ok(()), Ok(())));
    directory.write("c.toml", &app("3", "c"));
    wait_for(&server, "c", Ok(()));
    assert_eq!((connect(&server, "a").map(drop), connect(&server, "b").map(drop)), (Ok(()), Ok(())));
}

#[test]
fn directory_of_the_file_is_watched_from_a_reload_on() {
    let (directory, configuration) = (Directory::new(), Directory::new());
    let file = configuration.write("sinews.toml", "");
    let server = Running::serve(&["--config", &file]);
    directory.write("a.toml", &app("1", "a"));
    configuration.write("sinews.toml", &format!("[pusher]\napps_directory = {:?}\n", directory.path("")));
    server.signal("HUP");
    wait_for(&server, "a", Ok(()));
    directory.write("b.toml", &app("2", "b"));
    wait_for(&server, "b", Ok(()));
}

#[test]
fn faults_of_the_directory_are_found_at_the_start_and_by_the_check() {
    let (directory, configuration) = (Directory::new(), Directory::new());
    let path = directory.path("");
    let table = format!("[[pusher.app]]\n{}", app("1", "a"));
    let file = configuration.write("sinews.toml", &format!("[pusher]\napps_directory = {path:?}\n{table}"));
    let fault = |expected: String| {
        let message = fails(program().args(["config", "check", &file]));
        assert!(message.starts_with(&format!("sinews: {expected}")), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
        assert_eq!(fails(program().args(["serve", "--config", &file])), message);
    };
    let app_file = directory.write("b.toml", &app("2", "a"));
    fault(format!("{app_file}:1: pusher.app: the key \"a\" is also that of the app at {file}:3"));
    directory.write("b.toml", "id = \"2\"\nkeys = \"a\"\n");
    fault(format!("{app_file}:2: unknown key keys; did you mean key?"));
    fs::remove_dir_all(&path).unwrap();
    fault(format!("{file}:2: pusher.apps_directory: {path}: "));
}

#[test]
fn new_app_is_written_into_the_directory_and_served() {
    let directory = Directory::new();
    let (server, _log) = serve(&directory, &[]);
    let new = |id: &str| {
        let mut command = program();
        command.args(["app", "new", "a \"shop\"", "--id", id, "--directory", &directory.path("")]);
        command
    };
    let output = new("7").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let key = text.lines().find_map(|line| line.strip_prefix("PUSHER_APP_KEY=")).unwrap();
    wait_for(&server, key, Ok(()));
    let path = directory.path("7.toml");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let written = fs::read(&path).unwrap();
    let message = fails(&mut new("7"));
    assert!(message.starts_with(&format!("sinews: --directory: {path}: ")), "{message}");
    assert_eq!(fs::read(&path).unwrap(), written);
}

#[test]
fn features_are_those_of_the_file() {
    let directory = Directory::new();
    let features = "presence_channels = false\ncache_channels = false\nusers = false\n";
    directory.write("all.toml", &app("1", "all"));
    directory.write("none.toml", &(app("2", "none") + features));
    let (server, _log) = serve(&directory, &[]);
    let answer = |key: &str, event: &str, data: &str| {
        let mut socket = connect(&server, key).unwrap();
        socket.send(&Frame::text(format!("{{\"event\":\"pusher:{event}\",\"data\":{data}}}")));
        match socket.next() {
            Some(Reply::Message(_, text)) => String::from_utf8(text).unwrap(),
            reply => panic!("{reply:?}"),
        }
    };
    for (event, data, with, without) in [
        ("subscribe", r#"{"channel":"presence-a"}"#, "AuthError", "FeatureDisabled"),
        ("subscribe", r#"{"channel":"cache-a"}"#, "subscription_succeeded", "FeatureDisabled"),
        ("signin", r#"{"auth":"","user_data":"{}"}"#, "the signature of the user", "the app has no users"),
    ] {
        for (key, expected) in [("all", with), ("none", without)] {
            let answer = answer(key, event, data);
            assert!(answer.contains(expected), "{key}: {answer}");
        }
    }
}
