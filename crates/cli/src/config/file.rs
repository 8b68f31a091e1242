//! The configuration file: parsing and error reports.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use sinews_server::redact_urls;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::key::{SettingKey, Table, Tables};
use super::value::{Form, Scalar};

/// Where the settings are written.
#[derive(Clone, Debug, Default)]
pub(crate) enum ConfigSource {
    File(PathBuf),
    /// An object of the program that embeds the server.
    #[default]
    Program,
}

impl ConfigSource {
    /// A position in errors.
    fn at(&self, line: usize) -> String {
        match self {
            Self::File(path) => format!("{}:{line}", path.display()),
            Self::Program => "config".to_owned(),
        }
    }
}

/// A parsed file.
#[derive(Debug, Default)]
pub(crate) struct ConfigFile {
    source: ConfigSource,
    keys: Vec<FileKey>,
    sections: Vec<FileSection>,
}

/// One of several tables with the same keys.
#[derive(Debug)]
pub(crate) struct FileSection {
    /// Its name in the schema.
    pub(crate) table: &'static str,
    /// The name that distinguishes it; for a list element, its number from 1.
    pub(crate) name: String,
    /// The name's position, for errors.
    pub(crate) location: String,
    /// Its keys, with the names in the schema.
    pub(crate) file: ConfigFile,
}

/// A key with its values.
#[derive(Debug)]
struct FileKey {
    name: String,
    line: usize,
    values: Vec<FileValue>,
}

/// A value, in the form of a flag's.
struct FileValue {
    line: usize,
    text: String,
}

impl std::fmt::Debug for FileValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The value may be a secret.
        write!(f, "line {}", self.line)
    }
}

impl ConfigFile {
    /// Reads a file with these tables.
    ///
    /// # Errors
    /// Returns one line for each error, with the file's name, the line, the key and the expected value.
    pub(crate) fn read(path: &Path, tables: &Tables) -> Result<Self, String> {
        let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Self::parse(&text, &ConfigSource::File(path.to_owned()), tables)
    }

