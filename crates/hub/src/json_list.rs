//! JSON with a list, which is encoded as the client takes it.

use std::fmt::{self, Write};

use serde_json::json;
use sinews_server::BodySource;

/// An item of a [`JsonList`].
pub(crate) trait JsonListItem: Send + Sync + 'static {
    /// Appends the item as JSON.
    fn write(&self, out: &mut impl Write);

    /// Returns the bytes that the item refers to. Others may free theirs before the client takes the item.
    fn memory(&self) -> usize;
}

/// A body with a list: the JSON before the items, the items, and the JSON behind them.
pub(crate) struct JsonList<T> {
    head: String,
    items: Vec<T>,
    tail: String,
    len: u64,
    memory: usize,
}

impl<T: JsonListItem> JsonList<T> {
    /// Creates a body. `head` ends with `[` or `{`, and `tail` begins with the other bracket.
    pub(crate) fn new(head: String, items: Vec<T>, tail: impl Into<String>) -> Self {
        let tail = tail.into();
        let mut len = TextLen::default();
        items.iter().for_each(|item| item.write(&mut len));
        let commas = items.len().saturating_sub(1);
        let len = (head.len() + len.bytes() + commas + tail.len()) as u64;
        let referred: usize = items.iter().map(JsonListItem::memory).sum();
        let memory = head.capacity() + items.capacity() * size_of::<T>() + referred;
        Self { head, items, tail, len, memory }
    }
}

impl<T: JsonListItem> BodySource for JsonList<T> {
    fn len(&self) -> u64 {
        self.len
    }

    fn memory(&self) -> usize {
        self.memory
    }

    /// A piece is an item.
    fn write_piece(&self, number: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(if number == 0 { self.head.as_bytes() } else { b"," });
        if let Some(item) = self.items.get(number) {
            item.write(&mut TextOut(out));
        }
        if number + 1 >= self.items.len() {
            out.extend_from_slice(self.tail.as_bytes());
        }
    }
}

/// Returns the end of a page: the bracket of its list, and the start of the next page, if there is one.
pub(crate) fn page_end(bracket: &str, next: Option<&str>) -> String {
    let next = next.map_or_else(String::new, |next| format!(",\"next\":{}", json!(next)));
    format!("{bracket}{next}}}\n")
}

#[cfg(test)]
impl<T: JsonListItem> JsonList<T> {
    /// Returns the whole text.
    pub(crate) fn to_text(&self) -> String {
        let mut text = Vec::new();
        (0..self.items.len().max(1)).for_each(|number| self.write_piece(number, &mut text));
        assert_eq!(text.len() as u64, self.len);
        String::from_utf8(text).unwrap()
    }
}

/// The length of a text that is encoded later.
#[derive(Default)]
pub(crate) struct TextLen(usize);

impl TextLen {
    pub(crate) const fn bytes(&self) -> usize {
        self.0
    }
}

impl Write for TextLen {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 += text.len();
        Ok(())
    }
}

/// A buffer of bytes as the end of a text.
struct TextOut<'a>(&'a mut Vec<u8>);

impl Write for TextOut<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl JsonListItem for u32 {
        fn write(&self, out: &mut impl Write) {
            let _ = write!(out, "{self}");
        }

        fn memory(&self) -> usize {
            100
        }
    }

    #[test]
    fn pieces_are_the_items_and_have_the_declared_length() {
        for (items, expected) in
            [(vec![], "{\"a\":[]}\n"), (vec![7_u32], "{\"a\":[7]}\n"), (vec![1, 20, 3], "{\"a\":[1,20,3]}\n")]
        {
            let memory = items.len() * 104;
            let list = JsonList::new("{\"a\":[".to_owned(), items, "]}\n");
            assert_eq!(list.to_text(), expected);
            assert!(list.memory() >= memory, "{} bytes", list.memory());
        }
        assert_eq!(page_end("]", Some("\"a")), "],\"next\":\"\\\"a\"}\n");
    }
}
