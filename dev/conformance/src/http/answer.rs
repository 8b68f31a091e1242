//! Strict answer parsing, and comparison with the expected answer.

use super::Answer;

/// A parsed answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

/// Takes one answer from the front of the bytes; `None` if it is incomplete. Also returns its length.
///
/// # Errors
/// The violation of RFC 9112: bytes that are not allowed in a head, or an ambiguous end of the body.
pub fn read(bytes: &[u8], of_head: bool) -> Result<Option<(Answered, usize)>, String> {
    let Some(head_len) = bytes.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4) else {
        return Ok(None);
    };
    let head = std::str::from_utf8(&bytes[..head_len - 4]).map_err(|_| "a head of other than ASCII")?;
    let mut lines = head.split("\r\n");
    let status = status(lines.next().unwrap_or_default())?;
    let headers = lines.map(header).collect::<Result<Vec<_>, _>>()?;
    let mut answered = Answered { status, headers, body: Vec::new() };
    let len = answered.body_len(of_head)?;
    let Some(body) = bytes.get(head_len..head_len + len) else { return Ok(None) };
    answered.body = body.to_vec();
    Ok(Some((answered, head_len + len)))
}

/// RFC 9112 section 4: the reason may be empty, the space before it is mandatory.
fn status(line: &str) -> Result<u16, String> {
    let wrong = || format!("a status line that is none: {line:?}");
    let rest = line.strip_prefix("HTTP/1.1 ").ok_or_else(wrong)?;
    let (digits, reason) = rest.split_once(' ').ok_or_else(wrong)?;
    let is_status = digits.len() == 3 && digits.bytes().all(|byte| byte.is_ascii_digit());
    let status = digits.parse().ok().filter(|_| is_status && is_value(reason));
    status.ok_or_else(wrong)
}

fn header(line: &str) -> Result<(String, String), String> {
    let found = line.split_once(':').filter(|(name, value)| {
        let is_name =
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        is_name && is_value(value)
    });
    let (name, value) = found.ok_or_else(|| format!("invalid header line: {line:?}"))?;
    Ok((name.to_owned(), value.trim_matches([' ', '\t']).to_owned()))
}

fn is_value(value: &str) -> bool {
    value.bytes().all(|byte| byte == b'\t' || !byte.is_ascii_control())
}

impl Answered {
    /// Its status.
    #[must_use]
    pub const fn status(&self) -> u16 {
        self.status
    }

    fn values(&self, name: &str) -> impl Iterator<Item = &str> {
        let named = self.headers.iter().filter(move |(found, _)| found.eq_ignore_ascii_case(name));
        named.map(|(_, value)| &**value)
    }

    /// RFC 9112 section 6.3, for a server that states every body's length.
    fn body_len(&self, of_head: bool) -> Result<usize, String> {
        let lengths: Vec<&str> = self.values("content-length").collect();
        let has_none = matches!(self.status, 100..=199 | 204 | 304);
        if matches!(self.status, 100..=199 | 204) && !lengths.is_empty() {
            return Err(format!("a length in an answer with {}", self.status));
        }
        if self.values("transfer-encoding").next().is_some() {
            return Err("a transfer coding, which nothing here has".to_owned());
        }
        match lengths[..] {
            [] if has_none => Ok(0),
            [len] => {
                let len = len.parse().map_err(|_| format!("invalid length: {len:?}"))?;
                Ok(if of_head || has_none { 0 } else { len })
            }
            _ => Err(format!("{} lengths in an answer with {}", lengths.len(), self.status)),
        }
    }

    /// Checks the answer against the expected answer, with `last` for the last answer on its connection.
    ///
    /// # Errors
    /// The difference.
    pub fn check(&self, expected: &Answer, last: bool) -> Result<(), String> {
        if self.status != expected.status {
            return Err(format!("{} in place of {}", self.status, expected.status));
        }
        if let Some(body) = expected.body.as_ref().filter(|body| **body != self.body) {
            return Err(format!(
                "the body {:?} in place of {:?}",
                String::from_utf8_lossy(&self.body),
                String::from_utf8_lossy(body)
            ));
        }
        for (name, value) in &expected.headers {
            if !self.values(name).any(|found| found == value) {
                return Err(format!("no {name}: {value}"));
            }
        }
        self.check_rules(last)
    }

