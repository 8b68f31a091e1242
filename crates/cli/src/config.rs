//! The configuration file: parsing and error reports.

mod connection;
pub(crate) mod keys;
pub(crate) mod network;
mod server;
mod streams;
mod tls;
pub(crate) mod units;

use std::borrow::Cow;
use std::fs;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::de::{DeTable, DeValue};

pub(crate) use self::connection::{HttpValues, WebSocketValues};
use self::network::{Mode, Network, Place as ListenPlace};
pub(crate) use self::server::{LimitValues, StopValues};
pub(crate) use self::streams::StreamValues;
pub(crate) use self::tls::TlsValues;
use self::units::{Bytes, Keep, OneOrMore, Wait};
use crate::args::{Backend, Deflate, ProxyHeader};
use crate::log::LogFormat;

/// Values of a file. Missing keys are `None`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Values {
    pub(crate) listen: Option<OneOrMore<ListenPlace>>,
    pub(crate) unix_mode: Option<Mode>,
    pub(crate) proxy_protocol: Option<bool>,
    pub(crate) trusted_proxies: Option<OneOrMore<Network>>,
    pub(crate) trusted_header: Option<ProxyHeader>,
    pub(crate) threads: Option<NonZeroUsize>,
    pub(crate) backend: Option<Backend>,
    pub(crate) max_message: Option<Bytes>,
    pub(crate) deflate: Option<Deflate>,
    pub(crate) origin: Option<OneOrMore<String>>,
    pub(crate) hosts: Option<OneOrMore<String>>,
    pub(crate) history: Option<OneOrMore<Keep>>,
    pub(crate) log: Option<String>,
    pub(crate) log_format: Option<LogFormat>,
    pub(crate) access_log: Option<bool>,
    pub(crate) auth: AuthValues,
    pub(crate) streams: StreamValues,
    pub(crate) limits: LimitValues,
    pub(crate) stop: StopValues,
    pub(crate) tls: TlsValues,
    pub(crate) http: HttpValues,
    pub(crate) websocket: WebSocketValues,
}

/// `[auth]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct AuthValues {
    pub(crate) secret: Option<String>,
    pub(crate) secret_file: Option<PathBuf>,
    pub(crate) public_key_file: Option<PathBuf>,
    pub(crate) jwks_file: Option<PathBuf>,
    pub(crate) audience: Option<OneOrMore<String>>,
    pub(crate) issuer: Option<OneOrMore<String>>,
    pub(crate) leeway: Option<Wait>,
    pub(crate) public_subscribe: Option<OneOrMore<String>>,
    pub(crate) public_publish: Option<OneOrMore<String>>,
}

/// A parsed file.
#[derive(Debug, Default)]
pub(crate) struct File {
    pub(crate) values: Values,
    path: PathBuf,
    /// Line of each key.
    lines: Vec<(String, usize)>,
}

impl File {
    /// Reads a file.
    ///
    /// # Errors
    /// Returns one line for each error, with the file's name, the line, the key and the expected value.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Self::parse(&text, path)
    }

    pub(crate) fn parse(text: &str, path: &Path) -> Result<Self, String> {
        let at = |offset: usize| format!("{}:{}", path.display(), line_of(text, offset));
        let syntax = |error: &toml::de::Error| {
            let offset = error.span().map_or(0, |span| span.start);
            format!("{}: {}", at(offset), error.message().replace('\n', "; "))
        };
        let table = DeTable::parse(text).map_err(|error| syntax(&error))?;
        let mut places = Vec::new();
        list("", table.get_ref(), &mut places);
        let unknown: Vec<String> = places.iter().filter_map(|place| place.fault(&at)).collect();
        if !unknown.is_empty() {
            return Err(unknown.join("\n"));
        }
        let values = toml::from_str(text).map_err(|error| {
            // All keys are known at this point, so the error is about a value.
            let span = error.span().unwrap_or_default();
            let of = places.iter().rfind(|place| place.contains(&span));
            match of.and_then(|place| Some((place, keys::find(&place.name)?))) {
                Some((place, key)) => {
                    let found = Cow::from(text.get(place.value.clone()).unwrap_or_default());
                    format!("{}: {} must be {}, not {}", at(place.at), key.name, key.expected, shown(&found))
                }
                None => syntax(&error),
            }
        })?;
        let lines = places.into_iter().map(|place| (place.name, line_of(text, place.at))).collect();
        Ok(Self { values, path: path.to_owned(), lines })
    }

    /// Position of a key, for later errors about its value.
    pub(crate) fn place(&self, key: &str) -> String {
        let line = self.lines.iter().find(|(name, _)| name == key);
        line.map_or_else(|| key.to_owned(), |(_, line)| format!("{}:{line}: {key}", self.path.display()))
    }
}

/// A key in the file.
struct Place {
    name: String,
    at: usize,
    value: Range<usize>,
    is_table: bool,
}

impl Place {
    fn contains(&self, span: &Range<usize>) -> bool {
        !self.is_table && self.value.start <= span.start && span.end <= self.value.end
    }

