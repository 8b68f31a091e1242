//! The terminal: a line that is edited, and what comes meanwhile above it.

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
use super::end::End;
use super::input::Input;

/// Lines that are typed, or pasted, and wait until they are sent.
pub(crate) const LINES_MAX: usize = 1_024;
/// Lines that the history keeps.
const HISTORY_MAX: usize = 1_000;

/// How long the prompt may take to be drawn. If it takes longer, it stays.
const DRAWING: Duration = Duration::from_millis(20);

/// Prints above the line that is edited.
pub(crate) struct Printer {
    printer: Box<dyn ExternalPrinter + Send>,
    terminal: Termios,
}

/// Whether a person sits there.
pub(crate) fn is_there() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// Lines from the terminal, read by a thread that lives as long as the program: while it edits a line, only it may
/// print.
///
/// # Errors
/// This is no terminal after all.
pub(crate) fn start(
    prompt: &'static str,
    history: Option<PathBuf>,
    inspecting: bool,
) -> Result<(Printer, mpsc::Receiver<Input>), End> {
    let terminal =
        tcgetattr(io::stdin()).map_err(|error| End::io("the terminal", &io::Error::from(error)))?;
    let fault = |error: ReadlineError| End::trouble(format!("the terminal: {error}"));
    // What is pasted is lines as if they were typed.
    let config = Config::builder().bracketed_paste(false).auto_add_history(true);
    let config = config.max_history_size(HISTORY_MAX).map_err(fault)?.build();
    let mut editor = Editor::<(), FileHistory>::with_config(config).map_err(fault)?;
    let printer = editor.create_external_printer().map_err(fault)?;
    if let Some(path) = &history {
        // The first time there is none.
        let _ = editor.load_history(path);
    }
    let (lines, input) = mpsc::channel(LINES_MAX);
    let typed = move || type_lines(&mut editor, &lines, prompt, history.as_deref(), inspecting);
    thread::Builder::new()
        .name("console".to_owned())
        .spawn(typed)
        .map_err(|error| End::io("a thread for the console", &error))?;
    Ok((Printer { printer: Box::new(printer), terminal }, input))
}

/// Where the lines of the console are kept if nothing is said.
pub(crate) fn default_history() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let state = variable("XDG_STATE_HOME").or_else(|| Some(variable("HOME")?.join(".local/state")))?;
    Some(state.join("sinews/connect-history"))
}

fn type_lines(
    editor: &mut Editor<(), FileHistory>,
    lines: &mpsc::Sender<Input>,
    prompt: &str,
    history: Option<&Path>,
    inspecting: bool,
) {
    // Behind the end it goes on reading, and nobody listens: whoever prints may rely on it.
    loop {
        let input = match editor.readline(prompt) {
            Ok(line) => {
                keep(editor, history);
                command::parse(&line, inspecting).map_or_else(Input::Bad, Input::Command)
            }
            Err(ReadlineError::Eof | ReadlineError::Interrupted) => Input::End,
            Err(error) => {
                let _ = lines.blocking_send(Input::Trouble(format!("the terminal: {error}")));
                return;
            }
        };
        // Waiting here, it could not print, and whoever prints would wait for it.
        if let Err(mpsc::error::TrySendError::Full(_)) = lines.try_send(input) {
            let _ = writeln!(io::stdout(), "* too many lines wait: this one is not sent\r");
        }
    }
}

/// At once, since the program ends without asking this thread. That there is no place for it is no trouble.
fn keep(editor: &mut Editor<(), FileHistory>, history: Option<&Path>) {
    let Some(path) = history else { return };
    if let Some(folder) = path.parent() {
        let _ = fs::create_dir_all(folder);
    }
    let _ = editor.append_history(path);
}

impl Printer {
    pub(crate) fn print(&mut self, text: String) -> Result<(), End> {
        self.printer.print(text).map_err(|error| End::trouble(format!("the terminal: {error}")))
    }

    /// Leaves the terminal as it was, with everything printed and without the prompt.
    pub(crate) fn finish(&mut self) -> Result<(), End> {
        /// A line up and one down.
        const NOTHING: &str = "\x1b[A\n";
        // One print waits at most while one is under way: behind two more, all those before are done. The prompt is
        // drawn behind each, and nobody says when: a moment later it is mostly there, and can be wiped away.
        self.print(NOTHING.to_owned())?;
        self.print(NOTHING.to_owned())?;
        thread::sleep(DRAWING);
        let mut stdout = io::stdout().lock();
        let _ = stdout.write_all(b"\r\x1b[J").and_then(|()| stdout.flush());
        tcsetattr(io::stdin(), OptionalActions::Now, &self.terminal)
            .map_err(|error| End::io("the terminal", &io::Error::from(error)))
    }
}
