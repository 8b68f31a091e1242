//! Configuration keys: name, help, default and type, and everything that follows from them.

use clap::builder::ValueParser;
use clap::{Arg, ArgAction};

use super::value::{Form, Scalar, SettingValue};

/// A setting of `sinews serve`, entered once with [`settings!`](super::schema::settings). The flag (`--` and the name
/// with `-` for `.` and `_`), the environment variable (`SINEWS_` and the name in capitals), the file's key, `sinews
/// config default` and the reference in the book follow from it.
///
/// Value texts (`default`, `example`) are written as for a flag.
pub(crate) struct SettingKey {
    /// Name with its table, such as `auth.leeway`.
    pub(crate) name: &'static str,
    /// Description, one element per line. `{limits.max_memory}` names another key.
    pub(crate) help: &'static [&'static str],
    /// Default value; empty: none, or an empty list.
    pub(crate) default: &'static str,
    /// Behavior without a value, for keys without a default. It completes "default:", and may name other keys.
    pub(crate) unset: &'static str,
    /// Example value, for keys without a default.
    pub(crate) example: &'static str,
    /// The value's name in the help text.
    pub(crate) placeholder: &'static str,
    /// Completes "must be", if the type does not suffice.
    pub(crate) expected: &'static str,
    /// Takes effect on reload (SIGHUP). Other keys need a restart.
    pub(crate) reloads: bool,
    /// The flag's shorter name, without `--`.
    pub(crate) alias: &'static str,
    /// List separator in a flag or a variable.
    pub(crate) separator: char,
    /// Keys that are replaced together: one as a flag or variable overrides all in the file.
    pub(crate) together: &'static [&'static str],
    pub(crate) kind: Kind,
}

/// Type of a key's value.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) form: Form,
    pub(crate) is_list: bool,
    pub(crate) is_secret: bool,
    needs_default: bool,
    expected: fn() -> String,
    parser: fn() -> ValueParser,
    /// Parses one value.
    pub(crate) check: fn(&str) -> Result<(), String>,
}

/// A table in the file; the top level has no name.
pub(crate) struct Table {
    pub(crate) name: &'static str,
    /// Flag heading; empty: none. For a [section](Self::section): an example name.
    pub(crate) heading: &'static str,
    /// Description, one element per line.
    pub(crate) about: &'static [&'static str],
    pub(crate) keys: &'static [SettingKey],
}

/// Every table; a table may have several parts, one after the other.
pub(crate) type Tables = [&'static Table];

/// Lists all keys, in order, except for the keys in [sections](Table::section).
#[cfg(test)]
pub(crate) fn keys(tables: &Tables) -> impl Iterator<Item = &'static SettingKey> + Clone {
    tables.iter().filter(|table| table.section().is_none()).flat_map(|table| table.keys)
}

impl SettingKey {
    /// Returns a key with this type, for the macro [`settings!`](super::schema::settings), which adds the rest.
    pub(crate) const fn for_type<T: SettingValue>() -> Self {
        Self {
            name: "",
            help: &[],
            default: "",
            unset: "",
            example: "",
            placeholder: T::Scalar::PLACEHOLDER,
            expected: "",
            reloads: false,
            alias: "",
            separator: ',',
            together: &[],
            kind: Kind {
                form: T::Scalar::FORM,
                is_list: T::IS_LIST,
                is_secret: T::Scalar::IS_SECRET,
                needs_default: T::NEEDS_DEFAULT,
                expected: T::Scalar::expected,
                parser: T::Scalar::parser,
                check: check::<T::Scalar>,
            },
        }
    }

    /// Requires a default where a setting cannot be without a value.
    pub(crate) const fn checked(self) -> Self {
        assert!(!self.kind.needs_default || !self.default.is_empty(), "the key needs a default");
        self
    }

    /// Returns the flag's identifier.
    pub(crate) fn id(&self) -> String {
        self.name.replace('.', "_")
    }

    /// The flag.
    pub(crate) fn flag(&self) -> String {
        flag(self.name)
    }

    /// The environment variable.
    pub(crate) fn variable(&self) -> String {
        format!("SINEWS_{}", self.id().to_uppercase())
    }

