//! Settings from the command line and the environment.

use std::ffi::OsString;
use std::fmt;

use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, Error};

use super::key::{SettingKey, flag};
use super::value::Scalar;

/// Parsed flags and environment variables. The default has none.
#[derive(Clone, Default)]
pub(crate) struct SettingFlags(Option<ArgMatches>);

impl fmt::Debug for SettingFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Flags may be logged; secrets must not.
        f.write_str("SettingFlags")
    }
}

impl SettingFlags {
    pub(crate) fn new(matches: &ArgMatches) -> Self {
        Self(Some(matches.clone()))
    }

    /// The values of a key, and the name of the flag or the variable.
    pub(super) fn get<S: Scalar>(&self, key: &SettingKey) -> Option<(Vec<S>, String)> {
        let (matches, id) = (self.0.as_ref()?, key.id());
        let values = matches.get_many(&id)?.cloned().collect();
        let is_variable = matches.value_source(&id) == Some(ValueSource::EnvVariable);
        Some((values, if is_variable { key.variable() } else { key.flag() }))
    }

    /// Whether the key of this name is given.
    pub(super) fn is_given(&self, name: &str) -> bool {
        let id = name.replace('.', "_");
        self.0.as_ref().is_some_and(|matches| matches.contains_id(&id))
    }
}

/// Defines a type of arguments that consists of settings.
macro_rules! setting_args {
    ($(#[doc = $about:literal])+ $vis:vis struct $Args:ident($args:expr)) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, Default)]
        $vis struct $Args(pub(crate) $crate::config::flags::SettingFlags);

        impl clap::FromArgMatches for $Args {
            fn from_arg_matches(matches: &clap::ArgMatches) -> Result<Self, clap::Error> {
                Ok(Self($crate::config::flags::SettingFlags::new(matches)))
            }

            fn update_from_arg_matches(&mut self, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
                *self = Self::from_arg_matches(matches)?;
                Ok(())
            }
        }

        impl clap::Args for $Args {
            fn augment_args(command: clap::Command) -> clap::Command {
                command.args($args)
            }

            fn augment_args_for_update(command: clap::Command) -> clap::Command {
                Self::augment_args(command)
            }
        }
    };
}
pub(crate) use setting_args;

/// Names the environment variable in an error about its value; clap names the flag in both cases.
pub(crate) fn name_variable(
    mut error: Error,
    command: &mut Command,
    arguments: impl Iterator<Item = OsString>,
) -> Error {
    let Some(ContextValue::String(named)) = error.get(ContextKind::InvalidArg) else { return error };
    command.build();
    let Some(arg) = find(command, named) else { return error };
    let names = arg.get_long_and_visible_aliases().unwrap_or_default();
    let names: Vec<String> = names.into_iter().map(flag).collect();
    let is_flag = |argument: &str| {
        names.iter().any(|name| {
            argument.strip_prefix(&**name).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
        })
    };
    let mut arguments = arguments;
    if let Some(variable) = arg.get_env()
        && !arguments.any(|argument| argument.to_str().is_some_and(is_flag))
    {
        let variable = variable.to_string_lossy().into_owned();
        error.insert(ContextKind::InvalidArg, ContextValue::String(variable));
    }
    error
}

/// Finds the argument with a variable that errors show as `named`.
fn find<'a>(command: &'a Command, named: &str) -> Option<&'a Arg> {
    let own = command.get_arguments().find(|arg| arg.get_env().is_some() && arg.to_string() == named);
    own.or_else(|| command.get_subcommands().find_map(|command| find(command, named)))
}
