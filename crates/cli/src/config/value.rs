//! Setting values: the text that flags, variables and the file share, and the types that the server uses.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use clap::builder::ValueParser;

/// A value's type in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Text,
    Number,
    /// A number without a unit, or a string with a unit.
    NumberOrText,
    Bool,
}

/// One value. Flags, environment variables and the file parse the same text.
pub(crate) trait Scalar: Clone + Send + Sync + 'static {
    /// Type in the settings.
    type Setting;

    const FORM: Form = Form::Text;

    /// The value's name in the help text.
    const PLACEHOLDER: &'static str;

    /// Whether errors, help and `Debug` hide the value.
    const IS_SECRET: bool = false;

    /// Completes "must be", with the unit.
    fn expected() -> String;

    /// # Errors
    /// The reason. A reason that begins with "expected" or "must be" adds nothing to [`expected`](Self::expected).
    fn parse(text: &str) -> Result<Self, String>;

    fn setting(self) -> Self::Setting;

    /// The file that the value names.
    fn file(&self) -> Option<&Path> {
        None
    }

    fn parser() -> ValueParser {
        ValueParser::new(|text: &str| Self::parse(text))
    }
}

/// A key's value: one value, a list, or either without a default.
pub(crate) trait SettingValue {
    type Scalar: Scalar;

    /// Type in the settings.
    type Setting;

    const IS_LIST: bool;

    /// Whether a key with this type needs a default.
    const NEEDS_DEFAULT: bool;

    /// Converts the given value, or else the default. `None`: neither exists.
    fn setting(given: Option<Vec<Self::Scalar>>) -> Self::Setting;
}

impl<S: Scalar> SettingValue for S {
    type Scalar = S;
    type Setting = S::Setting;

    const IS_LIST: bool = false;
    const NEEDS_DEFAULT: bool = true;

    fn setting(given: Option<Vec<S>>) -> S::Setting {
        let given = given.and_then(|mut one| one.pop());
        // A test reads every default, and single-value sources give one.
        given.expect("a key of a single value has a default").setting()
    }
}

impl<S: Scalar> SettingValue for Option<S> {
    type Scalar = S;
    type Setting = Option<S::Setting>;

    const IS_LIST: bool = false;
    const NEEDS_DEFAULT: bool = false;

    fn setting(given: Option<Vec<S>>) -> Self::Setting {
        given.and_then(|mut one| one.pop()).map(S::setting)
    }
}

impl<S: Scalar> SettingValue for Vec<S> {
    type Scalar = S;
    type Setting = Vec<S::Setting>;

    const IS_LIST: bool = true;
    const NEEDS_DEFAULT: bool = false;

    fn setting(given: Option<Self>) -> Self::Setting {
        given.unwrap_or_default().into_iter().map(S::setting).collect()
    }
}

impl<S: Scalar> SettingValue for Option<Vec<S>> {
    type Scalar = S;
    type Setting = Option<Vec<S::Setting>>;

    const IS_LIST: bool = true;
    const NEEDS_DEFAULT: bool = false;

    fn setting(given: Self) -> Self::Setting {
        given.map(|list| list.into_iter().map(S::setting).collect())
    }
}

/// Implements [`Scalar`] for a type with `FromStr`; behind `secret`, for a type whose errors do not repeat the text.
macro_rules! scalar {
    (secret $type:ident => $setting:ty, $placeholder:literal, $expected:literal, |$pattern:pat_param| $convert:expr) => {
        $crate::config::value::scalar!(
            @ true, $type => $setting, Text, $placeholder, $expected, |$pattern| $convert
        );
    };
    ($type:ident => $setting:ty, $form:ident, $placeholder:literal, $expected:literal, |$pattern:pat_param| $convert:expr) => {
        $crate::config::value::scalar!(
            @ false, $type => $setting, $form, $placeholder, $expected, |$pattern| $convert
        );
    };
    (@ $secret:literal, $type:ident => $setting:ty, $form:ident, $placeholder:literal, $expected:literal, |$pattern:pat_param| $convert:expr) => {
        impl $crate::config::value::Scalar for $type {
            type Setting = $setting;

            const FORM: $crate::config::value::Form = $crate::config::value::Form::$form;
            const PLACEHOLDER: &'static str = $placeholder;
            const IS_SECRET: bool = $secret;

            fn expected() -> String {
                $expected.to_owned()
            }

            fn parse(text: &str) -> Result<Self, String> {
                text.parse::<Self>().map_err(|error| error.to_string())
            }

            fn setting(self) -> $setting {
                let $pattern = self;
                $convert
            }
        }
    };
}
pub(crate) use scalar;

