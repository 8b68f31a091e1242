//! Precedence: the command line overrides the environment, which overrides the file, which overrides the default.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::slice;

use super::file::{ConfigFile, FileSection};
use super::flags::SettingFlags;
use super::key::SettingKey;
use super::value::{Scalar, SettingValue};

/// A part of the settings.
pub(crate) trait SettingGroup: Sized {
    /// Reads the part from all sources.
    ///
    /// # Errors
    /// Returns an invalid value, or values that exclude each other.
    fn resolve(resolver: &mut SettingResolver<'_>) -> Result<Self, String>;

    /// Lists the keys that differ and need a restart.
    fn list_restarts(&self, new: &Self, restarts: &mut Vec<&'static str>);
}

/// Selects the value with the highest precedence, and records its source.
pub(crate) struct SettingResolver<'a> {
    flags: &'a SettingFlags,
    file: &'a ConfigFile,
    pub(crate) names: SettingNames,
    pub(crate) files: SettingFiles,
}

impl<'a> SettingResolver<'a> {
    pub(crate) fn new(flags: &'a SettingFlags, file: &'a ConfigFile) -> Self {
        Self { flags, file, names: SettingNames::default(), files: SettingFiles::default() }
    }

    /// Returns the file's tables that are sections in a schema table.
    pub(crate) fn sections(&self, table: &'static str) -> impl Iterator<Item = &'a FileSection> + use<'a> {
        self.file.sections().iter().filter(move |section| section.table == table)
    }

    /// Reads a table's next key, whose type is `T`.
    pub(crate) fn next<T: SettingValue>(
        &mut self,
        keys: &mut slice::Iter<'static, SettingKey>,
    ) -> Result<T::Setting, String> {
        let key = keys.next().expect("the macro lists as many keys as fields");
        Ok(T::setting(self.given::<T::Scalar>(key)?.or_else(|| default(key))))
    }

    fn given<S: Scalar>(&mut self, key: &'static SettingKey) -> Result<Option<Vec<S>>, String> {
        if let Some((values, source)) = self.flags.get(key) {
            self.files.add(key, &source, &values);
            self.names.0.insert(key.name, source);
            return Ok(Some(values));
        }
        if key.together.iter().any(|name| self.flags.is_given(name)) {
            return Ok(None);
        }
        let Some(values) = self.file.get(key)? else { return Ok(None) };
        let source = self.file.location(key.name);
        self.files.add(key, &source, &values);
        self.names.0.insert(key.name, source);
        Ok(Some(values))
    }
}

/// Returns a key's default; tests parse all defaults.
fn default<S: Scalar>(key: &SettingKey) -> Option<Vec<S>> {
    let texts = (!key.default.is_empty()).then(|| key.split(key.default))?;
    texts.into_iter().map(|text| S::parse(text).ok()).collect()
}

/// Name under which each setting was given: a flag, a variable, or a line in the file.
#[derive(Clone, Debug, Default)]
pub(crate) struct SettingNames(HashMap<&'static str, String>);

impl SettingNames {
    pub(crate) fn resolve<'a>(&'a self, key: &'a str) -> &'a str {
        self.0.get(key).map_or(key, |name| name)
    }
}

/// A value's source does not affect equality.
impl PartialEq for SettingNames {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for SettingNames {}

/// The files that settings name.
#[derive(Clone, Debug, Default)]
pub(crate) struct SettingFiles(Vec<SettingFile>);

/// A file that a setting names.
#[derive(Clone, Debug)]
pub(crate) struct SettingFile {
    key: &'static str,
    /// Name under which the setting was given.
    source: String,
    path: PathBuf,
    /// Its content takes effect on reload.
    reloads: bool,
}

impl SettingFiles {
    fn add<S: Scalar>(&mut self, key: &'static SettingKey, source: &str, values: &[S]) {
        let paths = values.iter().filter_map(Scalar::file);
        self.0.extend(paths.map(|path| SettingFile {
            key: key.name,
            source: source.to_owned(),
            path: path.to_owned(),
            reloads: key.reloads,
        }));
    }

    /// Adds a section's files, whose table is `table` in the schema and `shown` in messages.
    pub(crate) fn add_section(&mut self, section: Self, table: &str, shown: &str) {
        let renamed = |file: SettingFile| SettingFile { source: file.source.replace(table, shown), ..file };
        self.0.extend(section.0.into_iter().map(renamed));
    }

    /// Returns the files whose content takes effect on reload, each with its setting's name.
    pub(crate) fn reloaded(&self) -> impl Iterator<Item = String> {
        let reloaded = self.0.iter().filter(|file| file.reloads);
        reloaded.map(|file| format!("{} {}", file.source, file.path.display()))
    }

    /// Returns hashes of the files whose content needs a restart, each with its setting's key. Only regular files are
    /// read.
    pub(crate) fn restart_hashes(&self) -> BTreeMap<&'static str, u64> {
        let hashed = self.0.iter().filter(|file| !file.reloads).filter_map(|file| {
            let is_regular = fs::metadata(&file.path).is_ok_and(|metadata| metadata.is_file());
            let content = if is_regular { fs::read(&file.path).ok()? } else { return None };
            let mut hasher = DefaultHasher::new();
            content.hash(&mut hasher);
            Some((file.key, hasher.finish()))
        });
        hashed.collect()
    }
}

/// File contents and sources do not affect whether settings are equal.
impl PartialEq for SettingFiles {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for SettingFiles {}

/// The files from all groups before this one.
impl SettingGroup for SettingFiles {
    fn resolve(resolver: &mut SettingResolver<'_>) -> Result<Self, String> {
        Ok(resolver.files.clone())
    }

    fn list_restarts(&self, _: &Self, _: &mut Vec<&'static str>) {}
}

/// The names from all groups before this one.
impl SettingGroup for SettingNames {
    fn resolve(resolver: &mut SettingResolver<'_>) -> Result<Self, String> {
        Ok(resolver.names.clone())
    }

    fn list_restarts(&self, _: &Self, _: &mut Vec<&'static str>) {}
}
