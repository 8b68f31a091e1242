//! Section 6: text is UTF-8, with any chunking.

use sinews_proto::Kind::Text;
use sinews_proto::PeerMisbehaved::InvalidUtf8;
use sinews_testkit::Frame;
use sinews_testkit::corpora::{Verdict, hex, kuhn, verdict};

use crate::Case;

/// All 145 cases.
#[must_use]
pub fn section_6() -> Vec<Case> {
    let mut cases = empty_fragments();
    cases.extend(valid());
    cases.extend(invalid());
    cases.extend(fail_fast());
    for (group, sequences) in kuhn().into_iter().enumerate() {
        for (number, bytes) in sequences.into_iter().enumerate() {
            let case = Case::new(format!("6.{}.{}", group + 5, number + 1));
            cases.push(whole(case, &bytes));
        }
    }
    cases
}

/// The stress list again, each invalid sequence at the start of an unfinished frame: it fails at the first
/// impossible byte, and not before. Truncated sequences are excluded.
#[must_use]
pub fn first_impossible_byte() -> Vec<Case> {
    let mut cases = Vec::new();
    for bytes in kuhn().concat() {
        let Verdict::Impossible(at) = verdict(&bytes) else { continue };
        let frame = Frame::text([&bytes[..], &[b'x'; 40]].concat());
        let case = Case::new(format!("first impossible byte of {}", bytes.escape_ascii()));
        let case = case.send_head(&frame, at).by_now().send_part(&frame, at, at + 1);
        cases.push(case.fails(InvalidUtf8));
    }
    cases
}

fn whole(case: Case, bytes: &[u8]) -> Case {
    let case = case.send(Frame::text(bytes));
    match verdict(bytes) {
        Verdict::Valid => case.echoes(Text, bytes).bye(),
        _ => case.fails(InvalidUtf8),
    }
}

fn empty_fragments() -> Vec<Case> {
    let three = |id: &str, middle: &str| {
        Case::new(id)
            .send(Frame::text("").fin(false))
            .send(Frame::continuation(middle).fin(false))
            .send(Frame::continuation(""))
            .echoes(Text, middle)
            .bye()
    };
    vec![
        Case::new("6.1.1").send(Frame::text("")).echoes(Text, "").bye(),
        three("6.1.2", ""),
        three("6.1.3", "middle frame payload"),
    ]
}

fn valid() -> Vec<Case> {
    let text = "Hello-\u{b5}@\u{df}\u{f6}\u{e4}\u{fc}\u{e0}\u{e1}-UTF-8!!".as_bytes();
    let greek = "\u{3ba}\u{1f79}\u{3c3}\u{3bc}\u{3b5}".as_bytes();
    let (head, tail) = text.split_at(12);
    vec![
        Case::new("6.2.1").send(Frame::text(text)).echoes(Text, text).bye(),
        Case::new("6.2.2")
            .send(Frame::text(head).fin(false))
            .send(Frame::continuation(tail))
            .echoes(Text, text)
            .bye(),
        byte_by_byte(Case::new("6.2.3"), text).echoes(Text, text).bye(),
        byte_by_byte(Case::new("6.2.4"), greek).echoes(Text, greek).bye(),
    ]
}

/// Each byte in a fragment of its own, and an empty fragment at the end.
fn byte_by_byte(case: Case, bytes: &[u8]) -> Case {
    let mut case = case;
    for (at, byte) in bytes.iter().enumerate() {
        let frame = if at == 0 { Frame::text([*byte]) } else { Frame::continuation([*byte]) };
        case = case.send(frame.fin(false));
    }
    case.send(Frame::continuation(""))
}

fn invalid() -> Vec<Case> {
    let bytes = hex("cebae1bdb9cf83cebcceb5eda080656469746564").concat();
    vec![
        Case::new("6.3.1").send(Frame::text(&bytes)).fails(InvalidUtf8),
        byte_by_byte(Case::new("6.3.2"), &bytes).fails(InvalidUtf8),
    ]
}

/// The connection fails at the first impossible piece of text, before the rest is sent: 6.4.1 and 6.4.2 in
/// frames, 6.4.3 and 6.4.4 inside one frame.
fn fail_fast() -> Vec<Case> {
    let greek = hex("cebae1bdb9cf83cebcceb5").concat();
    let pieces = |second: &str, third: &str| [greek.clone(), hex(second).concat(), hex(third).concat()];
    let mut cases = Vec::new();
    for (id, [first, second, _]) in
        [("6.4.1", pieces("f4908080", "656469746564")), ("6.4.2", pieces("f490", "8080656469746564"))]
    {
        cases.push(
            Case::new(id)
                .send(Frame::text(first).fin(false))
                .by_now()
                .send(Frame::continuation(second).fin(false))
                .fails(InvalidUtf8),
        );
    }
    for (id, [first, second, third]) in
        [("6.4.3", pieces("f4908080", "656469746564")), ("6.4.4", pieces("f490", "8080656469746564"))]
    {
        let frame = Frame::text([&first[..], &second, &third].concat());
        let (start, end) = (first.len(), first.len() + second.len());
        cases.push(
            Case::new(id).send_head(&frame, start).by_now().send_part(&frame, start, end).fails(InvalidUtf8),
        );
    }
    cases
}
