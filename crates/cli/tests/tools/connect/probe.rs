//! `--probe`: names each fault that was found in widely used servers; scripts reproduce the faults.

use super::support::{Scripted, Server, Wire, run};

/// Waits until the given number of frames has arrived.
fn read_frame(wire: &mut Wire, frames: usize) {
    for _ in 0..frames {
        wire.frame();
    }
}

/// A server's behavior, the probe, and the expected violation.
struct Case {
    probe: &'static str,
    server: fn(&mut Wire),
    named: &'static str,
}

const fn case(probe: &'static str, server: fn(&mut Wire), named: &'static str) -> Case {
    Case { probe, server, named }
}

fn switches(wire: &mut Wire) {
    wire.switch("", b"");
    wire.drain();
}

fn takes_deflate(wire: &mut Wire) {
    wire.switch("Sec-WebSocket-Extensions: permessage-deflate\r\n", b"");
    wire.drain();
}

/// Disconnects without a Close after the first data.
fn drops(wire: &mut Wire) {
    wire.switch("", b"");
    assert!(std::io::Read::read(&mut wire.stream, &mut [0; 4096]).unwrap() > 0);
    leave(wire);
}

fn drops_after_two(wire: &mut Wire) {
    wire.switch("", b"");
    read_frame(wire, 2);
    leave(wire);
}

/// Drain remaining data, so that closing causes no reset.
fn leave(wire: &mut Wire) {
    wire.stream.shutdown(std::net::Shutdown::Write).unwrap();
    wire.drain();
}

fn empty_close(wire: &mut Wire) {
    wire.switch("", b"");
    read_frame(wire, 1);
    wire.write(b"\x88\x00");
}

fn echoes(wire: &mut Wire) {
    wire.switch("", b"");
    wire.echo();
}

fn merges(wire: &mut Wire) {
    wire.switch("", b"");
    read_frame(wire, 2);
    wire.write(b"\x82\x06onetwo");
    wire.drain();
}

fn merges_around_a_ping(wire: &mut Wire) {
    wire.switch("", b"");
    read_frame(wire, 3);
    wire.write(b"\x8a\x00\x81\x06onetwo");
    wire.drain();
}

fn answers_the_ping(wire: &mut Wire) {
    wire.switch("Sec-WebSocket-Extensions: permessage-deflate\r\n", b"");
    read_frame(wire, 1);
    wire.write(b"\x8a\x05hello");
    wire.drain();
}

fn inflates(wire: &mut Wire) {
    wire.switch("Sec-WebSocket-Extensions: permessage-deflate\r\n", b"");
    read_frame(wire, 2);
    wire.write(b"\x81\x08inflated");
    wire.drain();
}

/// Loses data received with the request.
fn forgets_what_came_early(wire: &mut Wire) {
    wire.frame();
    wire.switch("", b"");
    wire.echo();
}

/// Reads an unmasked frame as masked, and consumes the following bytes.
fn loses_its_place(wire: &mut Wire) {
    wire.switch("", b"");
    let mut frame = [0; 7];
    std::io::Read::read_exact(&mut wire.stream, &mut frame).unwrap();
    leave(wire);
}

