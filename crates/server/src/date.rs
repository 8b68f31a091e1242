//! The `Date` header (RFC 9110 section 6.6.1), formatted once a second.

use std::time::{Duration, SystemTime};

use sinews_proto::Time;

/// Current date in HTTP format, and the end of its second.
#[derive(Debug, Default)]
pub(crate) struct Date {
    text: String,
    until: Option<Time>,
}

impl Date {
    /// Returns the current date. Reads the system clock once per second of loop time.
    pub(crate) fn at(&mut self, now: Time) -> &str {
        if self.until.is_none_or(|until| now >= until) {
            self.text = httpdate::fmt_http_date(SystemTime::now());
            self.until = Some(now + Duration::from_secs(1));
        }
        &self.text
    }
}
