//! Connection ids.

use std::fmt;

/// A connection's id, which one process of all nodes has. Ids are in the order of their processes, then in the order in
/// which their connections opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ConnectionId {
    /// The process that has the connection.
    pub(crate) process: u32,
    pub(crate) number: u64,
}

impl ConnectionId {
    /// Reads an id; `None` if the text is none.
    pub(crate) fn parse(id: &str) -> Option<Self> {
        let (process, number) = id.split_once('-')?;
        let process = u32::from_str_radix(process, 16).ok()?;
        Some(Self { process, number: u64::from_str_radix(number, 16).ok()? })
    }

    /// Writes the id as 12 bytes, little endian.
    pub(crate) fn write(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.process.to_le_bytes());
        out.extend_from_slice(&self.number.to_le_bytes());
    }

    /// Reads a [written](Self::write) id; returns the bytes behind it.
    pub(crate) fn read(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (process, rest) = bytes.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        let (process, number) = (u32::from_le_bytes(*process), u64::from_le_bytes(*number));
        Some((Self { process, number }, rest))
    }
}

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:06x}-{:x}", self.process, self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_is_read_as_written() {
        for id in
            [ConnectionId { process: 0xa1, number: 0x1f }, ConnectionId { process: 0, number: u64::MAX }]
        {
            assert_eq!(ConnectionId::parse(&id.to_string()), Some(id));
        }
        for text in ["", "-", "a1", "a1-", "-1", "g-1", "1-2-3", "100000000-1", "1.2"] {
            assert_eq!(ConnectionId::parse(text), None, "{text}");
        }
    }
}