    pub(crate) fn parse(text: &str, source: &ConfigSource, tables: &Tables) -> Result<Self, String> {
        let at = |offset: usize| source.at(line_of(text, offset));
        let table = parse_table(text, &at)?;
        let mut faults = Vec::new();
        let plain: Vec<_> = tables.iter().copied().filter(|table| table.section().is_none()).collect();
        let mut sections = Vec::new();
        for sectioned in tables {
            let Some(root) = sectioned.root() else { continue };
            let has_keys = is_table(&plain, root);
            for (key, value) in table.get_ref().iter().filter(|(key, _)| **key.get_ref() == *root) {
                let DeValue::Table(inner) = value.get_ref() else {
                    if has_keys {
                        continue;
                    }
                    let header = sectioned.header("NAME").unwrap_or_default();
                    faults.push(format!("{}: {root} is a table: {header}", at(key.span().start)));
                    continue;
                };
                for section in named_sections(sectioned, has_keys, inner, &at, &mut faults) {
                    let NamedSection { name, shown, location, keys } = section;
                    let parsed = Self::parse_keys(text, source, sectioned.name, keys, &[*sectioned], &[]);
                    match parsed {
                        Ok(file) => {
                            sections.push(FileSection { table: sectioned.name, name, location, file })
                        }
                        Err(fault) => faults.push(fault.replace(sectioned.name, &shown)),
                    }
                }
            }
        }
        let elsewhere = |table: &&'static Table| {
            let root = table.root()?;
            Some(if is_table(&plain, root) { table.list().unwrap_or(root) } else { root })
        };
        let roots: Vec<_> = tables.iter().filter_map(elsewhere).collect();
        match Self::parse_keys(text, source, "", table.get_ref(), &plain, &roots) {
            Ok(file) if faults.is_empty() => Ok(Self { sections, ..file }),
            Ok(_) => Err(faults.join("\n")),
            Err(fault) => {
                faults.push(fault);
                Err(faults.join("\n"))
            }
        }
    }

    /// Reads the settings of an object in JSON.
    ///
    /// # Errors
    /// As for [`read`](Self::read), without a line.
    pub(crate) fn from_json(text: &str, tables: &Tables) -> Result<Self, String> {
        let object: Map<String, Value> =
            serde_json::from_str(text).map_err(|error| format!("config: {error}"))?;
        let mut toml = String::new();
        for (key, value) in &object {
            push_pair(&mut toml, key, value).map_err(|fault| format!("config: {fault}"))?;
            toml.push('\n');
        }
        Self::parse(&toml, &ConfigSource::Program, tables)
    }

    /// Reads a file with a list element's keys, without the header.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub(crate) fn parse_element(
        text: &str,
        source: &ConfigSource,
        schema: &'static Table,
    ) -> Result<FileSection, String> {
        let at = |offset: usize| source.at(line_of(text, offset));
        let table = parse_table(text, &at)?;
        if let Some((root, _)) =
            table.get_ref().iter().find(|(key, _)| schema.root() == Some(&**key.get_ref()))
        {
            let header = schema.header("NAME").unwrap_or_default();
            return Err(format!(
                "{}: the file has the keys of one table, without the header {header}",
                at(root.span().start)
            ));
        }
        let parsed = Self::parse_keys(text, source, schema.name, table.get_ref(), &[schema], &[]);
        let file = parsed.map_err(|fault| fault.replace(&format!("{}.", schema.name), ""))?;
        Ok(FileSection { table: schema.name, name: String::new(), location: at(0), file })
    }

    /// Reads the keys in a table, and in the tables in it. Tables with the names `roots` are read elsewhere.
    fn parse_keys(
        text: &str,
        source: &ConfigSource,
        name: &str,
        table: &DeTable<'_>,
        tables: &Tables,
        roots: &[&'static str],
    ) -> Result<Self, String> {
        let at = |offset: usize| source.at(line_of(text, offset));
        let mut spans = Vec::new();
        list(name, table, tables, &mut spans);
        spans.retain(|span| !roots.contains(&&*span.name));
        let unknown: Vec<String> = spans.iter().filter_map(|span| span.fault(tables, roots, &at)).collect();
        if !unknown.is_empty() {
            return Err(unknown.join("\n"));
        }
        let (mut keys, mut faults) = (Vec::new(), Vec::new());
        for span in &spans {
            let Some(key) = find(tables, &span.name) else { continue };
            let mut values = Vec::new();
            for value in span.values(key) {
                match read(key, value.get_ref()) {
                    Ok(read) => {
                        values.push(FileValue { line: line_of(text, value.span().start), text: read })
                    }
                    Err(reason) => {
                        let found = text.get(value.span()).unwrap_or_default();
                        faults.push(format!("{}: {}", at(value.span().start), fault(key, found, &reason)));
                    }
                }
            }
            keys.push(FileKey { name: span.name.clone(), line: line_of(text, span.at), values });
        }
        let sections = Vec::new();
        if faults.is_empty() {
            Ok(Self { source: source.clone(), keys, sections })
        } else {
            Err(faults.join("\n"))
        }
    }

    /// The tables that are sections, in name order.
    pub(crate) fn sections(&self) -> &[FileSection] {
        &self.sections
    }

    /// Returns a key's values.
    ///
    /// # Errors
    /// A value that was valid when the file was parsed, such as a host name, is invalid now.
    pub(super) fn get<S: Scalar>(&self, key: &SettingKey) -> Result<Option<Vec<S>>, String> {
        let Some(found) = self.keys.iter().find(|found| found.name == key.name) else { return Ok(None) };
        let parse = |value: &FileValue| {
            let fault = |reason: String| fault(key, &format!("{:?}", value.text), &reason);
            let parsed = S::parse(&value.text).map_err(fault);
            parsed.map_err(|fault| format!("{}: {fault}", self.source.at(value.line)))
        };
        found.values.iter().map(parse).collect::<Result<_, _>>().map(Some)
    }

    /// Returns a key's position, for later errors about its value.
    pub(crate) fn location(&self, key: &str) -> String {
        let found = self.keys.iter().find(|found| found.name == key);
        found.map_or_else(|| key.to_owned(), |found| format!("{}: {key}", self.source.at(found.line)))
    }
}

/// Appends `key = value` in TOML. JSON's strings are strings of TOML, except that TOML escapes DEL.
fn push_pair(toml: &mut String, key: &str, value: &Value) -> Result<(), String> {
    push_value(toml, &Value::from(key))?;
    toml.push_str(" = ");
    push_value(toml, value).map_err(|fault| format!("{key}{fault}"))
}