/// Implements [`Scalar`] for types with fixed alternatives.
macro_rules! choice {
    ($($type:ty),*) => {
        $(
            impl $crate::config::value::Scalar for $type {
                type Setting = Self;

                const PLACEHOLDER: &'static str = "NAME";

                fn expected() -> String {
                    $crate::config::value::alternatives::<Self>()
                }

                fn parse(text: &str) -> Result<Self, String> {
                    clap::ValueEnum::from_str(text, false).map_err(|_| format!("expected {}", Self::expected()))
                }

                fn setting(self) -> Self {
                    self
                }

                fn parser() -> clap::builder::ValueParser {
                    clap::builder::EnumValueParser::<Self>::new().into()
                }
            }
        )*
    };
}
pub(crate) use choice;

/// The alternatives, as `"a", "b" or "c"`.
pub(crate) fn alternatives<T: ValueEnum>() -> String {
    let all = T::value_variants().iter().filter_map(ValueEnum::to_possible_value);
    let all: Vec<String> = all.map(|value| format!("{:?}", value.get_name())).collect();
    match all.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, first)) => format!("{} or {last}", first.join(", ")),
        None => String::new(),
    }
}

/// Implements [`Scalar`] for whole numbers.
macro_rules! number {
    ($($type:ty, $expected:literal;)*) => {
        $(
            impl Scalar for $type {
                type Setting = Self;

                const FORM: Form = Form::Number;
                const PLACEHOLDER: &'static str = "N";

                fn expected() -> String {
                    $expected.to_owned()
                }

                fn parse(text: &str) -> Result<Self, String> {
                    text.parse().map_err(|_| concat!("expected ", $expected).to_owned())
                }

                fn setting(self) -> Self {
                    self
                }
            }
        )*
    };
}

number! {
    u64, "a whole number";
    NonZeroU32, "a whole number of at least 1";
    NonZeroUsize, "a whole number of at least 1";
}

/// A whole number from 1 to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Count<const MAX: u32>(pub(crate) u32);

impl<const MAX: u32> Scalar for Count<MAX> {
    type Setting = u32;

    const FORM: Form = Form::Number;
    const PLACEHOLDER: &'static str = "N";

    fn expected() -> String {
        format!("a whole number from 1 to {MAX}")
    }

    fn parse(text: &str) -> Result<Self, String> {
        let count = text.parse().ok().filter(|count| (1..=MAX).contains(count));
        count.map(Self).ok_or_else(|| format!("expected {}", Self::expected()))
    }

    fn setting(self) -> u32 {
        self.0
    }
}

impl Scalar for bool {
    type Setting = Self;

    const FORM: Form = Form::Bool;
    const PLACEHOLDER: &'static str = "BOOL";

    fn expected() -> String {
        "true or false".to_owned()
    }

    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| "expected true or false".to_owned())
    }

    fn setting(self) -> Self {
        self
    }

    fn parser() -> ValueParser {
        ValueParser::bool()
    }
}

impl Scalar for String {
    type Setting = Self;

    const PLACEHOLDER: &'static str = "TEXT";

    fn expected() -> String {
        "a string".to_owned()
    }

    fn parse(text: &str) -> Result<Self, String> {
        Ok(text.to_owned())
    }

    fn setting(self) -> Self {
        self
    }
}

impl Scalar for PathBuf {
    type Setting = Self;

    const PLACEHOLDER: &'static str = "FILE";

    fn expected() -> String {
        "the path of a file".to_owned()
    }

    fn parse(text: &str) -> Result<Self, String> {
        Ok(text.into())
    }

    fn setting(self) -> Self {
        self
    }

    fn file(&self) -> Option<&Path> {
        Some(self)
    }

    fn parser() -> ValueParser {
        ValueParser::path_buf()
    }
}
