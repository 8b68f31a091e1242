//! Messages to send, from a pipe or a recording; the console has its own module.

use std::io::{self, BufRead, BufReader, Read};
use std::thread;

use tokio::sync::mpsc;

use super::args::ConnectArgs;
use super::command::{self, Command};
use super::end::End;
use super::output::Framing;

/// Capacity of the input queue: large enough for bursts, small enough for backpressure on the pipe.
const WAITING_MAX: usize = 64;

/// An input event.
#[derive(Debug)]
pub(crate) enum Input {
    Command(Command),
    /// An invalid line with the reason; further lines may be valid.
    Bad(String),
    /// End of the input.
    End,
    /// The input ended with an error.
    Trouble(String),
}

/// Reads messages of standard input on a thread, because reads from a pipe block.
///
/// # Errors
/// Returns an error if the thread cannot be started.
pub(crate) fn start(args: &ConnectArgs) -> Result<mpsc::Receiver<Input>, End> {
    let (sender, input) = mpsc::channel(WAITING_MAX);
    let reader = Reader {
        framing: Framing::of(args),
        form: match (args.input.commands, args.input.binary) {
            (true, _) => Form::Commands { inspecting: args.inspect.inspect },
            (_, true) => Form::Binary,
            _ => Form::Text,
        },
        max: args.limits.max_message.0,
    };
    let read = move || {
        let mut stdin = BufReader::new(io::stdin());
        loop {
            let input = reader.next(&mut stdin);
            let is_last = matches!(input, Input::End | Input::Trouble(_));
            if sender.blocking_send(input).is_err() || is_last {
                return;
            }
        }
    };
    let thread = thread::Builder::new().name("input".to_owned()).spawn(read);
    thread.map(|_| input).map_err(|error| End::io("a thread for the input", &error))
}

struct Reader {
    framing: Framing,
    form: Form,
    max: usize,
}

enum Form {
    Text,
    Binary,
    Commands { inspecting: bool },
}

impl Reader {
    fn next(&self, input: &mut impl BufRead) -> Input {
        let message = match &self.framing {
            Framing::Delimited(delimiter) => read_delimited(input, delimiter, self.max),
            Framing::LengthPrefixed => read_prefixed(input, self.max),
        };
        match message {
            Ok(Some(message)) => self.command(message),
            Ok(None) => Input::End,
            Err(error) => Input::Trouble(format!("standard input: {error}")),
        }
    }

    fn command(&self, message: Vec<u8>) -> Input {
        if let Form::Binary = self.form {
            return Input::Command(Command::Binary(message));
        }
        let Ok(text) = String::from_utf8(message) else {
            return Input::Trouble("standard input is not valid UTF-8; use --binary".to_owned());
        };
        match self.form {
            Form::Commands { inspecting } => match command::parse(&text, inspecting) {
                Ok(command) => Input::Command(command),
                // A script does not read error messages: end with an error.
                Err(why) => Input::Trouble(format!("{text:?}: {why}")),
            },
            _ => Input::Command(Command::Text(text)),
        }
    }
}

/// Reads up to the delimiter, or to the end.
fn read_delimited(input: &mut impl BufRead, delimiter: &[u8], max: usize) -> io::Result<Option<Vec<u8>>> {
    let last = delimiter.last().copied().unwrap_or(b'\n');
    let mut message = Vec::new();
    loop {
        let room = (max + delimiter.len()).saturating_sub(message.len()) as u64;
        let read = input.take(room).read_until(last, &mut message)?;
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

/// Reads a length of four bytes, and a message of that length.
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

    fn all(framing: Framing, form: Form, max: usize, mut bytes: &[u8]) -> Vec<String> {
        let reader = Reader { framing, form, max };
        let mut found = Vec::new();
        loop {
            match reader.next(&mut bytes) {
                Input::Command(Command::Text(text)) => found.push(text),
                Input::Command(command) => found.push(format!("{command:?}")),
                Input::End => return found,
                input => {
                    found.push(format!("{input:?}"));
                    return found;
                }
            }
        }
    }

    #[test]
    fn each_line_is_a_message() {
        let lines = |bytes: &[u8]| all(Framing::Delimited(b"\n".to_vec()), Form::Text, 5, bytes);
        assert_eq!(lines(b""), Vec::<String>::new());
        assert_eq!(lines(b"a\n\nbc"), ["a", "", "bc"]);
        assert_eq!(lines(b"12345\n12345"), ["12345", "12345"]);
        assert!(lines(b"123456\n")[0].contains("--max-message"));
        assert!(lines(b"\xff\n")[0].contains("--binary"));
    }

    #[test]
    fn delimiter_may_have_several_bytes() {
        let parts = |bytes: &[u8]| all(Framing::Delimited(b"\r\n".to_vec()), Form::Text, 9, bytes);
        assert_eq!(parts(b"a\nb\r\nc\r\n"), ["a\nb", "c"]);
    }

    #[test]
    fn messages_may_be_length_prefixed() {
        let messages = |bytes: &[u8]| all(Framing::LengthPrefixed, Form::Text, 9, bytes);
        assert_eq!(messages(b"\0\0\0\x02ab\0\0\0\0\0\0\0\x01c"), ["ab", "", "c"]);
        assert!(messages(b"\0\0\0\x02a")[0].contains("Trouble"));
        assert!(messages(b"\0\0")[0].contains("Trouble"));
        assert!(messages(b"\xff\xff\xff\xff")[0].contains("--max-message"));
    }

    #[test]
    fn lines_may_be_commands() {
        let form = Form::Commands { inspecting: false };
        let found = all(Framing::Delimited(b"\n".to_vec()), form, 99, b"hi\n/ping x\n/nothing\nlost");
        assert_eq!(found[..2], ["hi", "Ping([120])"]);
        assert!(found[2].contains("/nothing") && found.len() == 3);
    }
}