/// Faults found by probing, with the server's behavior.
const CASES: &[Case] = &[
    case("only-a-key", switches, "RFC 6455 section 4.2.1 item 3"),
    case("only-a-key", switches, "RFC 6455 section 4.2.1 item 4"),
    case("only-a-key", switches, "RFC 6455 section 4.2.1 item 6"),
    case("version-8", switches, "RFC 6455 section 4.2.1 item 6"),
    case("key-not-base64", switches, "RFC 6455 section 4.2.1 item 5"),
    case("deflate-unknown-parameter", takes_deflate, "RFC 7692 section 7.1"),
    case("deflate-window-16", takes_deflate, "RFC 7692 section 7.1"),
    case("deflate-window-8", takes_deflate, "RFC 7692 section 7.1.2.1"),
    case("frame-behind-handshake", forgets_what_came_early, "RFC 6455 section 5.5.2"),
    case("unmasked-frame", loses_its_place, "RFC 6455 section 7.1.7"),
    case("length-in-16-bits", echoes, "RFC 6455 section 5.2: accepted"),
    case("length-in-64-bits", echoes, "RFC 6455 section 5.2: accepted"),
    case("text-then-binary", merges, "RFC 6455 section 5.4: accepted"),
    case("text-ping-text", merges_around_a_ping, "RFC 6455 section 5.4: accepted"),
    case("rsv1-on-ping", answers_the_ping, "RFC 7692 section 6: accepted"),
    case("rsv1-on-continuation", inflates, "RFC 7692 section 6: the connection lives on"),
    case("close-1012", empty_close, "RFC 6455 section 5.5.1: our Close with 1012"),
    case("close-1014", empty_close, "RFC 6455 section 5.5.1: our Close with 1014"),
    case("close-3000", empty_close, "RFC 6455 section 5.5.1: our Close with 3000"),
    case("close-of-one-byte", empty_close, "RFC 6455 section 7.4.1: the Close has no code"),
    case("close-1005", empty_close, "RFC 6455 section 7.4.1: the Close has no code"),
    case("close-1006", empty_close, "RFC 6455 section 7.4.1: the Close has no code"),
    case("close-1015", empty_close, "RFC 6455 section 7.4.1: the Close has no code"),
    case("close-2999", empty_close, "RFC 6455 section 7.4.1: the Close has no code"),
    case("close-5000", empty_close, "RFC 6455 section 7.4.1: the Close has no code"),
    case("close-reason-not-utf8", empty_close, "RFC 6455 section 7.4.1: the Close has no code"),
    case("text-not-utf8", drops, "RFC 6455 section 7.1.7: dropped"),
    case("oversize", drops, "RFC 6455 section 7.1.7: dropped"),
    case("ping-of-126", drops, "RFC 6455 section 7.1.7: dropped"),
    case("length-top-bit", drops, "RFC 6455 section 7.1.7: dropped"),
    case("rsv1-without-extension", drops, "RFC 6455 section 7.1.7: dropped"),
    case("text-inside-text", drops_after_two, "RFC 6455 section 7.1.7: dropped"),
    case("bare-continuation", drops, "RFC 6455 section 7.1.7: dropped"),
    case("no-host", switches, "RFC 6455 section 4.2.1 item 2"),
];

#[test]
fn every_known_fault_is_named() {
    for Case { probe, server, named } in CASES {
        let server = Scripted::serve(*server);
        let ran = run(&[&format!("--probe={probe}"), "--probe-wait", "3s", &server.url], "");
        let shown = ran.text();
        assert!(shown.contains(&format!("FAULT {probe}\n")), "{probe}: {ran:?}");
        let named = if named.contains(": ") { (*named).to_owned() } else { format!("{named}: ") };
        assert!(shown.contains(&format!("    ! {named}")), "{probe}: {named} in {shown}");
        // An unsent Close cannot lack an answer.
        assert!(!shown.contains("our Close is not answered"), "{probe}: {shown}");
        assert!(ran.code == 5 && ran.stderr.contains("1 violation"), "{probe}: {ran:?}");
        server.join();
    }
}

#[test]
fn sinews_server_passes_all_probes() {
    let server = Server::start(&["--echo", "--deflate"]);
    let ran = run(&["--probe", &server.url], "");
    assert_eq!(ran.fine().lines().filter(|line| !line.starts_with("ok ")).count(), 1, "{}", ran.text());
    assert!(ran.text().ends_with(" faults sent, 0 handled incorrectly\n"), "{}", ran.text());
}

#[test]
fn probes_are_selected_by_name() {
    let list = run(&["--probe=list", "ws://localhost/"], "");
    for Case { probe, .. } in CASES {
        assert!(list.fine().lines().any(|line| line == *probe), "{probe}");
    }
    let ran = run(&["--probe=nothing", "ws://localhost/"], "");
    assert!(ran.code == 1 && ran.stderr.contains("unknown probe \"nothing\""), "{ran:?}");
}