/// # Errors
/// TOML has no null. The error is what follows the key.
fn push_value(toml: &mut String, value: &Value) -> Result<(), String> {
    match value {
        Value::Null => return Err(" is null".to_owned()),
        Value::Array(list) => {
            toml.push('[');
            for value in list {
                push_value(toml, value)?;
                toml.push(',');
            }
            toml.push(']');
        }
        Value::Object(table) => {
            toml.push('{');
            for (number, (key, value)) in table.iter().enumerate() {
                toml.push_str(if number > 0 { ", " } else { "" });
                push_pair(toml, key, value).map_err(|fault| format!(".{fault}"))?;
            }
            toml.push('}');
        }
        value => toml.push_str(&value.to_string().replace('\u{7f}', "\\u007f")),
    }
    Ok(())
}

/// # Errors
/// The text is not TOML.
fn parse_table<'a>(text: &'a str, at: &impl Fn(usize) -> String) -> Result<Spanned<DeTable<'a>>, String> {
    DeTable::parse(text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        format!("{}: {}", at(offset), error.message().replace('\n', "; "))
    })
}

/// A table in the file that is a section.
struct NamedSection<'a> {
    name: String,
    /// The name in errors about its keys.
    shown: String,
    location: String,
    keys: &'a DeTable<'a>,
}

/// Finds the tables in a file's table that are sections in a schema table. With `has_keys`, other keys in a list's
/// table are read elsewhere.
fn named_sections<'a>(
    schema: &Table,
    has_keys: bool,
    table: &'a DeTable<'a>,
    at: &impl Fn(usize) -> String,
    faults: &mut Vec<String>,
) -> Vec<NamedSection<'a>> {
    let mut sections = Vec::new();
    let Some(list) = schema.list() else {
        let root = schema.section().unwrap_or_default();
        for (name, value) in table {
            let (name, location) = (name.get_ref().to_string(), at(name.span().start));
            let shown = format!("{root}.{name:?}");
            match value.get_ref() {
                DeValue::Table(keys) => sections.push(NamedSection { name, shown, location, keys }),
                _ => faults.push(format!("{location}: {shown} is a table: [{shown}]")),
            }
        }
        return sections;
    };
    for (key, value) in table {
        let location = at(key.span().start);
        let is_list = list.rsplit('.').next() == Some(&**key.get_ref());
        if has_keys && !is_list {
            continue;
        }
        let (true, DeValue::Array(elements)) = (is_list, value.get_ref()) else {
            faults.push(format!("{location}: unknown key; did you mean [[{list}]]?"));
            continue;
        };
        for (number, element) in (1..).zip(elements.iter()) {
            let (name, location) = (format!("{number}"), at(element.span().start));
            match element.get_ref() {
                DeValue::Table(keys) => {
                    sections.push(NamedSection { name, shown: list.to_owned(), location, keys });
                }
                _ => faults.push(format!("{location}: {list} is a list of tables: [[{list}]]")),
            }
        }
    }
    sections
}

/// Reads one value.
fn read(key: &SettingKey, value: &DeValue<'_>) -> Result<String, String> {
    let text = match (value, key.kind.form) {
        (DeValue::String(text), Form::Text | Form::NumberOrText) => text.to_string(),
        (DeValue::Integer(number), Form::Number | Form::NumberOrText) => {
            let number = i128::from_str_radix(number.as_str(), number.radix());
            number.map_err(|error| error.to_string())?.to_string()
        }
        (DeValue::Boolean(value), Form::Bool) => value.to_string(),
        _ => return Err("expected another type".to_owned()),
    };
    (key.kind.check)(&text).map(|()| text)
}

/// Describes an invalid value.
fn fault(key: &SettingKey, found: &str, reason: &str) -> String {
    let expected = key.expected();
    let reason = match reason {
        reason if reason.starts_with("expected") || reason.starts_with("must be") => String::new(),
        reason => format!(": {reason}"),
    };
    if key.kind.is_secret {
        return format!("{} must be {expected}{reason}", key.name);
    }
    format!("{} must be {expected}, not {}{reason}", key.name, shown(&redact_urls(found)))
}

/// A key in the file.
struct KeySpan<'a> {
    name: String,
    at: usize,
    value: &'a Spanned<DeValue<'a>>,
}

