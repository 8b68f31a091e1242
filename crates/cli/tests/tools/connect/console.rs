//! The console, in a pseudo terminal.

use std::process::Command;

use rexpect::session::{PtySession, spawn_command};

use super::support::{Scripted, Server, TIMEOUT, connect};
use crate::directory::Directory;

/// Starts the program in a terminal; afterwards the shell prints the exit code and the terminal mode.
fn start(arguments: &[&str]) -> PtySession {
    let program = connect(&[]);
    let mut command = Command::new("sh");
    command.args(["-c", "\"$@\"; echo \"code $?\"; stty -a | tr ' ' '\\n' | grep '^-*icanon'"]);
    command.arg("sh").arg(program.get_program()).arg("connect").args(arguments);
    for (name, _) in program.get_envs() {
        command.env_remove(name);
    }
    command.env("TERM", "xterm").env("LC_ALL", "C.UTF-8");
    let limit = u64::try_from(TIMEOUT.as_millis()).unwrap();
    spawn_command(command, Some(limit)).unwrap()
}

/// Types keys without a line end.
fn type_in(console: &mut PtySession, keys: &str) {
    console.send(keys).unwrap();
    console.flush().unwrap();
}

/// Asserts the exit code, and that the terminal mode is restored.
fn assert_ended(console: &mut PtySession, code: i32) {
    console.exp_string(&format!("code {code}")).unwrap();
    let rest = console.exp_eof().unwrap();
    let modes: Vec<&str> = rest.split_whitespace().collect();
    assert!(modes.contains(&"icanon"), "{rest:?}");
}

#[test]
fn terminal_sends_and_shows_messages() {
    let (server, directory) = (Server::echo(), Directory::new());
    let history = directory.path("history");
    let mut console = start(&["--history", &history, &server.url]);
    console.exp_string("* connected to ws://").unwrap();
    console.send_line("hello").unwrap();
    console.exp_string("< hello").unwrap();
    console.send_line("/hex 00 ff 41").unwrap();
    console.exp_string("< 3 bytes").unwrap();
    console.exp_string("|..A|").unwrap();
    console.send_line("//slash").unwrap();
    console.exp_string("< /slash").unwrap();
    console.send_line("/ping").unwrap();
    console.exp_regex("\\* pong \"ping 1\" after [0-9.]+ ms").unwrap();
    console.send_line("/nothing").unwrap();
    console.exp_string("unknown command /nothing").unwrap();
    console.send_line("/help").unwrap();
    console.exp_string("/close [CODE [REASON]]").unwrap();
    // A line is edited: back by one, and another letter before it.
    type_in(&mut console, "wold\x1b[D\x1b[Dr\r");
    console.exp_string("< world").unwrap();
    console.send_line("/close 4001 bye").unwrap();
    console.exp_string("* closed by this end with 4001").unwrap();
    assert_ended(&mut console, 0);

    // The history of the first run is available in the second.
    let mut console = start(&["--history", &history, &server.url]);
    console.exp_string("* connected to ws://").unwrap();
    console.exp_string("> ").unwrap();
    type_in(&mut console, "\x1b[A\x1b[A\r");
    console.exp_string("< world").unwrap();
    // Ctrl-D.
    console.send_control('d').unwrap();
    console.exp_string("* closed by this end with 1000").unwrap();
    assert_ended(&mut console, 0);
}

#[test]
fn received_messages_appear_above_the_edited_line() {
    let (sender, receiver) = std::sync::mpsc::channel();
    let server = Scripted::serve(move |wire| {
        wire.switch("", b"");
        receiver.recv().unwrap();
        wire.write(b"\x81\x04news\x81\x05\x1b[2Jx");
        while let Some((first, payload)) = wire.frame() {
            match first {
                0x81 => wire.write([&[0x88, payload.len() as u8 + 2, 0x0f, 0xa0], &payload[..]].concat()),
                _ => return,
            }
        }
    });
    let mut console = start(&["--history", "none", &server.url]);
    console.exp_string("> ").unwrap();
    type_in(&mut console, "half a li");
    console.exp_string("half a li").unwrap();
    sender.send(()).unwrap();
    console.exp_string("< news").unwrap();
    // Received text cannot control the terminal.
    console.exp_string("< \\u{1b}[2Jx").unwrap();
    // The edited line is redrawn and continues.
    console.exp_string("half a li").unwrap();
    type_in(&mut console, "ne\r");
    console.exp_string("* closed by the peer with 4000: half a line").unwrap();
    assert_ended(&mut console, 4);
    server.join();
}

#[test]
fn console_may_act_as_server() {
    let mut console = start(&["--history", "none", "--listen", "127.0.0.1:0"]);
    let (_, url) = console.exp_regex("ws://127.0.0.1:[0-9]+/").unwrap();
    let mut client = connect(&["--count", "1", "--wait", "1h", &url]).spawn().unwrap();
    std::io::Write::write_all(client.stdin.as_mut().unwrap(), b"hello\n").unwrap();
    console.exp_string("#1 127.0.0.1:").unwrap();
    console.exp_string("#1 < hello").unwrap();
    console.send_line("/to 1 welcome").unwrap();
    assert_eq!(client.wait_with_output().unwrap().stdout, b"welcome\n");
    console.exp_string("#1 closed by the peer with 1000").unwrap();
    console.send_line("/peers").unwrap();
    console.exp_string("no clients").unwrap();
    // Ctrl-C.
    console.send_control('c').unwrap();
    assert_ended(&mut console, 0);
}

#[test]
fn console_inspects_frames() {
    let server = Server::echo();
    let mut console = start(&["--history", "none", "--inspect", &server.url]);
    console.exp_string("< HTTP/1.1 101").unwrap();
    console.exp_string("> ").unwrap();
    console.send_line("/frame text nomask hello").unwrap();
    console.exp_string("(ours) RFC 6455 section 5.1").unwrap();
    console.exp_string("1002 client frame without mask").unwrap();
    console.exp_string("transport ended").unwrap();
    assert_ended(&mut console, 4);
}
