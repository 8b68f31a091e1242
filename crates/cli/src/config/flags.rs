//! Settings from the command line and the environment.

use std::ffi::OsString;
use std::fmt;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, Error};

use sinews_server::redact_urls;

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

    /// Returns a key's values, and the flag's or variable's name.
    pub(super) fn get<S: Scalar>(&self, key: &SettingKey) -> Option<(Vec<S>, String)> {
        let (matches, id) = (self.0.as_ref()?, key.id());
        let values = matches.get_many(&id)?.cloned().collect();
        let is_variable = matches.value_source(&id) == Some(ValueSource::EnvVariable);
        Some((values, if is_variable { key.variable() } else { key.flag() }))
    }

    /// Whether the key with this name is given.
    pub(super) fn is_given(&self, name: &str) -> bool {
        let id = name.replace('.', "_");
        self.0.as_ref().is_some_and(|matches| matches.contains_id(&id))
    }
}

/// Defines an argument type that consists of settings.
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

/// Text in place of a secret value.
const REDACTED: &str = "***";

/// Prepares an error about the arguments for the terminal: it repeats no secret, and names the environment variable with the value.
pub(crate) fn explain(
    error: Error,
    command: &mut Command,
    arguments: impl Iterator<Item = OsString>,
) -> Error {
    let arguments: Vec<OsString> = arguments.collect();
    if let Some(error) = explain_value_of_switch(&error, command, &arguments) {
        return error;
    }
    name_variable(redact(error, command), command, arguments.into_iter())
}

/// Explains a value that follows a switch as its own argument: a switch is also valid without a value.
fn explain_value_of_switch(error: &Error, command: &mut Command, arguments: &[OsString]) -> Option<Error> {
    use ErrorKind::{ArgumentConflict, InvalidSubcommand, UnknownArgument};
    if !matches!(error.kind(), ArgumentConflict | InvalidSubcommand | UnknownArgument) {
        return None;
    }
    command.build();
    let is_switch =
        |name: &str| find_by(command, &|arg| arg.is_require_equals_set() && has_name(arg, name)).is_some();
    let is_value = |value: &str| ["true", "false", "on", "off", "yes", "no", "1", "0"].contains(&value);
    let switch = arguments.windows(2).find_map(|pair| {
        let switch = pair[0].to_str().filter(|name| is_switch(name))?;
        pair[1].to_str().is_some_and(is_value).then_some(switch)
    })?;
    let text = format!("a value of '{switch}' follows a '=': write {switch}=true or {switch}=false\n");
    Some(Error::raw(error.kind(), text).with_cmd(command))
}

/// Whether the argument has this name on the command line.
fn has_name(arg: &Arg, name: &str) -> bool {
    let names = arg.get_long_and_visible_aliases().unwrap_or_default();
    names.into_iter().any(|known| flag(known) == name)
}

/// Replaces secret values, and passwords in URLs.
fn redact(mut error: Error, command: &mut Command) -> Error {
    command.build();
    let arg = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(named)) => find(command, named),
        _ => None,
    };
    let is_secret = arg.is_some_and(Arg::is_hide_env_values_set);
    for kind in [ContextKind::InvalidValue, ContextKind::InvalidArg, ContextKind::SuggestedArg] {
        let Some(ContextValue::String(text)) = error.get(kind) else { continue };
        let shown = match kind {
            ContextKind::InvalidValue if is_secret && !text.is_empty() => REDACTED.to_owned(),
            _ => redact_urls(text).into_owned(),
        };
        error.insert(kind, ContextValue::String(shown));
    }
    error
}

/// Names the environment variable in an error about its value; clap names the flag in both cases.
fn name_variable(
    mut error: Error,
    command: &mut Command,
    arguments: impl Iterator<Item = OsString>,
) -> Error {
    command.build();
    let Some(ContextValue::String(named)) = error.get(ContextKind::InvalidArg) else { return error };
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
    find_by(command, &|arg| arg.get_env().is_some() && arg.to_string() == named)
}

fn find_by<'a>(command: &'a Command, is_found: &dyn Fn(&Arg) -> bool) -> Option<&'a Arg> {
    let own = command.get_arguments().find(|arg| is_found(arg));
    own.or_else(|| command.get_subcommands().find_map(|command| find_by(command, is_found)))
}
