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