    /// Returns an error about the key itself.
    fn fault(&self, at: &impl Fn(usize) -> String) -> Option<String> {
        let name = &self.name;
        let is_table = keys::TABLES.iter().any(|(table, _)| table == name);
        match (is_table, self.is_table) {
            (true, true) => None,
            (true, false) => Some(format!("{}: {name} is a table: [{name}]", at(self.at))),
            (false, _) if keys::find(name).is_some() => None,
            (false, _) => {
                let table = keys::TABLES.iter().map(|(table, _)| *table);
                let near = keys::nearest(name)
                    .filter(|_| !self.is_table)
                    .or_else(|| table.max_by(|a, b| strsim::jaro(name, a).total_cmp(&strsim::jaro(name, b))));
                let hint = near.map_or_else(String::new, |near| format!("; did you mean {near}?"));
                Some(format!("{}: unknown key {name}{hint}", at(self.at)))
            }
        }
    }
}

/// Lists every key in order; the content of unknown tables is skipped.
fn list(table: &str, found: &DeTable<'_>, places: &mut Vec<Place>) {
    for (key, value) in found {
        let name =
            if table.is_empty() { key.get_ref().to_string() } else { format!("{table}.{}", key.get_ref()) };
        let inner = match value.get_ref() {
            DeValue::Table(inner) => Some(inner),
            _ => None,
        };
        let is_known = keys::TABLES.iter().any(|(table, _)| *table == name);
        places.push(Place {
            name: name.clone(),
            at: key.span().start,
            value: value.span(),
            is_table: inner.is_some(),
        });
        if let Some(inner) = inner.filter(|_| is_known) {
            list(&name, inner, places);
        }
    }
    places.sort_by_key(|place| place.at);
}

fn line_of(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
}

/// Shortens a value of the file.
fn shown(found: &str) -> String {
    let line = found.lines().next().unwrap_or_default();
    match line.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

/// Characters of a wrong value that an error repeats.
const SHOWN_MAX: usize = 60;

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<File, String> {
        File::parse(text, Path::new("sinews.toml"))
    }

    #[test]
    fn errors_name_line_key_and_expected_value() {
        for (text, expected) in [
            ("\nlissten = 1", "sinews.toml:2: unknown key lissten; did you mean listen?"),
            ("max-message = 1", "sinews.toml:1: unknown key max-message; did you mean max_message?"),
            (
                "[auth]\n\nsecret_flie = \"a\"",
                "sinews.toml:3: unknown key auth.secret_flie; did you mean auth.secret_file?",
            ),
            ("secret_file = \"a\"", "sinews.toml:1: unknown key secret_file; did you mean auth.secret_file?"),
            ("[auht]\nleeway = 1", "sinews.toml:1: unknown key auht; did you mean auth?"),
            ("auth = 1", "sinews.toml:1: auth is a table: [auth]"),
            (
                "# x\nbackend = \"epoll\"",
                "sinews.toml:2: backend must be \"auto\", \"poll\" or \"uring\", not \"epoll\"",
            ),
            ("threads = 0", "sinews.toml:1: threads must be a whole number of at least 1, not 0"),
            ("threads = \"4\"", "sinews.toml:1: threads must be a whole number of at least 1, not \"4\""),
            (
                "listen = [\n  \"nowhere\"]",
                "sinews.toml:1: listen must be an address such as \"127.0.0.1:8080\" or \"unix:/run/sinews.sock\", or a \
                 list of them, not [",
            ),
            (
                "[auth]\nleeway = 30",
                "sinews.toml:2: auth.leeway must be a string with a number and a unit, such as \"30s\" or \"1m\", not \
                 30",
            ),
        ] {
            assert_eq!(parse(text).map(drop), Err(expected.to_owned()), "{text}");
        }
        let syntax = parse("listen = \"a\nlog = 1").unwrap_err();
        assert!(syntax.starts_with("sinews.toml:1: ") && syntax.lines().count() == 1, "{syntax}");
        let twice = parse("zzzz = 1\nlogg = 2\n").unwrap_err();
        assert_eq!(twice.lines().count(), 2, "every unknown key is reported: {twice}");
        assert!(parse("zzzz = 1").unwrap_err().starts_with("sinews.toml:1: unknown key zzzz"));
    }

    #[test]
    fn single_value_needs_no_list() {
        let one = parse("listen = \"[::1]:1\"\nmax_message = 7").unwrap();
        assert_eq!(one.values.listen, Some(OneOrMore(vec!["[::1]:1".parse().unwrap()])));
        assert_eq!(one.values.max_message, Some(Bytes(7)));
        assert_eq!(one.place("max_message"), "sinews.toml:2: max_message");
        assert_eq!(one.place("log"), "log");
    }

    /// The file contains every key, including keys with only an example.
    #[test]
    fn every_key_is_accepted() {
        let whole: String = keys::default_file()
            .lines()
            .map(|line| if line.starts_with("# ") { "" } else { line.trim_start_matches('#') })
            .map(|line| format!("{line}\n"))
            .collect();
        let file = parse(&whole).unwrap();
        for key in keys::KEYS {
            assert!(file.place(key.name).ends_with(&format!(": {}", key.name)), "{}", key.name);
        }
        assert!(file.values.threads.is_some() && file.values.auth.jwks_file.is_some());
    }
}
