//! HPACK and QPACK static tables.

/// A static table's fields, and their order by name length.
#[derive(Debug)]
pub(crate) struct StaticTable<const LEN: usize> {
    entries: &'static [(&'static str, &'static str); LEN],
    /// Indexes by name length: `order[start[len]..start[len + 1]]`.
    order: [u8; LEN],
    start: [u8; LENGTHS + 1],
}

/// The longest name, plus one.
const LENGTHS: usize = 33;

impl<const LEN: usize> StaticTable<LEN> {
    pub(crate) const fn new(entries: &'static [(&'static str, &'static str); LEN]) -> Self {
        let (mut order, mut start) = ([0; LEN], [0; LENGTHS + 1]);
        let (mut position, mut length) = (0, 0);
        while length < LENGTHS {
            start[length] = position as u8;
            let mut entry = 0;
            while entry < LEN {
                if entries[entry].0.len() == length {
                    order[position] = entry as u8;
                    position += 1;
                }
                entry += 1;
            }
            length += 1;
        }
        assert!(position == LEN, "a name is longer than the longest");
        start[LENGTHS] = position as u8;
        Self { entries, order, start }
    }

    /// Returns the field at a position, which starts at 0.
    pub(crate) fn get(&self, index: usize) -> Option<(&'static [u8], &'static [u8])> {
        let (name, value) = self.entries.get(index)?;
        Some((name.as_bytes(), value.as_bytes()))
    }

    /// Returns the first position with this name, and whether the value is equal too, which is preferred.
    pub(crate) fn find(&self, name: &[u8], value: &[u8]) -> Option<(usize, bool)> {
        if name.len() >= LENGTHS {
            return None;
        }
        let candidates = usize::from(self.start[name.len()])..usize::from(self.start[name.len() + 1]);
        let mut found = None;
        for &entry in &self.order[candidates] {
            let index = usize::from(entry);
            let (known, text) = self.entries[index];
            if known.as_bytes() == name {
                if text.as_bytes() == value {
                    return Some((index, true));
                }
                found = found.or(Some((index, false)));
            }
        }
        found
    }
}
