//! Subjects that the server denies to this user. A denied publication or request has no answer: the server's reason arrives
//! apart from it.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Mutex;
use std::time::Instant;

use async_nats::ServerError;
use futures_util::future::{Either, select};
use tokio::sync::Notify;

use crate::lock::lock;

/// Most denied subjects that are retained. Clients choose stream names; above it, all are forgotten, and requests that
/// wait end with their timeout.
const SUBJECTS_MAX: usize = 1_024;

/// The subscription on which all answers to requests arrive.
const INBOX: &str = "_INBOX.";

/// What ends the denials.
pub(super) const REMEDY: &str = "Grant the permissions that the documentation of brokers lists";

/// Denied subjects of a connection.
#[derive(Default)]
pub(super) struct DeniedSubjects {
    subjects: Mutex<BTreeMap<String, DeniedSubject>>,
    changed: Notify,
}

struct DeniedSubject {
    at: Instant,
    text: String,
}

/// A request's subject, as far as it is known. Other requests about the same stream may be denied meanwhile.
#[derive(Clone, Copy, Debug)]
pub(super) enum RequestedSubject<'a> {
    Exact(&'a str),
    /// Looks at a stream, or creates it.
    Stream(&'a str),
    /// Reads one message of a stream.
    Message(&'a str),
    /// Creates a stream's consumer, or reads its messages.
    Consumer(&'a str),
}

impl RequestedSubject<'_> {
    /// Whether a denied subject is one of the request.
    fn includes(&self, subject: &str) -> bool {
        let (operations, stream): (&[&str], &str) = match self {
            Self::Exact(exact) => return subject == *exact,
            Self::Stream(stream) => (&["STREAM.INFO.", "STREAM.CREATE."], stream),
            Self::Message(stream) => (&["STREAM.MSG.GET."], stream),
            Self::Consumer(stream) => (&["CONSUMER.CREATE.", "CONSUMER.MSG.NEXT."], stream),
        };
        let Some(request) = subject.strip_prefix("$JS.API.") else { return false };
        let name = operations.iter().find_map(|operation| request.strip_prefix(operation));
        name.is_some_and(|name| name.split('.').next() == Some(stream))
    }
}

impl DeniedSubjects {
    /// Notes a server error. Returns whether it denies a subject.
    pub(super) fn note(&self, error: &ServerError) -> bool {
        let ServerError::Other(text) = error else { return false };
        // `Permissions Violation for Publish to "subject"`, or for Subscription.
        let Some((_, denied)) = text.split_once("ermissions Violation for ") else { return false };
        let Some(subject) = denied.split('"').nth(1) else { return false };
        let mut subjects = lock(&self.subjects);
        if subjects.len() >= SUBJECTS_MAX && !subjects.contains_key(subject) {
            subjects.clear();
        }
        subjects.insert(subject.to_owned(), DeniedSubject { at: Instant::now(), text: text.clone() });
        drop(subjects);
        self.changed.notify_waiters();
        true
    }

    /// Forgets all, after a login.
    pub(super) fn clear(&self) {
        lock(&self.subjects).clear();
    }

    /// The reason why a subject is denied. The next publication asks the server again.
    pub(super) fn take(&self, subject: &str) -> Option<String> {
        lock(&self.subjects).remove(subject).map(|denied| denied.text)
    }

    /// The reason why a request since this time is denied.
    fn reason(&self, wanted: &RequestedSubject<'_>, since: Instant) -> Option<String> {
        let subjects = lock(&self.subjects);
        let is_denied = |subject: &str, denied: &DeniedSubject| {
            subject.starts_with(INBOX) || wanted.includes(subject) && denied.at >= since
        };
        let (_, denied) = subjects.iter().find(|(subject, denied)| is_denied(subject, denied))?;
        Some(format!("NATS denies a request: {}. {REMEDY}", denied.text))
    }

    /// The reason why no answer arrives on this connection, if its inbox is denied.
    pub(super) fn inbox(&self) -> Option<String> {
        let subjects = lock(&self.subjects);
        let (_, denied) = subjects.iter().find(|(subject, _)| subject.starts_with(INBOX))?;
        Some(format!("NATS denies answers: {}. {REMEDY}", denied.text))
    }

    /// Waits for a request.
    ///
    /// # Errors
    /// The reason why the server denies it.
    pub(super) async fn request<T>(
        &self,
        wanted: RequestedSubject<'_>,
        request: impl Future<Output = T>,
    ) -> Result<T, String> {
        let since = Instant::now();
        let mut request = pin!(request);
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(reason) = self.reason(&wanted, since) {
                return Err(reason);
            }
            match select(changed, request.as_mut()).await {
                Either::Left(_) => {}
                Either::Right((answer, _)) => return Ok(answer),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denied_subjects_are_bounded() {
        let denied = DeniedSubjects::default();
        for number in 0..3 * SUBJECTS_MAX {
            let text = format!("Permissions Violation for Publish to \"s{number}\"");
            assert!(denied.note(&ServerError::Other(text)));
            assert!(lock(&denied.subjects).len() <= SUBJECTS_MAX);
        }
        assert!(denied.take(&format!("s{}", 3 * SUBJECTS_MAX - 1)).is_some());
        assert!(!denied.note(&ServerError::Other("Maximum Payload Violation".to_owned())));
    }

    #[test]
    fn request_is_denied_by_its_stream_and_not_by_an_earlier_one() {
        let denied = DeniedSubjects::default();
        let note = |kind: &str, subject: &str| {
            denied.note(&ServerError::Other(format!("Permissions Violation for {kind} to \"{subject}\"")))
        };
        let begin = Instant::now();
        let reason = |wanted, since| denied.reason(&wanted, since);
        assert!(
            note("Publish", "$JS.API.STREAM.INFO.s-0") && note("Publish", "$JS.API.CONSUMER.DELETE.t-0.c")
        );
        let found = reason(RequestedSubject::Stream("s-0"), begin);
        assert!(found.is_some_and(|reason| reason.contains("STREAM.INFO.s-0")));
        assert!(reason(RequestedSubject::Stream("s-0"), Instant::now()).is_none(), "an earlier one");
        for other in [
            RequestedSubject::Stream("s"),
            RequestedSubject::Message("s-0"),
            RequestedSubject::Consumer("s-0"),
            RequestedSubject::Consumer("t-0"),
            RequestedSubject::Exact("$JS.API.STREAM.INFO"),
        ] {
            assert!(reason(other, begin).is_none(), "{other:?}");
        }
        // Without answers, no request has one.
        assert!(note("Subscription", "_INBOX.a.*"));
        let found = reason(RequestedSubject::Stream("t-0"), Instant::now());
        assert!(found.is_some_and(|reason| reason.contains("_INBOX")));
    }
}
