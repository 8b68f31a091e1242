//! The opening handshake: possibly invalid requests, and all violations in the response (RFC 6455 sections 4.1 and
//! 4.2).

mod answer;
mod request;

pub(crate) use self::answer::InspectResponse;
pub(crate) use self::request::InspectRequest;

/// Maximum head size: the usual limit in clients and servers.
pub(crate) const HEAD_MAX: usize = 64 << 10;

/// Returns the head's end, once complete. Bare line feeds also end it.
pub(crate) fn head_end(received: &[u8]) -> Option<usize> {
    let mut line = 0;
    for (at, _) in received.iter().enumerate().filter(|(_, byte)| **byte == b'\n') {
        if matches!(&received[line..at], b"" | b"\r") {
            return Some(at + 1);
        }
        line = at + 1;
    }
    None
}

fn values<'h>(headers: &'h [(String, String)], name: &str) -> impl Iterator<Item = &'h str> {
    let name = name.to_owned();
    headers
        .iter()
        .filter(move |(found, _)| found.eq_ignore_ascii_case(&name))
        .map(|(_, value)| value.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n";

    fn request(further: &[(&str, &str)]) -> InspectRequest {
        let headers = [
            ("Host", "example.com"),
            ("Upgrade", "websocket"),
            ("Connection", "keep-alive, Upgrade"),
            ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("Sec-WebSocket-Version", "13"),
        ];
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        let mut request = InspectRequest { target: "/".to_owned(), headers, own: 5 };
        for (name, value) in further {
            request.replace(name, value);
        }
        request
    }

    fn sections(head: &str, request: &InspectRequest) -> Vec<&'static str> {
        InspectResponse::read(head, request).violations.iter().map(|violation| violation.section).collect()
    }

    #[test]
    fn valid_response_has_no_violations() {
        assert_eq!(sections(&format!("{ANSWER}\r\n"), &request(&[])), [""; 0]);
        let offer = request(&[("Sec-WebSocket-Protocol", "a, b")]);
        assert_eq!(sections(&format!("{ANSWER}Sec-WebSocket-Protocol: b\r\n\r\n"), &offer), [""; 0]);
        assert_eq!(head_end(b"HTTP/1.1 101 a\r\nb: c\r\n\r\nrest"), Some(24));
        assert_eq!(head_end(b"HTTP/1.1 101 a\n\nrest"), Some(16));
        assert_eq!(head_end(b"HTTP/1.1 101 a\r\nb: c\r\n"), None);
    }

    #[test]
    fn every_response_violation_is_named() {
        let without = |name: &str| {
            let lines = ANSWER.split_inclusive("\r\n").filter(|line| !line.starts_with(name));
            lines.collect::<String>() + "\r\n"
        };
        let with = |line: &str| format!("{ANSWER}{line}\r\n\r\n");
        for (head, section) in [
            ("HTTP/1.1 200 OK\r\n\r\n".to_owned(), "RFC 6455 section 4.1 item 1"),
            (without("Upgrade"), "RFC 6455 section 4.1 item 2"),
            (with("Upgrade: websocket"), "RFC 6455 section 4.1 item 2"),
            (with("").replace(": websocket", ": h2c"), "RFC 6455 section 4.1 item 2"),
            (without("Connection"), "RFC 6455 section 4.1 item 3"),
            (without("Sec-WebSocket-Accept"), "RFC 6455 section 4.1 item 4"),
            (with("").replace("s3pP", "s3pQ"), "RFC 6455 section 4.1 item 4"),
            (with("Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "RFC 6455 section 11.3.3"),
            (with("Sec-WebSocket-Extensions: x"), "RFC 6455 section 4.1 item 5"),
            (with("Sec-WebSocket-Protocol: x"), "RFC 6455 section 4.1 item 6"),
            (with("Sec-WebSocket-Protocol: x, y"), "RFC 6455 section 4.2.2 item 5"),
            (with("Content-Length: 0"), "RFC 9110 section 8.6"),
            (with("Transfer-Encoding: chunked"), "RFC 9112 section 6.1"),
            (with("").replacen("\r\n", "\n", 1), "RFC 9112 section 2.2"),
            (with("a b: c"), "RFC 9110 section 5.1"),
            (with("a : c"), "RFC 9112 section 5.1"),
            (with("a: b\r\n c"), "RFC 9112 section 5.2"),
            (with("nonsense"), "RFC 9112 section 5"),
            (with("").replace("HTTP/1.1", "HTTP/1.0"), "RFC 6455 section 4.2.2 item 5"),
        ] {
            assert_eq!(sections(&head, &request(&[])), [section], "{head}");
        }
        let both = "Sec-WebSocket-Extensions: permessage-deflate\r\nSec-WebSocket-Extensions: x";
        let offer = request(&[("Sec-WebSocket-Extensions", "permessage-deflate, x")]);
        assert_eq!(sections(&with(both), &offer), ["RFC 6455 section 11.3.2"]);
        assert!(sections("SSH-2.0-OpenSSH\r\n\r\n", &request(&[])).contains(&"RFC 9112 section 4"));
    }

    #[test]
    fn accepting_an_invalid_request_is_a_violation() {
        let answer = format!("{ANSWER}\r\n");
        for (name, value, section) in [
            ("Host", "", "RFC 6455 section 4.2.1 item 2"),
            ("Upgrade", "", "RFC 6455 section 4.2.1 item 3"),
            ("Connection", "close", "RFC 6455 section 4.2.1 item 4"),
            ("Sec-WebSocket-Version", "8", "RFC 6455 section 4.2.1 item 6"),
        ] {
            assert_eq!(sections(&answer, &request(&[(name, value)])), [section]);
            let refusal =
                "HTTP/1.1 426 Upgrade Required\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\r\n";
            assert_eq!(sections(refusal, &request(&[(name, value)])), [""; 0]);
        }
        let found = sections(&answer, &request(&[("Sec-WebSocket-Key", "not base64, 24 letters!!")]));
        assert_eq!(found, ["RFC 6455 section 4.2.1 item 5", "RFC 6455 section 4.1 item 4"]);
        let old = request(&[("Sec-WebSocket-Version", "8")]);
        assert_eq!(sections("HTTP/1.1 400 Bad Request\r\n\r\n", &old), ["RFC 6455 section 4.4"]);
    }
}
