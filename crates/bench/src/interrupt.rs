//! Ctrl-C: the first ends what is measured, and what was measured so far is shown; the second ends the program.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::SIGINT;
use signal_hook::flag;

/// What a shell says of a program that was interrupted: 128 and the signal's number.
pub(crate) const EXIT_CODE: u8 = 130;

/// Whether there was a Ctrl-C.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Takes Ctrl-C from the system, which would end the program with the first.
    ///
    /// # Errors
    ///
    /// The system refuses.
    pub(crate) fn take() -> Result<Self, String> {
        let this = Self::default();
        // In this order: the second signal finds what the first has set.
        flag::register_conditional_shutdown(SIGINT, i32::from(EXIT_CODE), this.0.clone())
            .and_then(|_| flag::register(SIGINT, this.0.clone()))
            .map_err(|error| format!("SIGINT: {error}"))?;
        Ok(this)
    }

    pub(crate) fn came(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
