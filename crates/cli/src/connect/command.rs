//! Console lines.

use sinews::CloseCode;

/// A parsed line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ConsoleCommand {
    Text(String),
    Binary(Vec<u8>),
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    /// A Close with a possibly invalid code, and a reason.
    Close(Option<u16>, String),
    /// A command for one of several clients.
    To(u32, Box<Self>),
    /// Lists the clients.
    Peers,
    Help,
    /// `--inspect`: raw bytes.
    Raw(Vec<u8>),
    /// `--inspect`: a frame with any head.
    Frame(FrameCommand),
}

/// A possibly invalid frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FrameCommand {
    /// FIN, the reserved bits and the opcode.
    pub(crate) first: u8,
    pub(crate) masked: bool,
    /// Length field bytes after the second byte: 0, 2 or 8; `None`: the minimum.
    pub(crate) length_bytes: Option<u8>,
    pub(crate) payload: Vec<u8>,
}

/// Help text for `/help`.
pub(crate) const HELP: &str = "\
  TEXT                  send text; a line starting with // sends text starting with one slash
  /text TEXT            send text
  /hex 00 ff            send bytes
  /ping [TEXT]          send a ping; its answer shows the round-trip time
  /pong [TEXT]          send an unsolicited pong
  /close [CODE [REASON]]  close the connection; the default code is 1000
  /to N LINE            with --listen: run a command for one client
  /peers                with --listen: list the clients
  /raw 81 05 ..         with --inspect: send raw bytes, valid or not
  /frame OPTIONS TEXT   with --inspect: send a frame with any head; options: text, binary, cont, ping, pong, close,
                        op=N, nofin, rsv1, rsv2, rsv3, nomask, len16, len64, hex (the payload is hex),
                        -- (end of options)
  /quit                 close and exit, like Ctrl-D
  /help                 show this help";

/// Parses a line. `inspecting` permits commands that violate the protocol.
///
/// # Errors
/// Returns a description of the syntax error.
pub(crate) fn parse(line: &str, inspecting: bool) -> Result<ConsoleCommand, String> {
    let Some(command) = line.strip_prefix('/') else { return Ok(ConsoleCommand::Text(line.to_owned())) };
    if command.starts_with('/') {
        return Ok(ConsoleCommand::Text(command.to_owned()));
    }
    let (name, rest) = command.split_once(' ').unwrap_or((command, ""));
    match name {
        "text" => Ok(ConsoleCommand::Text(rest.to_owned())),
        "hex" => hex(rest).map(ConsoleCommand::Binary),
        "ping" => Ok(ConsoleCommand::Ping(rest.as_bytes().to_vec())),
        "pong" => Ok(ConsoleCommand::Pong(rest.as_bytes().to_vec())),
        "close" => close(rest, inspecting),
        "quit" => Ok(ConsoleCommand::Close(Some(CloseCode::NORMAL.as_u16()), String::new())),
        "to" => {
            let (number, line) = rest.split_once(' ').ok_or("expected `/to NUMBER LINE`")?;
            let number = number.trim_start_matches('#').parse().map_err(|_| "expected a client's number")?;
            Ok(ConsoleCommand::To(number, Box::new(parse(line, inspecting)?)))
        }
        "peers" => Ok(ConsoleCommand::Peers),
        "help" | "?" => Ok(ConsoleCommand::Help),
        "raw" | "frame" if !inspecting => Err(format!("/{name} needs --inspect")),
        "raw" => hex(rest).map(ConsoleCommand::Raw),
        "frame" => frame(rest).map(ConsoleCommand::Frame),
        _ => Err(format!("unknown command /{name}; /help lists them, // sends a slash")),
    }
}

fn close(rest: &str, inspecting: bool) -> Result<ConsoleCommand, String> {
    let (code, reason) = rest.split_once(' ').unwrap_or((rest, ""));
    if code.is_empty() {
        return Ok(ConsoleCommand::Close(Some(CloseCode::NORMAL.as_u16()), String::new()));
    }
    if inspecting && code == "none" {
        return Ok(ConsoleCommand::Close(None, String::new()));
    }
    let code: u16 = code.parse().map_err(|_| "expected `/close CODE REASON`")?;
    if !inspecting && CloseCode::new(code).is_none() {
        return Err(format!(
            "{code} may not be sent (RFC 6455 section 7.4): 1000 to 1003, 1007 to 1014 and 3000 to 4999 may"
        ));
    }
    Ok(ConsoleCommand::Close(Some(code), reason.to_owned()))
}

