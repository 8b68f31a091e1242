//! Output for all events: the terminal, a pipe, JSON, a recording.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sinews::Message;
use sinews_server::escape::{controls_terminal, escape_controls, escape_json, escape_line};

use super::args::{BinaryFormat, ConnectArgs};
use super::console::Printer;
use super::end::{RunEnd, print_error};
use super::entry::{Direction, EntryKind, RecordEntry};

/// Output of all events.
pub(crate) struct Output {
    format: OutputFormat,
    show: BinaryFormat,
    verbose: bool,
    record: Option<(String, BufWriter<File>)>,
    /// Messages carry the client's number.
    many: bool,
    opened: Option<Instant>,
    /// Standard output is a terminal, which messages must not control; other readers get a message's bytes.
    in_terminal: bool,
}

enum OutputFormat {
    Console(Printer),
    /// A pipe, with its message framing.
    Pipe(PipeFraming),
    Json,
}

/// Message framing in a pipe.
#[derive(Clone, Debug)]
pub(crate) enum PipeFraming {
    Delimited(Vec<u8>),
    LengthPrefixed,
}

impl PipeFraming {
    pub(crate) fn from_args(args: &ConnectArgs) -> Self {
        match &args.input.delimiter {
            _ if args.input.length_prefixed => Self::LengthPrefixed,
            Some(delimiter) => Self::Delimited(delimiter.0.clone()),
            None => Self::Delimited(b"\n".to_vec()),
        }
    }
}

impl Output {
    /// Opens the output, with a console's printer if one is running.
    ///
    /// # Errors
    /// Returns an error if the recording cannot be created.
    pub(crate) fn open(args: &ConnectArgs, printer: Option<Printer>) -> Result<Self, RunEnd> {
        let record = args.session.record.as_deref().map(create).transpose()?;
        let in_console = printer.is_some();
        let format = match printer {
            _ if args.output.jsonl => OutputFormat::Json,
            Some(printer) => OutputFormat::Console(printer),
            None => OutputFormat::Pipe(PipeFraming::from_args(args)),
        };
        let show =
            args.output.show.unwrap_or(if in_console { BinaryFormat::Dump } else { BinaryFormat::Raw });
        let many = args.listen.is_some();
        let (verbose, in_terminal) = (args.output.verbose, io::stdout().is_terminal());
        Ok(Self { format, show, verbose, record, many, opened: None, in_terminal })
    }

    /// Reports an open connection; times start with the first.
    pub(crate) fn opened(&mut self, entry: RecordEntry, message: &str) -> Result<(), RunEnd> {
        self.opened.get_or_insert_with(Instant::now);
        self.print_status(message)?;
        self.note(entry)
    }

    /// Reports a received message.
    pub(crate) fn received(
        &mut self,
        peer: u32,
        message: &Message,
        rtt_ms: Option<f64>,
    ) -> Result<(), RunEnd> {
        let mut entry = RecordEntry::new(Direction::In, message);
        entry.rtt_ms = rtt_ms;
        entry.peer = self.many.then_some(peer);
        self.note(entry)?;
        match message {
            Message::Text(_) | Message::Binary(_) => self.show(peer, message),
            Message::Ping(payload) => {
                self.print_status(&format!("{}ping {}", self.peer_prefix(peer), quoted(payload)))
            }
            Message::Pong(payload) => match rtt_ms {
                Some(rtt) => self.print_status(&format!(
                    "{}pong {} after {rtt:.1} ms",
                    self.peer_prefix(peer),
                    quoted(payload)
                )),
                None => Ok(()),
            },
            Message::Close(_) => Ok(()),
        }
    }

    /// Reports a sent message.
    pub(crate) fn sent(&mut self, peer: u32, message: &Message) -> Result<(), RunEnd> {
        let peer = self.many.then_some(peer);
        self.note(RecordEntry { peer, ..RecordEntry::new(Direction::Out, message) })
    }