impl<'a> KeySpan<'a> {
    fn is_table(&self) -> bool {
        matches!(self.value.get_ref(), DeValue::Table(_))
    }

    /// Returns a list's elements, or the value.
    fn values(&self, key: &SettingKey) -> Vec<&'a Spanned<DeValue<'a>>> {
        match self.value.get_ref() {
            DeValue::Array(list) if key.kind.is_list => list.iter().collect(),
            _ => vec![self.value],
        }
    }

    /// Returns an error about the key itself.
    fn fault(
        &self,
        tables: &Tables,
        roots: &[&'static str],
        at: &impl Fn(usize) -> String,
    ) -> Option<String> {
        let name = &self.name;
        match (is_table(tables, name), self.is_table()) {
            (true, true) => None,
            (true, false) => Some(format!("{}: {name} is a table: [{name}]", at(self.at))),
            (false, _) if find(tables, name).is_some() => None,
            (false, _) => {
                let alike = |other: &&str| strsim::jaro(name, other);
                let is_array = matches!(self.value.get_ref(), DeValue::Array(_));
                let list = |root: &&str| is_array && root.contains('.') && alike(root) > ALIKE_MIN;
                let near = roots.iter().copied().find(list);
                let near =
                    near.or_else(|| nearest(tables, name).filter(|_| !self.is_table())).or_else(|| {
                        let tables = tables.iter().filter(|table| table.section().is_none());
                        let tables = tables.map(|table| table.name).filter(|name| !name.is_empty());
                        tables.chain(roots.iter().copied()).max_by(|a, b| alike(a).total_cmp(&alike(b)))
                    });
                let hint = near.map_or_else(String::new, |near| {
                    // Among the table names that are read elsewhere, lists have a dot.
                    let is_list = near.contains('.') && roots.contains(&near);
                    let near = if is_list { format!("[[{near}]]") } else { near.to_owned() };
                    format!("; did you mean {near}?")
                });
                Some(format!("{}: unknown key {name}{hint}", at(self.at)))
            }
        }
    }
}

/// Lists every key in order; unknown tables' content is skipped.
fn list<'a>(table: &str, found: &'a DeTable<'a>, tables: &Tables, spans: &mut Vec<KeySpan<'a>>) {
    for (key, value) in found {
        let name =
            if table.is_empty() { key.get_ref().to_string() } else { format!("{table}.{}", key.get_ref()) };
        spans.push(KeySpan { name: name.clone(), at: key.span().start, value });
        if let (DeValue::Table(inner), true) = (value.get_ref(), is_table(tables, &name)) {
            list(&name, inner, tables, spans);
        }
    }
    spans.sort_by_key(|span| span.at);
}

fn is_table(tables: &Tables, name: &str) -> bool {
    !name.is_empty() && tables.iter().any(|table| table.name == name)
}

/// Finds a key by its full name.
fn find(tables: &Tables, name: &str) -> Option<&'static SettingKey> {
    keys(tables).find(|key| key.name == name)
}

fn keys(tables: &Tables) -> impl Iterator<Item = &'static SettingKey> + Clone {
    tables.iter().flat_map(|table| table.keys)
}

/// Finds the key most similar to an unknown name.
fn nearest(tables: &Tables, name: &str) -> Option<&'static str> {
    // A key in the wrong table is spelled correctly.
    let written = name.rsplit('.').next().unwrap_or(name);
    if let Some(key) = keys(tables).find(|key| key.short_name() == written) {
        return Some(key.name);
    }
    let whole = |key: &SettingKey| strsim::jaro(name, key.name);
    let alike = |key: &SettingKey| whole(key).max(strsim::jaro(written, key.short_name()));
    // Several tables may have a key with the same name.
    let order =
        |a: &&SettingKey, b: &&SettingKey| alike(a).total_cmp(&alike(b)).then(whole(a).total_cmp(&whole(b)));
    let best = keys(tables).max_by(order)?;
    (alike(best) > ALIKE_MIN).then_some(best.name)
}

/// Similarity from which a name is suggested.
const ALIKE_MIN: f64 = 0.7;

fn line_of(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
}

/// Shortens a value from the file.
fn shown(found: &str) -> String {
    let line = found.lines().next().unwrap_or_default();
    match line.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

/// Characters of a wrong value that an error repeats.
const SHOWN_MAX: usize = 60;
