//! Results on standard output, diagnostics on standard error.

use std::io::Write;

use sinews_server::escape::escape_controls;

/// Prints a result. It may have server texts.
pub(crate) fn print(text: &str) {
    // A closed pipe is not an error: the reader has enough.
    let _ = writeln!(std::io::stdout(), "{}", escape_controls(text));
}

/// Prints a diagnostic to standard error; results go to standard output.
pub(crate) fn print_status(text: &str) {
    let _ = writeln!(std::io::stderr(), "sinews bench: {}", escape_controls(text));
}
