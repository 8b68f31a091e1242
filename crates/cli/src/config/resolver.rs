//! Precedence: the command line overrides the environment, which overrides the file, which overrides the default.

use std::collections::HashMap;
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
}

impl<'a> SettingResolver<'a> {
    pub(crate) fn new(flags: &'a SettingFlags, file: &'a ConfigFile) -> Self {
        Self { flags, file, names: SettingNames::default() }
    }

    /// The tables of the file that are sections of a table of the schema.
    pub(crate) fn sections(&self, table: &'static str) -> impl Iterator<Item = &'a FileSection> + use<'a> {
        self.file.sections().iter().filter(move |section| section.table == table)
    }

    /// Reads the next key of a table, whose type is `T`.
    pub(crate) fn next<T: SettingValue>(
        &mut self,
        keys: &mut slice::Iter<'static, SettingKey>,
    ) -> Result<T::Setting, String> {
        let key = keys.next().expect("the macro lists as many keys as fields");
        Ok(T::setting(self.given::<T::Scalar>(key)?.or_else(|| default(key))))
    }

    fn given<S: Scalar>(&mut self, key: &'static SettingKey) -> Result<Option<Vec<S>>, String> {
        if let Some((values, source)) = self.flags.get(key) {
            self.names.0.insert(key.name, source);
            return Ok(Some(values));
        }
        if key.together.iter().any(|name| self.flags.is_given(name)) {
            return Ok(None);
        }
        let Some(values) = self.file.get(key)? else { return Ok(None) };
        self.names.0.insert(key.name, self.file.location(key.name));
        Ok(Some(values))
    }
}

/// The default of a key; tests parse all defaults.
fn default<S: Scalar>(key: &SettingKey) -> Option<Vec<S>> {
    let texts = (!key.default.is_empty()).then(|| key.split(key.default))?;
    texts.into_iter().map(|text| S::parse(text).ok()).collect()
}

/// Name under which each setting was given: a flag, a variable, or a line of the file.
#[derive(Clone, Debug, Default)]
pub(crate) struct SettingNames(HashMap<&'static str, String>);

impl SettingNames {
    pub(crate) fn of<'a>(&'a self, key: &'a str) -> &'a str {
        self.0.get(key).map_or(key, |name| name)
    }
}

/// The source of a value does not affect equality.
impl PartialEq for SettingNames {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for SettingNames {}

/// The names of all groups before this one.
impl SettingGroup for SettingNames {
    fn resolve(resolver: &mut SettingResolver<'_>) -> Result<Self, String> {
        Ok(resolver.names.clone())
    }

    fn list_restarts(&self, _: &Self, _: &mut Vec<&'static str>) {}
}
