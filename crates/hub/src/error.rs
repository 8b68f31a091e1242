//! The error of the hub's options, files, tokens and connections.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::Path;

/// Why a call has failed: an option is invalid, a file cannot be read, a token is rejected, a broker does not answer.
///
/// [`kind`](Self::kind) is for a program, the text for a person: it names the place and the value at fault. Neither the
/// text nor `Debug` has a secret.
///
/// ```
/// use sinews_hub::{HubErrorKind, Namespace, Namespaces};
///
/// let error = Namespaces::new([Namespace::new("chat.*x")]).unwrap_err();
/// assert_eq!(error.kind(), HubErrorKind::Pattern);
/// assert_eq!(error.place(), Some(r#"namespace "chat.*x""#));
/// ```
#[derive(Debug)]
pub struct HubError {
    kind: HubErrorKind,
    place: Option<String>,
    text: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

/// What has failed, for a program that decides what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HubErrorKind {
    /// An option is invalid, exceeds its limit, or contradicts another one.
    Setting,
    /// A text is no topic pattern.
    Pattern,
    /// A URL is invalid, or leads where it must not.
    Url,
    /// A text in PEM has no valid certificate, or no certificate is trusted.
    Certificates,
    /// A key or a secret is too short, of an unknown kind, or has no rights.
    Key,
    /// A file or a directory cannot be read or written, or belongs to another process or broker.
    File,
    /// A token is rejected, and always will be.
    Token,
    /// The keys that verify a token have not been fetched. The same token may be accepted later.
    KeysNotFetched,
    /// A cluster's broker does not answer, or rejects this program.
    Broker,
    /// The predecessor process has not handed over its state.
    Handover,
    /// The system has no thread or no random numbers left for this process.
    System,
}

impl HubError {
    pub(crate) fn new(kind: HubErrorKind, text: impl Into<String>) -> Self {
        Self { kind, place: None, text: text.into(), source: None }
    }

    /// An invalid option.
    pub(crate) fn setting(text: impl Into<String>) -> Self {
        Self::new(HubErrorKind::Setting, text)
    }

    /// An invalid key or secret. The text must not repeat it.
    pub(crate) fn key(text: impl Into<String>) -> Self {
        Self::new(HubErrorKind::Key, text)
    }

    /// An error with the text of its source. A parser whose error may repeat a secret is no source.
    pub(crate) fn caused(kind: HubErrorKind, source: impl Error + Send + Sync + 'static) -> Self {
        Self::new(kind, source.to_string()).with_source(source)
    }

    /// A file that cannot be read or written.
    pub(crate) fn file(path: &Path, error: io::Error) -> Self {
        Self::caused(HubErrorKind::File, error).at(path.display())
    }

    pub(crate) fn with_source(self, source: impl Error + Send + Sync + 'static) -> Self {
        Self { source: Some(Box::new(source)), ..self }
    }

    /// Adds the place, around the place that the error has already.
    pub(crate) fn at(self, place: impl fmt::Display) -> Self {
        let place = match &self.place {
            Some(inner) => format!("{place}: {inner}"),
            None => place.to_string(),
        };
        Self { place: Some(place), ..self }
    }

    /// Returns what has failed.
    #[must_use]
    pub fn kind(&self) -> HubErrorKind {
        self.kind
    }

    /// Returns the faulty part of the options, such as `app "1": webhook 2`, or the file, such as `/etc/keys:3`. The
    /// text begins with it. `None` if the call was about one thing only, or about all together.
    #[must_use]
    pub fn place(&self) -> Option<&str> {
        self.place.as_deref()
    }
}

impl fmt::Display for HubError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = &self.place {
            write!(f, "{place}: ")?;
        }
        f.write_str(&self.text)
    }
}

impl Error for HubError {
    /// Returns the error from the system, TLS or a parser, which [`Display`](fmt::Display) has printed. A parser error
    /// that may repeat a secret is not kept.
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_begins_with_the_places_from_outside_to_inside() {
        let error = HubError::setting("too many");
        assert_eq!((error.place(), error.to_string()), (None, "too many".to_owned()));
        let error = error.at("webhook 2").at("app \"1\"");
        assert_eq!(error.place(), Some("app \"1\": webhook 2"));
        assert_eq!(error.to_string(), "app \"1\": webhook 2: too many");
        assert_eq!(error.kind(), HubErrorKind::Setting);
    }

    #[test]
    fn error_of_a_file_has_its_path_and_its_source() {
        let error = HubError::file(Path::new("/keys"), io::Error::from(io::ErrorKind::NotFound));
        assert_eq!((error.kind(), error.place()), (HubErrorKind::File, Some("/keys")));
        let source = error.source().and_then(|source| source.downcast_ref::<io::Error>()).unwrap();
        assert_eq!(source.kind(), io::ErrorKind::NotFound);
        assert_eq!(error.to_string(), format!("/keys: {source}"));
    }
}
