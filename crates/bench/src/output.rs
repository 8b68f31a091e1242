//! Results on standard output, diagnostics on standard error.

use std::io::Write;

/// Prints a result.
pub(crate) fn print(text: &str) {
    // A closed pipe is not an error: the reader has enough.
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Prints a diagnostic to standard error; results go to standard output.
pub(crate) fn print_status(text: &str) {
    let _ = writeln!(std::io::stderr(), "sinews bench: {text}");
}
