//! JSON with a list, which is encoded as the client takes it.
//!
//! A [`JsonList`] refers to its items, so it is for lists of bounded memory: pages. A [`PagedList`] of any length looks
//! its items up, a page at a time.

use std::fmt::{self, Write};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::json;
use sinews_server::BodySource;

/// An item in a [`JsonList`].
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
    fn len(&self) -> Option<u64> {
        Some(self.len)
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

/// A body with a list that is looked up as the client takes it, by the names of its items: an item that appears or
/// vanishes meanwhile may be listed or not, the others are listed once. The length is not known before the end.
pub(crate) struct PagedList<P> {
    head: &'static str,
    tail: &'static str,
    pages: P,
    state: Mutex<PageState>,
}

/// A [`PagedList`]'s pages.
pub(crate) trait JsonPages: Send + Sync + 'static {
    /// Adds the items after the last name on the page before: `None` for the first page. Returns the last name on this
    /// page, or `None` for the last page.
    fn write_page(&self, after: Option<&str>, page: &mut PageItems<'_>) -> Option<Arc<str>>;
}

/// Maximum items on a page of a [`PagedList`]: a lookup is shorter than a loop turn by far.
pub(crate) const PAGE_ITEMS: usize = 128;

enum PageState {
    Start,
    /// Behind a page's last name. Whether an item is listed: the next one has a comma.
    After(Arc<str>, bool),
    End,
}

impl<P: JsonPages> PagedList<P> {
    /// Creates a body. `head` ends with `[` or `{`, and `tail` begins with the other bracket.
    pub(crate) fn new(head: &'static str, pages: P, tail: &'static str) -> Self {
        Self { head, tail, pages, state: Mutex::new(PageState::Start) }
    }
}

impl<P: JsonPages> BodySource for PagedList<P> {
    fn len(&self) -> Option<u64> {
        None
    }

    fn memory(&self) -> usize {
        size_of::<Self>()
    }

    /// Pieces are asked for in order.
    fn write_piece(&self, _: usize, out: &mut Vec<u8>) {
        let mut state = self.state.lock();
        let (after, mut has_items) = match std::mem::replace(&mut *state, PageState::End) {
            PageState::Start => {
                out.extend_from_slice(self.head.as_bytes());
                (None, false)
            }
            PageState::After(name, has_items) => (Some(name), has_items),
            PageState::End => return,
        };
        let before = out.len();
        let next = self.pages.write_page(after.as_deref(), &mut PageItems { out, has_items: &mut has_items });
        let Some(name) = next else { return out.extend_from_slice(self.tail.as_bytes()) };
        if out.len() == before {
            // A piece without bytes would be the end.
            out.push(b'\n');
        }
        *state = PageState::After(name, has_items);
    }
}

/// A page's items.
pub(crate) struct PageItems<'a> {
    out: &'a mut Vec<u8>,
    has_items: &'a mut bool,
}

impl PageItems<'_> {
    /// Begins an item. Returns where it is written.
    pub(crate) fn begin_item(&mut self) -> impl Write {
        if std::mem::replace(self.has_items, true) {
            self.out.push(b',');
        }
        TextOut(self.out)
    }
}

/// Returns the end of a page: its list's bracket, and the start of the next page, if there is one.
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

/// A byte buffer as the end of a text.
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

    /// Numbers below this one as names, two a page; odd ones are not listed.
    struct EvenNumbers(u32);

    impl JsonPages for EvenNumbers {
        fn write_page(&self, after: Option<&str>, page: &mut PageItems<'_>) -> Option<Arc<str>> {
            let first = after.map_or(0, |name| name.parse::<u32>().unwrap() + 1);
            let names = first..self.0.min(first + 2);
            for name in names.clone().filter(|name| name % 2 == 0) {
                let _ = write!(page.begin_item(), "{name}");
            }
            (first + 2 < self.0).then(|| (first + 1).to_string().into())
        }
    }

    /// Three pages without an item.
    struct OddNames;

    impl JsonPages for OddNames {
        fn write_page(&self, after: Option<&str>, _: &mut PageItems<'_>) -> Option<Arc<str>> {
            match after {
                None => Some("1".into()),
                Some("1") => Some("3".into()),
                Some(_) => None,
            }
        }
    }

    #[test]
    fn pages_are_looked_up_one_by_one() {
        for (numbers, expected) in [(0, ""), (1, "0"), (2, "0"), (3, "0,2"), (4, "0,2"), (5, "0,2,4")] {
            let list = PagedList::new("{\"a\":[", EvenNumbers(numbers), "]}");
            let mut text = Vec::new();
            let mut len = None;
            while len != Some(text.len()) {
                len = Some(text.len());
                list.write_piece(0, &mut text);
            }
            let text = String::from_utf8(text).unwrap();
            assert_eq!((text, list.len()), (format!("{{\"a\":[{expected}]}}"), None));
        }
        // Nothing of the first two pages is listed.
        let list = PagedList::new("[", OddNames, "]");
        let mut text = Vec::new();
        (0..4).for_each(|number| list.write_piece(number, &mut text));
        assert_eq!(text, b"[\n\n]");
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
