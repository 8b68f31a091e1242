//! The kind and connection of an operation, in the 64 bits that the kernel returns with its completion.

use crate::ConnId;

/// Identifies an operation; the kernel returns it with the completion.
///
/// Kind in 8 bits, the lower 24 bits of the connection's generation, slot in 32. The kernel completes an operation
/// once, and a slot is vacated only after all its operations completed. The generation is a second safeguard: a late
/// completion matches no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Token(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum OpKind {
    /// No handler: a cancellation, whose target has its own completion.
    Nothing,
    /// Another thread posted mail.
    Wake,
    /// By listener.
    Accept,
    /// The peer's address of an accepted socket, by name slot.
    Name,
    /// Closes a socket that never became a connection.
    Discard,
    /// Moves an outgoing socket into the table.
    Install,
    Connect,
    Receive,
    /// Receives once, into a buffer of the application.
    Large,
    /// Waits for an error of a socket whose peer has ended.
    Watch,
    /// A send that only reports failures.
    Fire,
    /// The same, of a broadcast.
    Share,
    Send,
    Shutdown,
    Close,
    /// Writes to a file, by index of the append.
    Append,
    /// Syncs the file.
    Sync,
    /// Polls a datagram socket, by its index.
    Datagrams,
}

impl Token {
    pub(super) const NOTHING: Self = Self::numbered(OpKind::Nothing, 0);
    pub(super) const WAKE: Self = Self::numbered(OpKind::Wake, 0);

    /// A token without a connection.
    pub(super) const fn numbered(kind: OpKind, number: u32) -> Self {
        Self((kind as u64) << 56 | number as u64)
    }

    pub(super) fn new(kind: OpKind, conn: ConnId) -> Self {
        let generation = u64::from(conn.generation() & GENERATION);
        Self((kind as u64) << 56 | generation << 32 | conn.index() as u64)
    }

    pub(super) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    pub(super) const fn bits(self) -> u64 {
        self.0
    }

    /// `None`: an unknown token.
    pub(super) fn kind(self) -> Option<OpKind> {
        use OpKind::{
            Accept, Append, Close, Connect, Datagrams, Discard, Fire, Install, Large, Name, Nothing, Receive,
            Send, Share, Shutdown, Sync, Wake, Watch,
        };
        let all = [
            Nothing, Wake, Accept, Name, Discard, Install, Connect, Receive, Large, Watch, Fire, Share, Send,
            Shutdown, Close, Append, Sync, Datagrams,
        ];
        all.get((self.0 >> 56) as usize).copied()
    }

    /// Whether the kernel always reports a completion. Some other kinds report failures only.
    pub(super) fn reports(self) -> bool {
        !matches!(self.kind(), Some(OpKind::Nothing | OpKind::Wake | OpKind::Fire | OpKind::Share) | None)
    }

    /// The slot, or the number.
    pub(super) fn index(self) -> usize {
        (self.0 & u64::from(u32::MAX)) as usize
    }

    /// Whether this is an operation of `conn`.
    pub(super) fn is_of(self, conn: ConnId) -> bool {
        let generation = (self.0 >> 32) as u32 & GENERATION;
        self.index() == conn.index() && generation == conn.generation() & GENERATION
    }
}

const GENERATION: u32 = (1 << 24) - 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::Slots;

    #[test]
    fn token_encodes_kind_slot_and_generation() {
        let mut slots = Slots::default();
        let first = slots.insert();
        let neighbour = slots.insert();
        slots.remove(first);
        let second = slots.insert();
        assert_eq!(first.index(), second.index());
        for kind in
            [OpKind::Install, OpKind::Connect, OpKind::Receive, OpKind::Send, OpKind::Shutdown, OpKind::Close]
        {
            let token = Token::from_bits(Token::new(kind, first).bits());
            assert_eq!((token.kind(), token.index()), (Some(kind), first.index()));
            assert!(token.is_of(first) && !token.is_of(second) && !token.is_of(neighbour));
        }
        assert_eq!(Token::numbered(OpKind::Name, 7).index(), 7);
        assert_eq!(Token::from_bits(u64::MAX).kind(), None, "unknown bits have no kind");
    }
}
