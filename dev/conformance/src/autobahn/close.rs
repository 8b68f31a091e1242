//! Section 7: the closing handshake.

use sinews_proto::Kind::Text;
use sinews_proto::PeerMisbehaved as Fault;
use sinews_testkit::Frame;

use crate::Case;

/// All 37 cases.
#[must_use]
pub fn section_7() -> Vec<Case> {
    let mut cases = order();
    cases.extend(payloads());
    for (part, codes) in [
        (7, &[1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999][..]),
        (9, &[0, 999, 1004, 1005, 1006, 1016, 1100, 2000, 2999]),
        // The suite accepts any answer to these codes, which are beyond all ranges of RFC 6455 section 7.4.2.
        (13, &[5000, 65_535]),
    ] {
        for (number, &code) in codes.iter().enumerate() {
            let case = Case::new(format!("7.{part}.{}", number + 1)).send(Frame::close(code, ""));
            cases.push(match part {
                7 => case.closes(Some(code)),
                _ => case.fails(Fault::InvalidCloseCode(code)),
            });
        }
    }
    cases
}

/// Frames after the first Close are ignored.
fn order() -> Vec<Case> {
    let close = || Frame::close(1000, "");
    let long = vec![b'*'; 256 << 10];
    vec![
        Case::new("7.1.1").send(Frame::text("Hello World!")).echoes(Text, "Hello World!").bye(),
        Case::new("7.1.2").send(close()).send(close()).closes(Some(1000)),
        Case::new("7.1.3").send(close()).send(Frame::ping("")).closes(Some(1000)),
        Case::new("7.1.4").send(close()).send(Frame::text("Hello World!")).closes(Some(1000)),
        Case::new("7.1.5")
            .send(Frame::text("fragment1").fin(false))
            .send(close())
            .send(Frame::continuation("fragment2"))
            .closes(Some(1000)),
        Case::new("7.1.6")
            .send(Frame::text(&long))
            .send(Frame::text("Hello World!"))
            .send(close())
            .send(Frame::ping(""))
            .echoes(Text, &long)
            .echoes(Text, "Hello World!")
            .closes(Some(1000)),
    ]
}

/// Payload lengths and content.
fn payloads() -> Vec<Case> {
    let not_utf8 = b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xed\xa0\x80edited";
    let reason = |len: usize| "*".repeat(len);
    vec![
        Case::new("7.3.1").send(Frame::close_raw("")).closes(None),
        Case::new("7.3.2").send(Frame::close_raw("a")).fails(Fault::CloseTooShort),
        Case::new("7.3.3").send(Frame::close(1000, "")).closes(Some(1000)),
        Case::new("7.3.4").send(Frame::close(1000, "Hello World!")).closes(Some(1000)),
        Case::new("7.3.5").send(Frame::close(1000, reason(123))).closes(Some(1000)),
        Case::new("7.3.6").send(Frame::close(1000, reason(124))).fails(Fault::ControlTooLong),
        Case::new("7.5.1").send(Frame::close(1000, not_utf8)).fails(Fault::CloseReasonNotUtf8),
    ]
}
