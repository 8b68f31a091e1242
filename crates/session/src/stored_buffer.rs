//! A buffer that most connections do not have.

/// A buffer in one word: an idle connection has none.
#[derive(Debug, Default)]
pub(crate) struct StoredBuffer(Option<Box<StoredBytes>>);

#[derive(Debug, Default)]
struct StoredBytes(Vec<u8>);

impl StoredBuffer {
    pub(crate) const NONE: Self = Self(None);

    #[inline]
    pub(crate) fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// Takes the buffer, until [`put`](Self::put) or [`clear`](Self::clear).
    #[inline]
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.0.as_mut().map_or_else(Vec::new, |bytes| std::mem::take(&mut bytes.0))
    }

    /// Stores a buffer, if it has memory.
    pub(crate) fn put(&mut self, buffer: Vec<u8>) {
        match &mut self.0 {
            stored if buffer.capacity() == 0 => *stored = None,
            Some(bytes) => bytes.0 = buffer,
            stored => *stored = Some(Box::new(StoredBytes(buffer))),
        }
    }

    /// Stores no buffer.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.0 = None;
    }

    /// The buffer, which may be empty.
    pub(crate) fn get_mut(&mut self) -> &mut Vec<u8> {
        &mut self.0.get_or_insert_default().0
    }

    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.0.as_ref().map_or(0, |bytes| bytes.0.capacity())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_buffers_with_memory_are_stored() {
        let mut stored = StoredBuffer::NONE;
        assert_eq!((size_of_val(&stored), stored.capacity()), (size_of::<usize>(), 0));
        stored.put(Vec::new());
        assert!(stored.is_none());
        stored.put(vec![1]);
        stored.get_mut().push(2);
        assert!(stored.capacity() >= 2 && !stored.is_none());
        assert_eq!(stored.take(), [1, 2]);
        assert_eq!(stored.take(), []);
        stored.put(Vec::new());
        assert!(stored.is_none());
    }
}