/// Parses pairs of hex digits, separated by optional spaces.
pub(crate) fn hex(text: &str) -> Result<Vec<u8>, String> {
    let digits: Vec<char> = text.chars().filter(|c| !c.is_whitespace()).collect();
    let byte = |pair: &[char]| {
        let text: String = pair.iter().collect();
        u8::from_str_radix(&text, 16).ok().filter(|_| pair.len() == 2 && pair[0] != '+')
    };
    digits
        .chunks(2)
        .map(byte)
        .collect::<Option<_>>()
        .ok_or_else(|| "expected pairs of hex digits, such as 00 ff".to_owned())
}

fn frame(rest: &str) -> Result<FrameCommand, String> {
    let mut frame = FrameCommand { first: 0x80, masked: true, length_bytes: None, payload: Vec::new() };
    let (mut opcode, mut is_hex, mut rest) = (1, false, rest);
    loop {
        let (word, behind) = rest.split_once(' ').unwrap_or((rest, ""));
        match word {
            "cont" => opcode = 0,
            "text" => opcode = 1,
            "binary" => opcode = 2,
            "close" => opcode = 8,
            "ping" => opcode = 9,
            "pong" => opcode = 10,
            "nofin" => frame.first &= 0x7f,
            "rsv1" => frame.first |= 0x40,
            "rsv2" => frame.first |= 0x20,
            "rsv3" => frame.first |= 0x10,
            "nomask" => frame.masked = false,
            "len16" => frame.length_bytes = Some(2),
            "len64" => frame.length_bytes = Some(8),
            "hex" => is_hex = true,
            "--" => {
                rest = behind;
                break;
            }
            word => match word.strip_prefix("op=").map(|number| number.parse::<u8>()) {
                Some(Ok(number @ 0..=15)) => opcode = number,
                Some(_) => return Err("expected an opcode from 0 to 15 after op=".to_owned()),
                None => break,
            },
        }
        rest = behind;
        if rest.is_empty() {
            break;
        }
    }
    frame.first |= opcode;
    frame.payload = if is_hex { hex(rest)? } else { rest.as_bytes().to_vec() };
    Ok(frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_without_slash_are_text() {
        let text = |text: &str| Ok(ConsoleCommand::Text(text.to_owned()));
        assert_eq!(parse("hello", false), text("hello"));
        assert_eq!(parse("", false), text(""));
        assert_eq!(parse("//hello", false), text("/hello"));
        assert_eq!(parse("/text /hello", false), text("/hello"));
        assert!(parse("/nothing", false).is_err());
    }

    #[test]
    fn commands_parse_with_arguments() {
        assert_eq!(parse("/hex 00 fF10", false), Ok(ConsoleCommand::Binary(vec![0, 255, 16])));
        assert_eq!(parse("/hex", false), Ok(ConsoleCommand::Binary(Vec::new())));
        for bad in ["/hex 0", "/hex 0g", "/hex +1", "/hex é"] {
            assert!(parse(bad, false).is_err(), "{bad}");
        }
        assert_eq!(parse("/ping a b", false), Ok(ConsoleCommand::Ping(b"a b".to_vec())));
        assert_eq!(parse("/close", false), Ok(ConsoleCommand::Close(Some(1000), String::new())));
        assert_eq!(
            parse("/close 4000 so long", false),
            Ok(ConsoleCommand::Close(Some(4000), "so long".to_owned()))
        );
        for bad in ["/close x", "/close 1005", "/close 99999", "/raw 00", "/to x y"] {
            assert!(parse(bad, false).is_err(), "{bad}");
        }
        let to = ConsoleCommand::To(3, Box::new(ConsoleCommand::Ping(Vec::new())));
        assert_eq!(parse("/to #3 /ping", false), Ok(to));
    }

    #[test]
    fn inspection_permits_invalid_commands() {
        assert_eq!(parse("/close 1005", true), Ok(ConsoleCommand::Close(Some(1005), String::new())));
        assert_eq!(parse("/raw 81 00", true), Ok(ConsoleCommand::Raw(vec![0x81, 0])));
        let frame = |first, masked, length_bytes, payload: &[u8]| {
            Ok(ConsoleCommand::Frame(FrameCommand { first, masked, length_bytes, payload: payload.to_vec() }))
        };
        assert_eq!(parse("/frame text nomask hi you", true), frame(0x81, false, None, b"hi you"));
        assert_eq!(parse("/frame cont nofin rsv1 len64 hex 0102", true), frame(0x40, true, Some(8), &[1, 2]));
        assert_eq!(parse("/frame op=3", true), frame(0x83, true, None, b""));
        assert!(parse("/frame op=16", true).is_err());
    }
}
