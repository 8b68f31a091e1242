//! The terminal: line editing, with received messages printed above the edited line.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{Config, Editor, ExternalPrinter};
use tokio::sync::mpsc;

use super::command;
use super::end::RunEnd;
use super::input::InputEvent;

/// Maximum typed or pasted lines in the queue.
pub(crate) const LINES_MAX: usize = 1_024;
/// Maximum lines in the history.
const HISTORY_MAX: usize = 1_000;

/// Time allowed for drawing the prompt before it is wiped; a slower prompt stays on screen.
const DRAWING: Duration = Duration::from_millis(20);

/// Prints above the edited line.
pub(crate) struct Printer {
    printer: Box<dyn ExternalPrinter + Send>,
    terminal: Termios,
}

/// Whether standard input and output are a terminal.
pub(crate) fn is_interactive() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// Starts a thread that reads lines from the terminal until the program exits. While it edits a line, only its
/// printer may print.
///
/// # Errors
/// Returns an error if the terminal cannot be used.
pub(crate) fn start(
    prompt: &'static str,
    history: Option<PathBuf>,
    inspecting: bool,
) -> Result<(Printer, mpsc::Receiver<InputEvent>), RunEnd> {
    let terminal =
        tcgetattr(io::stdin()).map_err(|error| RunEnd::io("the terminal", &io::Error::from(error)))?;
    let fault = |error: ReadlineError| RunEnd::failed(format!("the terminal: {error}"));
    // Pasted lines are handled like typed lines.
    let config = Config::builder().bracketed_paste(false).auto_add_history(true);
    let config = config.max_history_size(HISTORY_MAX).map_err(fault)?.build();
    let mut editor = Editor::<(), FileHistory>::with_config(config).map_err(fault)?;
    let printer = editor.create_external_printer().map_err(fault)?;
    if let Some(path) = &history {
        // On the first run the file does not exist.
        let _ = editor.load_history(path);
    }
    let (lines, input) = mpsc::channel(LINES_MAX);
    let typed = move || type_lines(&mut editor, &lines, prompt, history.as_deref(), inspecting);
    thread::Builder::new()
        .name("console".to_owned())
        .spawn(typed)
        .map_err(|error| RunEnd::io("a thread for the console", &error))?;
    Ok((Printer { printer: Box::new(printer), terminal }, input))
}

/// Returns the default path for the console's history.
pub(crate) fn default_history() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let state = variable("XDG_STATE_HOME").or_else(|| Some(variable("HOME")?.join(".local/state")))?;
    Some(state.join("sinews/connect-history"))
}

fn type_lines(
    editor: &mut Editor<(), FileHistory>,
    lines: &mpsc::Sender<InputEvent>,
    prompt: &str,
    history: Option<&Path>,
    inspecting: bool,
) {
    // The editor keeps running after the input ends, because its printer depends on it.
    loop {
        let input = match editor.readline(prompt) {
            Ok(line) => {
                keep(editor, history);
                command::parse(&line, inspecting).map_or_else(InputEvent::Invalid, InputEvent::Command)
            }
            Err(ReadlineError::Eof | ReadlineError::Interrupted) => InputEvent::End,
            Err(error) => {
                let _ = lines.blocking_send(InputEvent::Failed(format!("the terminal: {error}")));
                return;
            }
        };
        // Blocking here would block the editor, and a concurrent print with it.
        if let Err(mpsc::error::TrySendError::Full(_)) = lines.try_send(input) {
            let _ = writeln!(io::stdout(), "* input queue is full (limit {LINES_MAX}): line not sent\r");
        }
    }
}

/// Writes the history immediately: the program exits without notifying this thread. A missing directory is not an
/// error.
fn keep(editor: &mut Editor<(), FileHistory>, history: Option<&Path>) {
    let Some(path) = history else { return };
    if let Some(folder) = path.parent() {
        let _ = fs::create_dir_all(folder);
    }
    let _ = editor.append_history(path);
}

impl Printer {
    pub(crate) fn print(&mut self, text: String) -> Result<(), RunEnd> {
        self.printer.print(text).map_err(|error| RunEnd::failed(format!("the terminal: {error}")))
    }

    /// Restores the terminal, with all output printed and without the prompt.
    pub(crate) fn finish(&mut self) -> Result<(), RunEnd> {
        /// Cursor up and down by one line.
        const NOTHING: &str = "\x1b[A\n";
        // The printer queues at most one print: two further prints ensure that all earlier prints are complete. The
        // prompt is drawn after each print without notification; after a short wait it can be wiped in most cases.
        self.print(NOTHING.to_owned())?;
        self.print(NOTHING.to_owned())?;
        thread::sleep(DRAWING);
        let mut stdout = io::stdout().lock();
        let _ = stdout.write_all(b"\r\x1b[J").and_then(|()| stdout.flush());
        tcsetattr(io::stdin(), OptionalActions::Now, &self.terminal)
            .map_err(|error| RunEnd::io("the terminal", &io::Error::from(error)))
    }
}
