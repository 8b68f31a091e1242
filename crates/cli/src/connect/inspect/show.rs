//! An inspection's output.

use sinews_server::escape::escape_line;

use super::frame::RawFrameHead;
use super::parser::FramePayload;
use super::violation::Violation;
use crate::connect::end::{EndKind, RunEnd};
use crate::connect::output::{dump, hex};

/// Formats an HTTP head line by line, with `>` for sent and `<` for received lines.
pub(crate) fn http(direction: char, head: &str) -> String {
    let line = |line: &str| {
        let ending = if line.ends_with("\r\n") || !line.ends_with('\n') { "" } else { " (a bare LF)" };
        format!("{direction} {}{ending}", escape_line(line.trim_end_matches(['\r', '\n'])))
    };
    head.split_inclusive('\n').map(line).collect::<Vec<_>>().join("\n")
}

/// Formats a frame head: its bytes and their meaning.
pub(crate) fn head(direction: char, number: u64, head: &RawFrameHead) -> String {
    format!("{direction} frame {number}  {}  {}", hex(&head.bytes), head.describe())
}

/// Formats a payload; empty payloads yield no text.
pub(crate) fn payload(payload: &FramePayload) -> String {
    let is_text = payload.head.opcode() == 1 && payload.inflated.is_none() && !payload.head.rsv1();
    let mut lines = Vec::new();
    if payload.head.opcode() == 8 && payload.bytes.len() >= 2 {
        let (code, reason) = payload.bytes.split_at(2);
        let code = u16::from_be_bytes([code[0], code[1]]);
        lines.push(format!("    {code} {}", escape_line(&String::from_utf8_lossy(reason))));
    } else if payload.len > 0 {
        lines.push(excerpt(&payload.bytes, payload.len, is_text || payload.head.is_control()));
    }
    if let Some((bytes, len)) = &payload.inflated {
        lines.push(format!("    inflates to {len} bytes"));
        if *len > 0 {
            lines.push(excerpt(bytes, *len as u64, true));
        }
    }
    lines.join("\n")
}

/// Formats a payload's beginning: text as text, other bytes as a dump.
fn excerpt(bytes: &[u8], len: u64, prefer_text: bool) -> String {
    let more = if len > bytes.len() as u64 { format!(" … {len} bytes in all") } else { String::new() };
    // The last character may be incomplete.
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => Some(text),
        Err(error) if error.error_len().is_none() && !more.is_empty() => {
            std::str::from_utf8(&bytes[..error.valid_up_to()]).ok()
        }
        Err(_) => None,
    };
    match text
        .filter(|text| prefer_text && !text.contains(|c: char| c.is_control() && c != '\n' && c != '\t'))
    {
        Some(text) => format!("    {text:?}{more}"),
        None => {
            let dump = dump(bytes).replace("\n  ", "\n    ");
            format!("  {dump}{}{more}", if more.is_empty() { "" } else { "\n   " })
        }
    }
}

pub(crate) fn violation(violation: &Violation) -> String {
    format!("    ! {violation}")
}

pub(crate) fn verdict(violations: usize) -> RunEnd {
    let plural = if violations == 1 { "" } else { "s" };
    RunEnd::new(EndKind::Violation, format!("{violations} violation{plural}"))
}
