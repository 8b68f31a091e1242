//! JSON schemas, and their derivation from the structs that serde reads and writes.

use std::borrow::Cow;

use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// A JSON schema.
#[derive(Clone, Copy)]
pub(crate) enum Schema {
    Text,
    Integer,
    Boolean,
    Any,
    /// `null`, or this.
    OrNull(&'static Self),
    List(&'static Self),
    /// An object with these fields and no others.
    Object(&'static [Field]),
    /// The same; if there are names, exactly one of these fields is required.
    OneOf(&'static [Field], &'static [&'static str]),
    /// An object with further fields, which are optional.
    Extended(&'static Self, &'static [Field]),
}

/// A field of an object.
#[derive(Clone, Copy)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) schema: Schema,
    pub(crate) is_required: bool,
    /// Description, in which leading space is ignored.
    pub(crate) help: &'static str,
}

pub(crate) const fn required(name: &'static str, schema: Schema, help: &'static str) -> Field {
    Field { name, schema, is_required: true, help }
}

pub(crate) const fn optional(name: &'static str, schema: Schema, help: &'static str) -> Field {
    Field { name, schema, is_required: false, help }
}

/// A type with a schema.
pub(crate) trait Described {
    const SCHEMA: Schema;
    const OR_NULL: Schema = Schema::OrNull(&Self::SCHEMA);
    /// Whether a field of the type is required.
    const IS_REQUIRED: bool = true;
}

/// The field may be missing. The inner one of two options is `null`.
impl<T: Described> Described for Option<T> {
    const SCHEMA: Schema = if T::IS_REQUIRED { T::SCHEMA } else { T::OR_NULL };
    const IS_REQUIRED: bool = false;
}

impl<T: Described> Described for Vec<T> {
    const SCHEMA: Schema = Schema::List(&T::SCHEMA);
}

macro_rules! describe {
    ($($schema:ident: $($type:ty),+;)+) => {
        $($(impl Described for $type {
            const SCHEMA: Schema = Schema::$schema;
        })+)+
    };
}

describe! {
    Text: String, Box<str>, Cow<'_, str>;
    // A time in seconds may have a fraction, which clients do not need.
    Integer: u32, u64, usize, f64;
    Boolean: bool;
    Any: &RawValue, Map<String, Value>;
}

/// Declares structs, whose schema has the fields' doc comments as descriptions. Exactly one field in `one_of` is
/// required.
macro_rules! described {
    ($(
        $(#[$attribute:meta])*
        $(one_of[$($choice:ident),+])?
        struct $name:ident $(<$lifetime:lifetime>)? {
            $($(#[doc = $help:literal])+ $(#[serde $serde:tt])* $visible:vis $field:ident: $type:ty,)+
        }
    )+) => {$(
        $(#[$attribute])*
        pub(crate) struct $name $(<$lifetime>)? {
            $($(#[doc = $help])+ $(#[serde $serde])* $visible $field: $type,)+
        }

        impl $(<$lifetime>)? crate::model::schema::Described for $name $(<$lifetime>)? {
            const SCHEMA: crate::model::schema::Schema = crate::model::schema::Schema::OneOf(
                &[$(crate::model::schema::Field {
                    name: stringify!($field),
                    schema: <$type as crate::model::schema::Described>::SCHEMA,
                    is_required: <$type as crate::model::schema::Described>::IS_REQUIRED,
                    help: concat!($($help),+),
                }),+],
                &[$($(stringify!($choice)),+)?],
            );
        }
    )+};
}

/// Declares request bodies: structs that reject unknown fields.
macro_rules! requests {
    ($($(one_of[$($choice:ident),+])? struct $name:ident $(<$lifetime:lifetime>)? { $($fields:tt)+ })+) => {
        crate::model::schema::described! {$(
            #[derive(serde::Deserialize)]
            #[serde(deny_unknown_fields)]
            $(one_of[$($choice),+])?
            struct $name $(<$lifetime>)? { $($fields)+ }
        )+}
    };
}

pub(crate) use {described, requests};
