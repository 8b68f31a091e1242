//! Reads the known fields of a message, and ignores unknown ones: a newer client may send them.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::value::CowStrDeserializer;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde::forward_to_deserialize_any;

use crate::model::brief::brief;

/// Maximum number of unknown fields that an answer names.
pub(super) const IGNORED_MAX: usize = 8;

/// A deserializer for a struct that rejects unknown fields: it skips them, and lists their names.
pub(super) struct TolerantReader<'a, D> {
    pub(super) json: D,
    pub(super) ignored: &'a mut Vec<String>,
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for TolerantReader<'_, D> {
    type Error = D::Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.json.deserialize_map(TolerantVisitor { visitor, known, ignored: self.ignored })
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, D::Error> {
        Err(D::Error::custom("only a struct has known fields"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

struct TolerantVisitor<'a, V> {
    visitor: V,
    known: &'static [&'static str],
    ignored: &'a mut Vec<String>,
}

impl<'de, V: Visitor<'de>> Visitor<'de> for TolerantVisitor<'_, V> {
    type Value = V::Value;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.visitor.expecting(formatter)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_map(KnownEntries { map, known: self.known, ignored: self.ignored })
    }
}

struct KnownEntries<'a, A> {
    map: A,
    known: &'static [&'static str],
    ignored: &'a mut Vec<String>,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for KnownEntries<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        while let Some(JsonFieldName(name)) = self.map.next_key()? {
            if self.known.contains(&&*name) {
                return seed.deserialize(CowStrDeserializer::new(name)).map(Some);
            }
            self.map.next_value::<IgnoredAny>()?;
            if self.ignored.len() < IGNORED_MAX {
                self.ignored.push(brief(&name));
            }
        }
        Ok(None)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, A::Error> {
        self.map.next_value_seed(seed)
    }
}

/// A name without escapes is borrowed.
#[derive(Deserialize)]
struct JsonFieldName<'a>(#[serde(borrow)] Cow<'a, str>);
