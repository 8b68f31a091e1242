//! Writes Server-Sent Events (HTML standard, section 9.2.5).

use alloc::vec::Vec;

/// An event stream's media type.
pub const EVENT_STREAM_TYPE: &str = "text/event-stream";

/// Appends one field, such as `event` or `id`, as a line of its own. A value with a line break would begin another
/// field, so only its first line is written.
pub fn write_event_field(name: &str, value: &[u8], out: &mut Vec<u8>) {
    let (line, _) = split_line(value);
    write_line(name, line, out);
}

/// Appends an event's `data` field: one line for each data line. Lines end with LF, CR or CRLF, as clients split them,
/// so no data ends an event or begins another field. Clients join the lines with LF: CR and CRLF arrive as LF.
pub fn write_event_data(data: &[u8], out: &mut Vec<u8>) {
    let mut rest = Some(data);
    while let Some(lines) = rest {
        let (line, behind) = split_line(lines);
        write_line("data", line, out);
        rest = behind;
    }
}

/// Appends the empty line that ends an event.
pub fn end_event(out: &mut Vec<u8>) {
    out.push(b'\n');
}

fn write_line(name: &str, value: &[u8], out: &mut Vec<u8>) {
    // Clients remove one space after the colon, so the value keeps its own.
    for part in [name.as_bytes(), b": ", value, b"\n"] {
        out.extend_from_slice(part);
    }
}

/// Returns the first line, and the bytes after its end; `None` if it is the last.
fn split_line(lines: &[u8]) -> (&[u8], Option<&[u8]>) {
    let Some(end) = memchr::memchr2(b'\r', b'\n', lines) else { return (lines, None) };
    let (line, behind) = lines.split_at(end);
    let width = if behind.starts_with(b"\r\n") { 2 } else { 1 };
    (line, Some(&behind[width..]))
}

#[cfg(test)]
mod tests {
    use alloc::string::{String, ToString};
    use alloc::vec;

    use super::*;

    /// The events that a client reads: type and data. Follows section 9.2.6 line by line.
    fn read(stream: &[u8]) -> Vec<(String, String)> {
        let text = core::str::from_utf8(stream).expect("UTF-8").replace("\r\n", "\n").replace('\r', "\n");
        let (mut events, mut kind, mut data) = (Vec::new(), String::new(), String::new());
        for line in text.split_terminator('\n') {
            if line.is_empty() {
                if !data.is_empty() {
                    data.pop();
                    events.push((core::mem::take(&mut kind), core::mem::take(&mut data)));
                }
                kind.clear();
                continue;
            }
            let (name, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match name {
                "data" => data = data + value + "\n",
                "event" => kind = value.to_string(),
                _ => {}
            }
        }
        events
    }

    fn event(data: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        write_event_data(data, &mut out);
        end_event(&mut out);
        out
    }

    #[test]
    fn data_arrives_as_one_event_whatever_its_lines() {
        for data in [
            "",
            "hello",
            " two spaces  ",
            "a\nb",
            "\n",
            "\n\n",
            "\r\n\r\n",
            "a\r\rb",
            "x\n\nevent: forged\ndata: forged\n\n",
            "x\r\revent: forged\rdata: forged\r\r",
            "id: 7\nretry: 1\n:comment",
            "\u{feff}bom",
            "\u{2028}\u{85}not line ends here",
        ] {
            let expected = data.replace("\r\n", "\n").replace('\r', "\n");
            assert_eq!(read(&event(data.as_bytes())), [(String::new(), expected)], "{data:?}");
        }
    }

    #[test]
    fn every_short_payload_of_line_ends_stays_one_event() {
        const BYTES: [u8; 5] = [b'\r', b'\n', b':', b' ', b'x'];
        for length in 0..6_u32 {
            for number in 0..BYTES.len().pow(length) {
                let byte = |place: u32| BYTES[number / BYTES.len().pow(place) % BYTES.len()];
                let data: Vec<u8> = (0..length).map(byte).collect();
                let (mut stream, count) = (event(b"before"), read(&event(&data)).len());
                stream.extend(event(&data));
                stream.extend(event(b"behind"));
                assert_eq!((count, read(&stream).len()), (1, 3), "{data:?}");
            }
        }
    }

    #[test]
    fn field_ends_at_the_first_line_break() {
        let mut out = Vec::new();
        write_event_field("event", b"kind\nid: 1", &mut out);
        write_event_field("id", b"\rdata: x", &mut out);
        out.extend(event(b"content"));
        assert_eq!(out, b"event: kind\nid: \ndata: content\n\n");
        assert_eq!(read(&out), vec![("kind".to_string(), "content".to_string())]);
    }
}
