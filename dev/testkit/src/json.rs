//! Checks for JSON values.

use serde_json::Value;

/// Asserts that fields of an object are those of another one. A field that is `null` there may be absent.
///
/// # Panics
/// Some field differs, or `expected` is no object.
#[track_caller]
#[allow(clippy::needless_pass_by_value, reason = "callers write the object in place")]
pub fn assert_fields(value: &Value, expected: Value) {
    for (name, expected) in expected.as_object().expect("an object") {
        assert_eq!(&value[name], expected, "{name} in {value}");
    }
}
