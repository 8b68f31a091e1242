//! Ctrl-C handling: the first signal ends the measurement and prints the results so far; the second exits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::SIGINT;
use signal_hook::flag;

/// A shell's exit code for an interrupted program: 128 plus the signal number.
pub(crate) const EXIT_CODE: u8 = 130;

/// Whether Ctrl-C was pressed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Installs a handler for Ctrl-C, so that the first signal does not exit the program.
    ///
    /// # Errors
    ///
    /// Returns an error if the signal handler cannot be installed.
    pub(crate) fn take() -> Result<Self, String> {
        let this = Self::default();
        // The order matters: the second signal must find the flag set by the first.
        flag::register_conditional_shutdown(SIGINT, i32::from(EXIT_CODE), this.0.clone())
            .and_then(|_| flag::register(SIGINT, this.0.clone()))
            .map_err(|error| format!("SIGINT: {error}"))?;
        Ok(this)
    }

    pub(crate) fn is_interrupted(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