    /// Checks the general requirements on an answer with this status.
    fn check_rules(&self, last: bool) -> Result<(), String> {
        let once = |name: &str| match self.values(name).count() {
            1 => Ok(()),
            count => Err(format!("{count} × {name} in an answer with {}", self.status)),
        };
        if self.status < 200 {
            return Ok(());
        }
        // RFC 9110 section 6.6.1.
        once("Date")?;
        match self.status {
            206 | 416 => once("Content-Range")?,
            304 => once("ETag")?,
            405 => once("Allow")?,
            426 => once("Upgrade")?,
            _ => {}
        }
        // RFC 9112 section 9.6.
        let closes = self
            .values("connection")
            .any(|options| options.split(',').any(|option| option.trim() == "close"));
        match (closes, last) {
            (true, false) => Err("Connection: close on a connection that stays open".to_owned()),
            (false, true) => Err("no Connection: close before the end of the connection".to_owned()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: &str = "HTTP/1.1 200 OK\r\nDate: now\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";

    fn whole(wire: &str, of_head: bool) -> Result<Answered, String> {
        read(wire.as_bytes(), of_head).map(|found| found.expect("it is whole").0)
    }

    #[test]
    fn a_valid_answer_is_read_up_to_its_end() {
        for len in 0..SOUND.len() {
            assert_eq!(read(&SOUND.as_bytes()[..len], false), Ok(None), "{len}");
        }
        let (found, len) = read(&[SOUND, "HTTP/1.1"].concat().into_bytes(), false).unwrap().unwrap();
        assert_eq!((found.status(), &found.body[..], len), (200, &b"ok"[..], SOUND.len()));
        assert_eq!(whole(SOUND, true).unwrap().body, b"", "an answer to HEAD has a length and no body");
    }

    #[test]
    fn invalid_answers_are_rejected() {
        for wrong in [
            SOUND.replace("HTTP/1.1", "HTTP/1.0"),
            SOUND.replace(" OK", ""),
            SOUND.replace("200", "2000"),
            SOUND.replace("Date: now", "Date now"),
            SOUND.replace("now", "no\nw"),
            SOUND.replace("Length: 2", "Length: 2\r\nContent-Length: 2"),
            SOUND.replace("Content-Length: 2", "X: y"),
            SOUND.replace("Length: 2", "Length: two"),
            SOUND.replace("200", "204"),
            SOUND.replace("Content-Length: 2", "Transfer-Encoding: chunked"),
        ] {
            assert!(whole(&wrong, false).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_answer_is_compared_with_the_expected_answer() {
        let found = |wire: &str| whole(wire, false).unwrap();
        let answer = |status| Answer { status, ..Answer::default() };
        let headers = vec![("Connection".to_owned(), "close".to_owned())];
        let right = Answer { body: Some(b"ok".to_vec()), headers, ..answer(200) };
        assert_eq!(found(SOUND).check(&right, true), Ok(()));
        for (wire, last) in [
            (SOUND.to_owned(), false),
            (SOUND.replace("200", "201"), true),
            (SOUND.replace("\r\n\r\nok", "\r\n\r\nno"), true),
            (SOUND.replace("Connection: close", "Connection: x"), true),
            (SOUND.replace("Date: now\r\n", ""), true),
        ] {
            assert!(found(&wire).check(&right, last).is_err(), "{wire}");
        }
        let refused = SOUND.replace("200", "405");
        assert!(found(&refused).check(&answer(405), true).is_err(), "no Allow");
        let named = refused.replace("Date", "Allow: GET\r\nDate");
        assert_eq!(found(&named).check(&answer(405), true), Ok(()));
    }
}
