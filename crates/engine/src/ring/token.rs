//! What an operation is and whose, in the 64 bits that travel with it through the kernel.

use crate::ConnId;

/// An operation's name, returned with its completion.
///
/// Kind in 8 bits, the lower 24 of the connection's generation, slot in 32. The kernel completes an
/// operation once and a slot is vacated only after all of its operations have, so the generation is a second
/// lock: a completion that is late all the same finds nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Token(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Nobody waits for it: a cancellation, whose target answers for itself.
    Nothing,
    /// Another thread posted mail.
    Wake,
    /// By listener.
    Accept,
    /// The peer's address of an accepted socket, by place among those asked for.
    Name,
    /// Closes a socket that never became a connection.
    Discard,
    /// Moves a socket of ours into the table.
    Install,
    Connect,
    Receive,
    /// Receives once, into a buffer of the application's.
    Large,
    /// Waits for an error of a socket whose peer has ended.
    Watch,
    /// A send that only reports what went wrong.
    Fire,
    Send,
    Shutdown,
    Close,
    /// Writes to a file, by place among those under way.
    Append,
    /// Syncs it then.
    Sync,
}

impl Token {
    pub(super) const NOTHING: Self = Self::numbered(Kind::Nothing, 0);
    pub(super) const WAKE: Self = Self::numbered(Kind::Wake, 0);

    /// For what belongs to no connection.
    pub(super) const fn numbered(kind: Kind, number: u32) -> Self {
        Self((kind as u64) << 56 | number as u64)
    }

    pub(super) fn of(kind: Kind, conn: ConnId) -> Self {
        let generation = u64::from(conn.generation() & GENERATION);
        Self((kind as u64) << 56 | generation << 32 | conn.index() as u64)
    }

    pub(super) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    pub(super) const fn bits(self) -> u64 {
        self.0
    }

    /// `None`: no token of ours.
    pub(super) fn kind(self) -> Option<Kind> {
        use Kind::{
            Accept, Append, Close, Connect, Discard, Fire, Install, Large, Name, Nothing, Receive, Send,
            Shutdown, Sync, Wake, Watch,
        };
        let all = [
            Nothing, Wake, Accept, Name, Discard, Install, Connect, Receive, Large, Watch, Fire, Send,
            Shutdown, Close, Append, Sync,
        ];
        all.get((self.0 >> 56) as usize).copied()
    }

    /// Whether the kernel owes a completion: of the others, some report only what went wrong.
    pub(super) fn reports(self) -> bool {
        !matches!(self.kind(), Some(Kind::Nothing | Kind::Wake | Kind::Fire) | None)
    }

    /// The slot, or the number.
    pub(super) fn index(self) -> usize {
        (self.0 & u64::from(u32::MAX)) as usize
    }

    /// Whether this is an operation of that connection.
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
    fn a_token_tells_kind_slot_and_generation() {
        let mut slots = Slots::default();
        let first = slots.insert();
        let neighbour = slots.insert();
        slots.remove(first);
        let second = slots.insert();
        assert_eq!(first.index(), second.index());
        for kind in [Kind::Install, Kind::Connect, Kind::Receive, Kind::Send, Kind::Shutdown, Kind::Close] {
            let token = Token::from_bits(Token::of(kind, first).bits());
            assert_eq!((token.kind(), token.index()), (Some(kind), first.index()));
            assert!(token.is_of(first) && !token.is_of(second) && !token.is_of(neighbour));
        }
        assert_eq!(Token::numbered(Kind::Name, 7).index(), 7);
        assert_eq!(Token::from_bits(u64::MAX).kind(), None, "what is not ours is nobody's");
    }
}