    /// Reports a connection's end.
    pub(crate) fn closed(&mut self, peer: u32, end: &RunEnd) -> Result<(), RunEnd> {
        self.print_status(&format!("{}{}", self.peer_prefix(peer), end.message))?;
        let peer = self.many.then_some(peer);
        let reason = Some(end.message.clone());
        self.note(RecordEntry {
            kind: EntryKind::End,
            peer,
            reason,
            exit: Some(end.code()),
            ..RecordEntry::default()
        })
    }

    /// Prints a notice: always in the console, otherwise on standard error with `--verbose`.
    pub(crate) fn print_status(&mut self, message: &str) -> Result<(), RunEnd> {
        match &mut self.format {
            OutputFormat::Console(printer) => printer.print(format!("* {}\n", escape_line(message))),
            _ if self.verbose => self.warn(message),
            _ => Ok(()),
        }
    }

    /// Prints a notice in any case.
    pub(crate) fn warn(&mut self, message: &str) -> Result<(), RunEnd> {
        match &mut self.format {
            OutputFormat::Console(printer) => printer.print(format!("* {}\n", escape_line(message))),
            _ => {
                print_error(message);
                Ok(())
            }
        }
    }

    /// Prints lines from `--inspect` and `/help`.
    pub(crate) fn lines(&mut self, text: &str) -> Result<(), RunEnd> {
        let text = escape_controls(text);
        match &mut self.format {
            OutputFormat::Console(printer) => printer.print(format!("{text}\n")),
            _ => write(|stdout| writeln!(stdout, "{text}")),
        }
    }

    /// Completes the output.
    ///
    /// # Errors
    /// Returns an error if the recording cannot be synced to disk.
    pub(crate) fn finish(&mut self) -> Result<(), RunEnd> {
        if let OutputFormat::Console(printer) = &mut self.format {
            printer.finish()?;
        }
        match &mut self.record {
            Some((path, file)) => file.flush().map_err(|error| RunEnd::io(path, &error)),
            None => Ok(()),
        }
    }

    fn peer_prefix(&self, peer: u32) -> String {
        if self.many { format!("#{peer} ") } else { String::new() }
    }

    fn show(&mut self, peer: u32, message: &Message) -> Result<(), RunEnd> {
        let peer_prefix = self.peer_prefix(peer);
        match &mut self.format {
            OutputFormat::Console(printer) => {
                printer.print(format!("{peer_prefix}< {}\n", in_console(message, self.show)))
            }
            OutputFormat::Pipe(framing) => {
                let mut shown = in_pipe(message, self.show);
                if self.in_terminal {
                    shown = escape_controls(&String::from_utf8_lossy(&shown)).into_bytes();
                }
                write(|stdout| match framing {
                    PipeFraming::Delimited(delimiter) => {
                        stdout.write_all(&shown).and_then(|()| stdout.write_all(delimiter))
                    }
                    PipeFraming::LengthPrefixed => {
                        // A message in memory is within --max-message, which fits the prefix.
                        let len = u32::try_from(shown.len()).unwrap_or(u32::MAX);
                        stdout.write_all(&len.to_be_bytes()).and_then(|()| stdout.write_all(&shown))
                    }
                })
            }
            OutputFormat::Json => Ok(()),
        }
    }

    /// Sets the times, and writes the entry to its destinations.
    fn note(&mut self, mut entry: RecordEntry) -> Result<(), RunEnd> {
        if self.record.is_none() && !matches!(self.format, OutputFormat::Json) {
            return Ok(());
        }
        let micros = |seconds: f64| (seconds * 1e6).round() / 1e6;
        entry.ts = micros(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64());
        entry.at_ms = self.opened.map_or(0.0, |opened| micros(opened.elapsed().as_secs_f64() * 1e3));
        // The entry contains only strings and numbers.
        let line = serde_json::to_string(&entry).map_err(|error| RunEnd::failed(error.to_string()))?;
        let line = escape_json(&line);
        if let Some((path, file)) = &mut self.record {
            // Flush, so that readers see each entry immediately, and also after a crash.
            let written = writeln!(file, "{line}").and_then(|()| file.flush());
            written.map_err(|error| RunEnd::io(path, &error))?;
        }
        match &self.format {
            OutputFormat::Json => write(|stdout| writeln!(stdout, "{line}")),
            _ => Ok(()),
        }
    }
}

