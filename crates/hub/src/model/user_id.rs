//! User ids, which applications send as strings or as numbers.

use serde_json::Number;
use serde_json::value::RawValue;
use sinews_server::Member;

use crate::model::push_json;

/// Begins a member's info if its id is a number. JSON ignores white space, so all readers see the same info.
const NUMBER_MARK: char = ' ';

/// A user's id. A number and the string of its digits are the same user: only the form in messages differs.
pub(crate) struct UserId {
    pub(crate) text: String,
    is_number: bool,
}

impl UserId {
    /// Reads an id from JSON; `None` if it is neither a string nor a number.
    pub(crate) fn read(id: &RawValue) -> Option<Self> {
        let id = id.get();
        match id.as_bytes().first()? {
            b'"' => Some(Self { text: serde_json::from_str(id).ok()?, is_number: false }),
            b'0'..=b'9' | b'-' => Some(Self { text: id.to_owned(), is_number: is_number(id) }),
            _ => None,
        }
    }

    /// Returns the member's info from its JSON. The mark of a number is omitted if it would exceed the maximum info
    /// size: such a member has a string in messages.
    pub(crate) fn info(&self, info: Option<&RawValue>) -> String {
        let info = info.map_or("", RawValue::get);
        let mut marked = String::with_capacity(info.len() + 1);
        if self.is_number && info.len() != Member::INFO_MAX {
            marked.push(NUMBER_MARK);
        }
        marked.push_str(info);
        marked
    }
}

/// Whether the text is a number that each JSON reader writes in this form.
fn is_number(id: &str) -> bool {
    serde_json::from_str::<Number>(id).is_ok_and(|number| number.to_string() == id)
}

/// Whether a member with this id may have a number: the others need no look at their info.
pub(crate) fn may_be_number(id: &str) -> bool {
    id.starts_with(|first: char| first == '-' || first.is_ascii_digit())
}

/// Whether the info belongs to a member whose id is a number.
pub(crate) fn has_number_id(info: &[u8]) -> bool {
    info.first() == Some(&(NUMBER_MARK as u8))
}

/// Appends an id's JSON in the form in which the application has sent it.
pub(crate) fn push_user_id(text: &mut String, id: &str, has_number_id: bool) {
    // Other nodes have sent the info.
    if has_number_id && is_number(id) {
        text.push_str(id);
    } else {
        push_json(text, id);
    }
}

/// The same as a text of its own.
pub(crate) fn user_id_json(id: &str, has_number_id: bool) -> String {
    let mut text = String::with_capacity(id.len() + 2);
    push_user_id(&mut text, id, has_number_id);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_keep_their_form_and_infos_their_json() {
        for (json, text, kept) in [
            ("1", "1", "1"),
            ("\"1\"", "1", "\"1\""),
            ("-7", "-7", "-7"),
            ("1.5", "1.5", "1.5"),
            ("18446744073709551615", "18446744073709551615", "18446744073709551615"),
            // Readers write these in different forms.
            ("1e3", "1e3", "\"1e3\""),
            ("-0", "-0", "\"-0\""),
            (
                "123456789012345678901234567890",
                "123456789012345678901234567890",
                "\"123456789012345678901234567890\"",
            ),
        ] {
            let raw: &RawValue = serde_json::from_str(json).unwrap();
            let id = UserId::read(raw).unwrap();
            let info = id.info(Some(serde_json::from_str("{\"a\":1}").unwrap()));
            assert_eq!(info.trim_start(), "{\"a\":1}");
            assert_eq!((&*id.text, &*user_id_json(&id.text, has_number_id(info.as_bytes()))), (text, kept));
        }
        assert_eq!(user_id_json("a\"", true), r#""a\"""#, "a forged mark is no way to other JSON");
    }

    #[test]
    fn info_of_the_maximum_size_has_no_mark() {
        let id = UserId::read(serde_json::from_str("1").unwrap()).unwrap();
        for size in [Member::INFO_MAX - 1, Member::INFO_MAX] {
            let json = format!("\"{}\"", "x".repeat(size - 2));
            let member = Member::new("1").with_info(id.info(Some(serde_json::from_str(&json).unwrap())));
            assert_eq!(member.check(), Ok(()));
        }
        let large = format!("\"{}\"", "x".repeat(Member::INFO_MAX));
        let member = Member::new("1").with_info(id.info(Some(serde_json::from_str(&large).unwrap())));
        assert!(member.check().is_err());
    }
}
