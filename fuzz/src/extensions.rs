//! `Sec-WebSocket-Extensions` by the grammar of RFC 6455 section 9.1, and the rules of RFC 7692 section 7.1
//! for permessage-deflate: parses tokens, then a list, then its meaning.

use sinews_proto::deflate::DeflateParams;

/// One extension with its parameters, as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Extension {
    pub(crate) name: String,
    pub(crate) parameters: Vec<(String, Option<String>)>,
}

/// The header does not follow the grammar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

#[derive(Debug, PartialEq, Eq)]
enum Word {
    Token(String),
    Quoted(String),
    Mark(u8),
}

/// Parses the list of all header lines. Without any line there is no header.
pub(crate) fn parse<'a>(lines: impl IntoIterator<Item = &'a [u8]>) -> Result<Vec<Extension>, Malformed> {
    let mut list = Vec::new();
    let mut any_line = false;
    for line in lines {
        any_line = true;
        for element in words(line)?.split(|word| *word == Word::Mark(b',')) {
            if !element.is_empty() {
                list.push(extension(element)?);
            }
        }
    }
    if any_line && list.is_empty() { Err(Malformed) } else { Ok(list) }
}

fn words(line: &[u8]) -> Result<Vec<Word>, Malformed> {
    let mut words = Vec::new();
    let mut at = 0;
    while let Some(&byte) = line.get(at) {
        at += 1;
        match byte {
            b' ' | b'\t' => {}
            b',' | b';' | b'=' => words.push(Word::Mark(byte)),
            b'"' => {
                let mut text = String::new();
                loop {
                    let mut byte = *line.get(at).ok_or(Malformed)?;
                    at += 1;
                    if byte == b'"' {
                        break;
                    }
                    if byte == b'\\' {
                        byte = *line.get(at).ok_or(Malformed)?;
                        at += 1;
                    }
                    text.push(char::from(byte));
                }
                words.push(Word::Quoted(text));
            }
            _ => {
                let from = at - 1;
                while line.get(at).is_some_and(|&byte| is_token_byte(byte)) {
                    at += 1;
                }
                let text = String::from_utf8(line[from..at].to_vec()).map_err(|_| Malformed)?;
                words.push(Word::Token(text));
            }
        }
    }
    Ok(words)
}

fn extension(words: &[Word]) -> Result<Extension, Malformed> {
    let mut parts = words.split(|word| *word == Word::Mark(b';'));
    let Some([Word::Token(name)]) = parts.next() else { return Err(Malformed) };
    let mut parameters = Vec::new();
    for part in parts {
        let (name, value) = match part {
            [Word::Token(name)] => (name, None),
            [Word::Token(name), Word::Mark(b'='), Word::Token(value) | Word::Quoted(value)] => {
                (name, Some(value))
            }
            _ => return Err(Malformed),
        };
        if !is_token(name) || value.is_some_and(|value| !is_token(value)) {
            return Err(Malformed);
        }
        parameters.push((name.clone(), value.cloned()));
    }
    if is_token(name) { Ok(Extension { name: name.clone(), parameters }) } else { Err(Malformed) }
}

/// RFC 9110 section 5.6.2.
pub(crate) fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(is_token_byte)
}

fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_graphic() && !b"\"(),/:;<=>?@[\\]{}".contains(&byte)
}

/// Valid permessage-deflate parameters; `None` inside: without a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Meaning {
    pub(crate) server_no_context_takeover: bool,
    pub(crate) client_no_context_takeover: bool,
    pub(crate) server_bits: Option<u8>,
    pub(crate) client_bits: Option<Option<u8>>,
}

/// Returns the meaning of an element of an offer or an answer, if it is valid permessage-deflate.
pub(crate) fn meaning(extension: &Extension) -> Option<Meaning> {
    if extension.name != "permessage-deflate" {
        return None;
    }
    let mut meaning = Meaning::default();
    for (at, (name, value)) in extension.parameters.iter().enumerate() {
        if extension.parameters[..at].iter().any(|(earlier, _)| earlier == name) {
            return None;
        }
        let bits = value.as_ref().map(|value| {
            ["8", "9", "10", "11", "12", "13", "14", "15"].iter().position(|bits| bits == value)
        });
        let bits = bits.map(|place| place.map(|place| 8 + place as u8));
        match (name.as_str(), bits) {
            ("server_no_context_takeover", None) => meaning.server_no_context_takeover = true,
            ("client_no_context_takeover", None) => meaning.client_no_context_takeover = true,
            ("server_max_window_bits", Some(Some(bits))) => meaning.server_bits = Some(bits),
            ("client_max_window_bits", Some(Some(bits))) => meaning.client_bits = Some(Some(bits)),
            ("client_max_window_bits", None) => meaning.client_bits = Some(None),
            _ => return None,
        }
    }
    Some(meaning)
}

/// Whether an answer may follow an offer (RFC 7692 section 7.1).
pub(crate) fn answers(answer: &Meaning, offer: &Meaning) -> bool {
    let server_bits = match (offer.server_bits, answer.server_bits) {
        (Some(limit), Some(bits)) => bits <= limit,
        (Some(_), None) => false,
        (None, _) => true,
    };
    let client_bits = match (offer.client_bits, answer.client_bits) {
        (_, None) => true,
        // Permitted only if the client offers the parameter, and with a value.
        (None, Some(_)) | (_, Some(None)) => false,
        (Some(limit), Some(Some(bits))) => bits <= limit.unwrap_or(15),
    };
    let takeover = answer.server_no_context_takeover || !offer.server_no_context_takeover;
    server_bits && client_bits && takeover
}

/// Whether parameters comply with an answer; an end may choose a stricter value than required.
pub(crate) fn is_within(params: DeflateParams, answer: &Meaning) -> bool {
    let client_bits = answer.client_bits.flatten().unwrap_or(15);
    let server_bits = answer.server_bits.unwrap_or(15);
    params.server_max_window_bits() <= server_bits
        && params.client_max_window_bits() <= client_bits
        && params.server_no_context_takeover() == answer.server_no_context_takeover
        && params.client_no_context_takeover() >= answer.client_no_context_takeover
}
