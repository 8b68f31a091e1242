//! `--probe`: client faults, one connection per fault, and the server's expected reactions.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::sleep;

use super::violation::Violation;
use crate::connect::command;
use crate::connect::input::InputEvent;

/// A fault to send.
pub(crate) struct Probe {
    pub(crate) name: &'static str,
    /// Handshake headers to replace, or to omit.
    pub(crate) headers: &'static [(&'static str, &'static str)],
    /// Sends a ping in the request's segment.
    pub(crate) early_ping: bool,
    /// Console lines; `/wait` pauses for a moment.
    pub(crate) lines: &'static [&'static str],
    /// Expected reason to end the connection, if the frames alone do not violate a rule.
    pub(crate) expected: Option<(&'static str, &'static str, &'static [u16])>,
}

/// Longer than an outstanding pong takes.
const MOMENT: Duration = Duration::from_millis(500);
/// Payload for the ping after the request.
pub(crate) const EARLY: &[u8] = b"behind the handshake";

const DEFLATE: &[(&str, &str)] = &[("Sec-WebSocket-Extensions", "permessage-deflate")];

const fn frames(name: &'static str, lines: &'static [&'static str]) -> Probe {
    Probe { name, headers: &[], early_ping: false, lines, expected: None }
}

const fn request(name: &'static str, headers: &'static [(&'static str, &'static str)]) -> Probe {
    Probe { name, headers, early_ping: false, lines: &[], expected: None }
}

/// All probes, in the order of RFC 6455.
pub(crate) const PROBES: &[Probe] = &[
    request("only-a-key", &[("Upgrade", ""), ("Connection", ""), ("Sec-WebSocket-Version", "")]),
    request("no-host", &[("Host", "")]),
    request("version-8", &[("Sec-WebSocket-Version", "8")]),
    request("key-not-base64", &[("Sec-WebSocket-Key", "!not base64, 24 letters!")]),
    request("deflate-unknown-parameter", &[("Sec-WebSocket-Extensions", "permessage-deflate; unknown")]),
    request(
        "deflate-window-16",
        &[("Sec-WebSocket-Extensions", "permessage-deflate; server_max_window_bits=16")],
    ),
    request(
        "deflate-window-8",
        &[("Sec-WebSocket-Extensions", "permessage-deflate; server_max_window_bits=8")],
    ),
    Probe { early_ping: true, ..frames("frame-behind-handshake", &["/wait", "/ping later"]) },
    frames("unmasked-frame", &["/frame text nomask hello"]),
    frames("length-in-16-bits", &["/frame text len16 hi"]),
    frames("length-in-64-bits", &["/frame text len64 hi"]),
    frames("length-top-bit", &["/raw 81 ff 80 00 00 00 00 00 00 02 00 00 00 00 68 69"]),
    frames("text-then-binary", &["/frame text nofin one", "/frame binary two"]),
    frames("text-inside-text", &["/frame text nofin one", "/frame text nofin two", "/frame cont three"]),
    frames("text-ping-text", &["/frame text nofin one", "/ping", "/frame text two"]),
    frames("bare-continuation", &["/frame cont hello"]),
    Probe { headers: DEFLATE, ..frames("rsv1-on-ping", &["/frame ping rsv1 hello", "/frame text plain"]) },
    Probe {
        headers: DEFLATE,
        ..frames("rsv1-on-continuation", &["/frame text nofin one", "/frame cont rsv1 two"])
    },
    frames("rsv1-without-extension", &["/frame text rsv1 hello"]),
    frames("rsv2", &["/frame text rsv2 hello"]),
    frames("reserved-opcode", &["/frame op=3 hello"]),
    frames("reserved-control-opcode", &["/frame op=11 hello"]),
    frames("fragmented-ping", &["/frame ping nofin hello"]),
    frames("ping-of-126", &[PING_126]),
    frames("text-not-utf8", &["/frame text hex 68 ff 69"]),
    frames("text-not-utf8-across-fragments", &["/frame text nofin hex 68 ce", "/frame cont hex 69 6a 6b"]),
    Probe {
        expected: Some(("RFC 6455 section 7.4.1", "a frame of 2^62 bytes is declared", &[1009, 1002])),
        ..frames("oversize", &["/raw 82 ff 40 00 00 00 00 00 00 00 00 00 00 00 68 69"])
    },
    frames("close-1012", &["/close 1012"]),
    frames("close-1014", &["/close 1014"]),
    frames("close-3000", &["/close 3000"]),
    frames("close-of-one-byte", &["/frame close hex 03"]),
    frames("close-1005", &["/close 1005"]),
    frames("close-1006", &["/close 1006"]),
    frames("close-1015", &["/close 1015"]),
    frames("close-2999", &["/close 2999"]),
    frames("close-5000", &["/close 5000"]),
    frames("close-reason-not-utf8", &["/frame close hex 03 e8 ff"]),
];

/// 126 bytes, split for the line length.
const PING_126: &str = concat!(
    "/frame ping ",
    "123456789012345678901234567890123456789012345678901234567890123",
    "456789012345678901234567890123456789012345678901234567890123456"
);

impl Probe {
    pub(crate) fn expected(&self) -> Option<Violation> {
        self.expected.map(|(section, description, codes)| Violation::fatal(section, description, codes))
    }

    /// Whether the request alone contains the fault.
    pub(crate) fn is_request(&self) -> bool {
        self.lines.is_empty()
    }

    /// The lines as input.
    pub(crate) fn input(&'static self) -> mpsc::Receiver<InputEvent> {
        let (sender, input) = mpsc::channel(1);
        tokio::spawn(async move {
            for line in self.lines {
                if *line == "/wait" {
                    sleep(MOMENT).await;
                    continue;
                }
                let command = command::parse(line, true).map_or_else(InputEvent::Failed, InputEvent::Command);
                if sender.send(command).await.is_err() {
                    return;
                }
            }
            let _ = sender.send(InputEvent::End).await;
        });
        input
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::command::ConsoleCommand;

    #[test]
    fn probe_lines_parse_and_names_are_unique() {
        for (at, probe) in PROBES.iter().enumerate() {
            assert!(PROBES[..at].iter().all(|other| other.name != probe.name), "{}", probe.name);
            for line in probe.lines.iter().filter(|line| **line != "/wait") {
                let command =
                    command::parse(line, true).unwrap_or_else(|why| panic!("{}: {why}", probe.name));
                assert!(!matches!(command, ConsoleCommand::Text(_)), "{line}");
                if let (ConsoleCommand::Frame(frame), "ping-of-126") = (command, probe.name) {
                    assert_eq!(frame.payload.len(), 126);
                }
            }
        }
    }
}