fn create(path: &Path) -> Result<(String, BufWriter<File>), RunEnd> {
    let name = path.display().to_string();
    let file = File::create(path).map_err(|error| RunEnd::io(&name, &error))?;
    Ok((name, BufWriter::new(file)))
}

fn write(work: impl FnOnce(&mut io::StdoutLock<'_>) -> io::Result<()>) -> Result<(), RunEnd> {
    let mut stdout = io::stdout().lock();
    let written = work(&mut stdout).and_then(|()| stdout.flush());
    written.map_err(|error| RunEnd::io("standard output", &error))
}

fn in_console(message: &Message, show: BinaryFormat) -> String {
    let bytes = message.as_bytes();
    if let Some(text) = message.as_text() {
        return printable(text);
    }
    match show {
        BinaryFormat::Dump if bytes.is_empty() => "0 bytes".to_owned(),
        BinaryFormat::Dump => format!("{} bytes\n{}", bytes.len(), dump(bytes)),
        BinaryFormat::Hex => hex(bytes),
        BinaryFormat::Base64 => STANDARD.encode(bytes),
        BinaryFormat::Size => format!("{} bytes", bytes.len()),
        BinaryFormat::Raw => printable(&String::from_utf8_lossy(bytes)),
    }
}

fn in_pipe(message: &Message, show: BinaryFormat) -> Vec<u8> {
    match (message, show) {
        (Message::Binary(bytes), BinaryFormat::Dump) => dump(bytes).into_bytes(),
        (Message::Binary(bytes), BinaryFormat::Hex) => hex(bytes).into_bytes(),
        (Message::Binary(bytes), BinaryFormat::Base64) => STANDARD.encode(bytes).into_bytes(),
        (Message::Binary(bytes), BinaryFormat::Size) => format!("{} bytes", bytes.len()).into_bytes(),
        (message, _) => message.as_bytes().to_vec(),
    }
}

/// Escapes control characters: received text must not control the terminal.
fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => shown.push_str("\n  "),
            '\t' => shown.push(c),
            c if controls_terminal(c) => shown.extend(c.escape_default()),
            c => shown.push(c),
        }
    }
    shown
}

/// Formats text in quotes, other bytes in hex.
pub(crate) fn quoted(payload: &[u8]) -> String {
    match std::str::from_utf8(payload) {
        Ok(text) => format!("{text:?}"),
        Err(_) => hex(payload),
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ")
}

/// Formats sixteen bytes per line: offset, hex, characters.
pub(crate) fn dump(bytes: &[u8]) -> String {
    let line = |(at, row): (usize, &[u8])| {
        let character =
            |byte: &u8| if byte.is_ascii_graphic() || *byte == b' ' { char::from(*byte) } else { '.' };
        let characters: String = row.iter().map(character).collect();
        format!("  {:08x}  {:<47}  |{characters}|", at * 16, hex(row))
    };
    bytes.chunks(16).enumerate().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binary_messages_follow_the_show_option() {
        let message = Message::binary(b"abc\0\xffdefghijklmnopq".to_vec());
        let expected = "19 bytes\n  00000000  61 62 63 00 ff 64 65 66 67 68 69 6a 6b 6c 6d 6e  |abc..defghijklmn|\n  \
                        00000010  6f 70 71";
        let shown = in_console(&message, BinaryFormat::Dump);
        assert!(shown.starts_with(expected) && shown.ends_with("  |opq|"), "{shown}");
        assert_eq!(in_pipe(&Message::binary(vec![0, 255]), BinaryFormat::Hex), b"00 ff");
        assert_eq!(in_pipe(&Message::binary(vec![0, 255]), BinaryFormat::Base64), b"AP8=");
        assert_eq!(in_pipe(&Message::binary(vec![0, 255]), BinaryFormat::Size), b"2 bytes");
        assert_eq!(in_pipe(&Message::binary(vec![0, 255]), BinaryFormat::Raw), [0, 255]);
    }

    #[test]
    fn text_cannot_control_the_terminal() {
        assert_eq!(printable("a\x1b[2Jb\nc\td"), "a\\u{1b}[2Jb\n  c\td");
    }
}