    /// Name without its table.
    pub(crate) fn short_name(&self) -> &'static str {
        self.name.rsplit('.').next().unwrap_or(self.name)
    }

    /// Completes "must be".
    pub(crate) fn expected(&self) -> String {
        let one = if self.expected.is_empty() { (self.kind.expected)() } else { self.expected.to_owned() };
        if self.kind.is_list { format!("{one}, or a list of them") } else { one }
    }

    /// Splits a text with several values.
    pub(crate) fn split<'a>(&self, text: &'a str) -> Vec<&'a str> {
        if self.kind.is_list { text.split(self.separator).collect() } else { vec![text] }
    }

    /// Returns the description; `name` formats other keys' names.
    pub(crate) fn describe(&self, name: impl Fn(&str) -> String) -> String {
        expand(&joined(self.help), name)
    }

    /// Returns the behavior without a value; `name` formats other keys' names.
    pub(crate) fn describe_unset(&self, name: impl Fn(&str) -> String) -> String {
        expand(self.unset, name)
    }

    /// Returns the command-line option.
    pub(crate) fn arg(&self) -> Arg {
        let mut help = self.describe(flag);
        help.truncate(help.trim_end_matches('.').len());
        if self.kind.is_list {
            help.push_str(". Repeatable");
        }
        match (self.default, self.describe_unset(flag)) {
            ("", unset) if unset.is_empty() => {}
            ("", unset) => help.push_str(&format!(" [default: {unset}]")),
            (default, _) => help.push_str(&format!(" [default: {default}]")),
        }
        let arg = Arg::new(self.id())
            .long(self.flag().trim_start_matches('-').to_owned())
            .env(std::ffi::OsString::from(self.variable()))
            .hide_env_values(self.kind.is_secret)
            .value_name(self.placeholder)
            .value_parser((self.kind.parser)())
            .help(help);
        let arg = match self.alias {
            "" => arg,
            alias => arg.visible_alias(alias),
        };
        if self.kind.is_list {
            arg.action(ArgAction::Append).value_delimiter(self.separator)
        } else if self.kind.form == Form::Bool {
            arg.num_args(0..=1).require_equals(true).default_missing_value("true")
        } else {
            arg
        }
    }
}

impl Table {
    /// Returns the name before `.*`, if the file may have any number of these tables, each with its own name; or before
    /// `[]`, if they are list elements. Their keys have neither flags nor variables.
    pub(crate) fn section(&self) -> Option<&'static str> {
        self.name.strip_suffix(".*").or_else(|| self.list())
    }

    /// Returns the name of the list whose elements these tables are.
    pub(crate) fn list(&self) -> Option<&'static str> {
        self.name.strip_suffix("[]")
    }

    /// Returns the table at the file's top that has this section.
    pub(crate) fn root(&self) -> Option<&'static str> {
        self.section().and_then(|section| section.split('.').next())
    }

    /// The line that begins a section; `name` distinguishes it.
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        match (self.list(), self.section()) {
            (Some(list), _) => Some(format!("[[{list}]]")),
            (None, Some(section)) => Some(format!("[{section}.{name:?}]")),
            (None, None) => None,
        }
    }

    /// Returns the command-line options.
    pub(crate) fn args(&self) -> impl Iterator<Item = Arg> {
        let heading = (!self.heading.is_empty()).then_some(self.heading);
        let keys = if self.section().is_some() { &[] } else { self.keys };
        keys.iter().map(move |key| key.arg().help_heading(heading))
    }
}

/// Returns a key's flag.
pub(crate) fn flag(name: &str) -> String {
    format!("--{}", name.replace(['.', '_'], "-"))
}

/// Joins a comment's lines.
pub(crate) fn joined(lines: &[&str]) -> String {
    lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
}

/// Replaces `{key}` by the key's name.
fn expand(text: &str, name: impl Fn(&str) -> String) -> String {
    let mut parts = text.split('{');
    let mut expanded = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (key, rest) = part.split_once('}').unwrap_or((part, ""));
        expanded.push_str(&name(key));
        expanded.push_str(rest);
    }
    expanded
}

fn check<S: Scalar>(text: &str) -> Result<(), String> {
    S::parse(text).map(drop)
}
