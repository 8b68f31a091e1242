//! The macro that enters settings.

/// Defines a configuration table: a struct with a field for each key, and its [`Table`](super::key::Table).
///
/// ```text
/// settings! {
///     /// Limits of plain HTTP.
///     pub(crate) struct HttpSettings in "http", "HTTP" {
///         /// Timeout of an idle connection after a response.
///         keep_alive_timeout: PositiveDuration { default: "75s" }
///     }
/// }
/// ```
///
/// The names in quotes are the file's table and the flags' heading. A key's comment is its help text. Its type is a
/// [`SettingValue`](super::value::SettingValue); the struct field has the setting's type, here `Duration`. In braces
/// are fields of [`SettingKey`](super::key::SettingKey). `with` adds fields that are read from several keys
/// ([`SettingGroup`](super::resolver::SettingGroup)).
macro_rules! settings {
    (
        $(#[doc = $about:literal])+
        $vis:vis struct $Settings:ident in "", $heading:literal $($rest:tt)*
    ) => {
        $crate::config::schema::settings! {
            @ "", "", [$($about)+] $vis $Settings $heading $($rest)*
        }
    };
    (
        $(#[doc = $about:literal])+
        $vis:vis struct $Settings:ident in $table:literal, $heading:literal $($rest:tt)*
    ) => {
        $crate::config::schema::settings! {
            @ $table, ".", [$($about)+] $vis $Settings $heading $($rest)*
        }
    };
    (
        @ $table:literal, $dot:literal, [$($about:literal)+] $vis:vis $Settings:ident $heading:literal {
            $(
                $(#[doc = $help:literal])+
                $key:ident: $kind:ty { $($field:ident: $value:expr),* $(,)? }
            )*
        }
        $(with { $($group:ident: $Group:ty),* $(,)? })?
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, PartialEq, Eq)]
        $vis struct $Settings {
            $($(#[doc = $help])+ pub(crate) $key: <$kind as $crate::config::value::SettingValue>::Setting,)*
            $($(pub(crate) $group: $Group,)*)?
        }

        impl $Settings {
            /// The keys.
            pub(crate) const TABLE: &'static $crate::config::key::Table = &$crate::config::key::Table {
                name: $table,
                heading: $heading,
                about: &[$($about),+],
                keys: &[$(
                    $crate::config::key::SettingKey {
                        name: concat!($table, $dot, stringify!($key)),
                        help: &[$($help),+],
                        $($field: $value,)*
                        ..$crate::config::key::SettingKey::for_type::<$kind>()
                    }
                    .checked(),
                )*],
            };
        }

        impl $crate::config::resolver::SettingGroup for $Settings {
            fn resolve(resolver: &mut $crate::config::resolver::SettingResolver<'_>) -> Result<Self, String> {
                let mut keys = Self::TABLE.keys.iter();
                Ok(Self {
                    $($key: resolver.next::<$kind>(&mut keys)?,)*
                    $($($group: $crate::config::resolver::SettingGroup::resolve(resolver)?,)*)?
                })
            }

            fn list_restarts(&self, new: &Self, restarts: &mut Vec<&'static str>) {
                let differs = [$(self.$key != new.$key),*];
                let keys = Self::TABLE.keys.iter().zip(differs);
                restarts.extend(keys.filter(|(key, differs)| *differs && !key.reloads).map(|(key, _)| key.name));
                $($(self.$group.list_restarts(&new.$group, restarts);)*)?
            }
        }
    };
}
pub(crate) use settings;
