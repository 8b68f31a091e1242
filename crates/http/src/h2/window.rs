//! Arithmetic of flow-control windows (RFC 9113 section 6.9).

/// Window without settings.
pub(super) const WINDOW_DEFAULT: u32 = 65_535;

/// The largest window.
pub(super) const WINDOW_MAX: u32 = i32::MAX as u32;

/// Bytes that one side may send. Negative after SETTINGS_INITIAL_WINDOW_SIZE was reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FlowWindow(i32);

/// A window beyond 2^31-1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WindowOverflow;

impl FlowWindow {
    /// Creates a window; sizes are at most [`WINDOW_MAX`].
    pub(super) const fn new(size: u32) -> Self {
        Self(if size > WINDOW_MAX { i32::MAX } else { size as i32 })
    }

    /// The bytes that may be sent now.
    pub(super) const fn available(self) -> u32 {
        if self.0 > 0 { self.0 as u32 } else { 0 }
    }

    /// Takes bytes out of the window. Returns whether it has as many.
    pub(super) const fn charge(&mut self, bytes: u32) -> bool {
        let has = bytes <= self.available();
        if has {
            self.0 -= bytes as i32;
        }
        has
    }

    /// Returns the bytes that were taken from a window with this initial size, and neither returned nor consumed.
    pub(super) fn taken(self, initial: u32, consumed: Unreported) -> u32 {
        let taken = i64::from(initial) - i64::from(self.0) - i64::from(consumed.0);
        u32::try_from(taken).unwrap_or(0)
    }

    /// Adds the bytes in a WINDOW_UPDATE.
    pub(super) fn credit(&mut self, bytes: u32) -> Result<(), WindowOverflow> {
        self.shift(i64::from(bytes))
    }

    /// Moves the window by a change in the initial size (RFC 9113 section 6.9.2).
    pub(super) fn shift(&mut self, by: i64) -> Result<(), WindowOverflow> {
        self.0 = i32::try_from(i64::from(self.0) + by).map_err(|_| WindowOverflow)?;
        Ok(())
    }
}

/// Received bytes that the application has consumed, and that no WINDOW_UPDATE has returned yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Unreported(u32);

impl Unreported {
    /// Adds consumed bytes. Returns a WINDOW_UPDATE increment once half the initial window is consumed: one frame for
    /// many.
    pub(super) const fn add(&mut self, bytes: u32, initial: u32) -> Option<u32> {
        self.0 = self.0.saturating_add(bytes);
        if self.0 == 0 || self.0 < initial / 2 {
            return None;
        }
        let increment = self.0;
        self.0 = 0;
        Some(increment)
    }
}
