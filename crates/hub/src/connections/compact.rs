//! Numbers without alignment, which fit where other fields leave padding: there may be a million connections.

/// A number of at most `N` bytes.
#[derive(Clone, Copy)]
pub(super) struct Compact<const N: usize>([u8; N]);

impl<const N: usize> Compact<N> {
    /// Stores the lowest `N` bytes.
    pub(super) fn new(number: u128) -> Self {
        let mut bytes = number.to_le_bytes().into_iter();
        Self(std::array::from_fn(|_| bytes.next().unwrap_or_default()))
    }

    pub(super) fn get(self) -> u128 {
        self.0.iter().rev().fold(0, |number, byte| number << 8 | u128::from(*byte))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_as_many_bytes_as_they_need() {
        assert_eq!(Compact::<6>::new(1_795_700_000_000).get(), 1_795_700_000_000);
        assert_eq!(Compact::<10>::new((1 << 80) - 1).get(), (1 << 80) - 1);
        assert_eq!(Compact::<2>::new(0x1_0203).get(), 0x203);
        assert_eq!(align_of::<Compact<10>>(), 1);
    }
}
