//! Sections 1 to 5: frames, pings, reserved bits, opcodes, fragmentation.

use sinews_proto::Kind::{self, Binary, Text};
use sinews_proto::PeerMisbehaved as Fault;
use sinews_testkit::Frame;

use crate::Case;

/// Text and binary messages with the lengths at which the header changes.
#[must_use]
pub fn section_1() -> Vec<Case> {
    let mut cases = Vec::new();
    for (part, kind, opcode) in [(1, Text, 1), (2, Binary, 2)] {
        for (number, len) in [0, 125, 126, 127, 128, 65_535, 65_536, 65_536].into_iter().enumerate() {
            let payload = vec![b'*'; len];
            let case = Case::new(format!("1.{part}.{}", number + 1));
            cases.push(case.send(Frame::new(opcode, &payload)).echoes(kind, &payload).bye());
        }
    }
    cases
}

/// Pings and pongs.
#[must_use]
pub fn section_2() -> Vec<Case> {
    let ping = |id: &str, payload: &[u8]| Case::new(id).send(Frame::ping(payload)).pongs(payload).bye();
    let mut many = Case::new("2.10");
    for number in 0..10 {
        many = many.send(Frame::ping(format!("payload-{number}")));
    }
    for number in 0..10 {
        many = many.pongs(format!("payload-{number}"));
    }
    vec![
        ping("2.1", b""),
        ping("2.2", b"Hello, world!"),
        ping("2.3", b"\x00\xff\xfe\xfd\xfc\xfb\x00\xff"),
        ping("2.4", &[0xfe; 125]),
        Case::new("2.5").send(Frame::ping([0xfe; 126])).fails(Fault::ControlTooLong),
        ping("2.6", &[0xfe; 125]),
        Case::new("2.7").send(Frame::pong("")).hears_pong("").bye(),
        Case::new("2.8").send(Frame::pong("unsolicited")).hears_pong("unsolicited").bye(),
        Case::new("2.9")
            .send(Frame::pong("unsolicited"))
            .send(Frame::ping("ping"))
            .hears_pong("unsolicited")
            .pongs("ping")
            .bye(),
        many.bye(),
    ]
}

/// Reserved bits without an extension that defines them.
#[must_use]
pub fn section_3() -> Vec<Case> {
    let hello = || Frame::text("Hello, world!");
    let behind_text = |id: &str, wrong: Frame| {
        let case =
            Case::new(id).send(hello()).send(wrong).send(Frame::ping("")).echoes(Text, "Hello, world!");
        case.fails(Fault::ReservedBits)
    };
    let alone = |id: &str, wrong: Frame| Case::new(id).send(wrong).fails(Fault::ReservedBits);
    vec![
        alone("3.1", hello().rsv(1)),
        behind_text("3.2", hello().rsv(2)),
        behind_text("3.3", hello().rsv(3)),
        behind_text("3.4", hello().rsv(4)),
        alone("3.5", Frame::binary([0x00, 0xff, 0xfe, 0xfd, 0xfc, 0xfb, 0x00, 0xff]).rsv(5)),
        alone("3.6", Frame::ping("Hello, world!").rsv(6)),
        alone("3.7", Frame::close(1000, "").rsv(7)),
    ]
}

/// Undefined opcodes.
#[must_use]
pub fn section_4() -> Vec<Case> {
    let mut cases = Vec::new();
    for (part, first) in [(1, 3), (2, 11)] {
        for (number, opcode) in (first..first + 5).enumerate() {
            let case = Case::new(format!("4.{part}.{}", number + 1));
            let fault = Fault::UnknownOpcode(opcode);
            let wrong = Frame::new(opcode, ["", "reserved opcode payload"][number % 2]);
            cases.push(match number {
                0 | 1 => case.send(wrong).fails(fault),
                _ => case
                    .send(Frame::text("Hello, world!"))
                    .send(wrong)
                    .send(Frame::ping(""))
                    .echoes(Text, "Hello, world!")
                    .fails(fault),
            });
        }
    }
    cases
}

/// Fragmentation.
#[must_use]
pub fn section_5() -> Vec<Case> {
    let first = |text: &str| Frame::text(text).fin(false);
    let middle = |text: &str| Frame::continuation(text).fin(false);
    let last = |text: &str| Frame::continuation(text);
    let mut cases = Vec::new();
    for (id, control) in [("5.1", Frame::ping("fragment1")), ("5.2", Frame::pong("fragment1"))] {
        let case = Case::new(id).send(control.fin(false)).send(last("fragment2"));
        cases.push(case.fails(Fault::ControlFragmented));
    }
    for id in ["5.3", "5.4", "5.5"] {
        let case = Case::new(id).send(first("fragment1")).send(last("fragment2"));
        cases.push(case.echoes(Text, "fragment1fragment2").bye());
    }
    for id in ["5.6", "5.7", "5.8"] {
        let case = Case::new(id).send(first("fragment1")).send(Frame::ping("ping payload"));
        let case = case.send(last("fragment2"));
        cases.push(case.pongs("ping payload").echoes(Text, "fragment1fragment2").bye());
    }
    for (id, stray) in [
        ("5.9", last("non-continuation payload")),
        ("5.10", last("non-continuation payload")),
        ("5.11", last("non-continuation payload")),
        ("5.12", middle("non-continuation payload")),
        ("5.13", middle("non-continuation payload")),
        ("5.14", middle("non-continuation payload")),
    ] {
        let case = Case::new(id).send(stray).send(Frame::text("Hello, world!"));
        cases.push(case.fails(Fault::NothingToContinue));
    }
    cases.push(
        Case::new("5.15")
            .send(first("fragment1"))
            .send(last("fragment2"))
            .send(middle("fragment3"))
            .send(Frame::text("fragment4"))
            .echoes(Text, "fragment1fragment2")
            .fails(Fault::NothingToContinue),
    );
    for (id, stray) in [("5.16", middle("fragment1")), ("5.17", last("fragment1"))] {
        let mut case = Case::new(id);
        for _ in 0..2 {
            case = case.send(stray.clone()).send(first("fragment2")).send(last("fragment3"));
        }
        cases.push(case.fails(Fault::NothingToContinue));
    }
    let case = Case::new("5.18").send(first("fragment1")).send(Frame::text("fragment2"));
    cases.push(case.fails(Fault::DataInsideMessage));
    for id in ["5.19", "5.20"] {
        cases.push(pings_inside(Case::new(id), Text));
    }
    cases
}

/// Five fragments with pings after the second and the fourth: the pongs do not wait for the end.
fn pings_inside(case: Case, kind: Kind) -> Case {
    case.send(Frame::text("fragment1").fin(false))
        .send(Frame::continuation("fragment2").fin(false))
        .send(Frame::ping("pongme 1!"))
        .pongs("pongme 1!")
        .by_now()
        .send(Frame::continuation("fragment3").fin(false))
        .send(Frame::continuation("fragment4").fin(false))
        .send(Frame::ping("pongme 2!"))
        .pongs("pongme 2!")
        .by_now()
        .send(Frame::continuation("fragment5"))
        .echoes(kind, "fragment1fragment2fragment3fragment4fragment5")
        .bye()
}
