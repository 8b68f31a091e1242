//! Messages to send, from a pipe or a recording; the console has its own module.

use std::io::{self, BufRead, BufReader, Read};
use std::thread;

use tokio::sync::mpsc;

use super::args::ConnectArgs;
use super::command::{self, ConsoleCommand};
use super::end::RunEnd;
use super::output::PipeFraming;

/// Input queue capacity: large enough for bursts, small enough for backpressure on the pipe.
const WAITING_MAX: usize = 64;

/// An input event.
#[derive(Debug)]
pub(crate) enum InputEvent {
    Command(ConsoleCommand),
    /// An invalid line with the reason; further lines may be valid.
    Invalid(String),
    /// End of the input.
    End,
    /// The input ended with an error.
    Failed(String),
}

/// Reads messages from standard input on a thread, because reads from a pipe block.
///
/// # Errors
/// Returns an error if the thread cannot be started.
pub(crate) fn start(args: &ConnectArgs) -> Result<mpsc::Receiver<InputEvent>, RunEnd> {
    let (sender, input) = mpsc::channel(WAITING_MAX);
    let reader = InputReader {
        framing: PipeFraming::from_args(args),
        format: match (args.input.commands, args.input.binary) {
            (true, _) => InputFormat::Commands { inspecting: args.inspect.inspect },
            (_, true) => InputFormat::Binary,
            _ => InputFormat::Text,
        },
        max: args.limits.max_message.0,
    };
    let read = move || {
        let mut stdin = BufReader::new(io::stdin());
        loop {
            let input = reader.next(&mut stdin);
            let is_last = matches!(input, InputEvent::End | InputEvent::Failed(_));
            if sender.blocking_send(input).is_err() || is_last {
                return;
            }
        }
    };
    let thread = thread::Builder::new().name("input".to_owned()).spawn(read);
    thread.map(|_| input).map_err(|error| RunEnd::io("a thread for the input", &error))
}

struct InputReader {
    framing: PipeFraming,
    format: InputFormat,
    max: usize,
}

enum InputFormat {
    Text,
    Binary,
    Commands { inspecting: bool },
}

impl InputReader {
    fn next(&self, input: &mut impl BufRead) -> InputEvent {
        let message = match &self.framing {
            PipeFraming::Delimited(delimiter) => read_delimited(input, delimiter, self.max),
            PipeFraming::LengthPrefixed => read_prefixed(input, self.max),
        };
        match message {
            Ok(Some(message)) => self.command(message),
            Ok(None) => InputEvent::End,
            Err(error) => InputEvent::Failed(format!("standard input: {error}")),
        }
    }

    fn command(&self, message: Vec<u8>) -> InputEvent {
        if let InputFormat::Binary = self.format {
            return InputEvent::Command(ConsoleCommand::Binary(message));
        }
        let Ok(text) = String::from_utf8(message) else {
            return InputEvent::Failed("standard input is not valid UTF-8; use --binary".to_owned());
        };
        match self.format {
            InputFormat::Commands { inspecting } => match command::parse(&text, inspecting) {
                Ok(command) => InputEvent::Command(command),
                // A script does not read error messages: end with an error.
                Err(why) => InputEvent::Failed(format!("{text:?}: {why}")),
            },
            _ => InputEvent::Command(ConsoleCommand::Text(text)),
        }
    }
}

/// Reads up to the delimiter, or to the end.
fn read_delimited(input: &mut impl BufRead, delimiter: &[u8], max: usize) -> io::Result<Option<Vec<u8>>> {
    let last = delimiter.last().copied().unwrap_or(b'\n');
    let mut message = Vec::new();
    loop {
        let capacity = (max + delimiter.len()).saturating_sub(message.len()) as u64;
        let read = input.take(capacity).read_until(last, &mut message)?;
        if message.ends_with(delimiter) {
            message.truncate(message.len() - delimiter.len());
            return Ok(Some(message));
        }
        if read == 0 {
            return match message.len() {
                0 => Ok(None),
                len if len > max => Err(too_long(max)),
                _ => Ok(Some(message)),
            };
        }
    }
}

/// Reads a four-byte length, and a message with that length.
fn read_prefixed(input: &mut impl BufRead, max: usize) -> io::Result<Option<Vec<u8>>> {
    if input.fill_buf()?.is_empty() {
        return Ok(None);
    }
    let mut len = [0; 4];
    input.read_exact(&mut len)?;
    let len = u32::from_be_bytes(len) as usize;
    if len > max {
        return Err(too_long(max));
    }
    // Memory grows with received data, not with the declared length.
    let mut message = Vec::new();
    match input.take(len as u64).read_to_end(&mut message)? {
        read if read == len => Ok(Some(message)),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn too_long(max: usize) -> io::Error {
    io::Error::other(format!("message exceeds {max} bytes (--max-message)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(framing: PipeFraming, format: InputFormat, max: usize, mut bytes: &[u8]) -> Vec<String> {
        let reader = InputReader { framing, format, max };
        let mut found = Vec::new();
        loop {
            match reader.next(&mut bytes) {
                InputEvent::Command(ConsoleCommand::Text(text)) => found.push(text),
                InputEvent::Command(command) => found.push(format!("{command:?}")),
                InputEvent::End => return found,
                input => {
                    found.push(format!("{input:?}"));
                    return found;
                }
            }
        }
    }

    #[test]
    fn each_line_is_a_message() {
        let lines = |bytes: &[u8]| all(PipeFraming::Delimited(b"\n".to_vec()), InputFormat::Text, 5, bytes);
        assert_eq!(lines(b""), Vec::<String>::new());
        assert_eq!(lines(b"a\n\nbc"), ["a", "", "bc"]);
        assert_eq!(lines(b"12345\n12345"), ["12345", "12345"]);
        assert!(lines(b"123456\n")[0].contains("--max-message"));
        assert!(lines(b"\xff\n")[0].contains("--binary"));
    }

    #[test]
    fn delimiter_may_have_several_bytes() {
        let parts = |bytes: &[u8]| all(PipeFraming::Delimited(b"\r\n".to_vec()), InputFormat::Text, 9, bytes);
        assert_eq!(parts(b"a\nb\r\nc\r\n"), ["a\nb", "c"]);
    }

    #[test]
    fn messages_may_be_length_prefixed() {
        let messages = |bytes: &[u8]| all(PipeFraming::LengthPrefixed, InputFormat::Text, 9, bytes);
        assert_eq!(messages(b"\0\0\0\x02ab\0\0\0\0\0\0\0\x01c"), ["ab", "", "c"]);
        assert!(messages(b"\0\0\0\x02a")[0].starts_with("Failed"));
        assert!(messages(b"\0\0")[0].starts_with("Failed"));
        assert!(messages(b"\xff\xff\xff\xff")[0].contains("--max-message"));
    }

    #[test]
    fn lines_may_be_commands() {
        let format = InputFormat::Commands { inspecting: false };
        let found = all(PipeFraming::Delimited(b"\n".to_vec()), format, 99, b"hi\n/ping x\n/nothing\nlost");
        assert_eq!(found[..2], ["hi", "Ping([120])"]);
        assert!(found[2].contains("/nothing") && found.len() == 3);
    }
}
