//! The interface between shared loop state (slots, timers, mail, commands) and the backends.

use std::io;
use std::time::Duration;

use bytes::Bytes;

use crate::slots::{ConnectionSlot, WriteState};
use crate::{App, ConnId, DatagramSocket, Io};

/// Executes the commands recorded in [`Io`] and delivers the kernel's events.
///
/// The interface follows completions: a chunk is lent to the application, a chain moves to the kernel and
/// back by value, and a connection is closed only when none of its operations is in flight. The readiness
/// backend executes an operation when it can complete; a ring submits it and waits.
pub(crate) trait Backend<A: App> {
    /// Called on the thread that runs the loop, before it waits.
    fn start(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Whether work is left from the last turn, so that this turn must not sleep. Called at the end of the
    /// turn, when no more work can be added.
    fn has_work(&self, app: &A, io: &Io) -> bool;

    /// The maximum sleep of the backend itself, in addition to the timers in [`Io`].
    fn until_next_work(&self, io: &Io) -> Option<Duration>;

    /// Waits for events of the kernel, at most `timeout` (`None`: without limit).
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()>;

    /// Delivers events: `received`, `ended`, `accepted`. Bounded per connection.
    fn deliver(&mut self, app: &mut A, io: &mut Io);

    /// Executes commands at the end of a turn: closes, resumes, sends. Commands recorded during the sends
    /// are left to the next turn, except for closes.
    fn execute_commands(&mut self, app: &mut A, io: &mut Io);

    /// Reports from now on when a datagram socket becomes readable.
    fn watch_datagrams(&mut self, index: usize, socket: &DatagramSocket) -> io::Result<()>;

    /// Ends the reports of a datagram socket, which is closed next.
    fn unwatch_datagrams(&mut self, index: usize, socket: &DatagramSocket);

    /// Submits queued operations, when the next wait may be far away.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Makes the rest of a broadcast the chain in flight. A connection that cannot take it is closed, since its
/// stream would have a gap.
pub(crate) fn take_unsent<A: App>(app: &mut A, io: &mut Io, conn: ConnId, rest: Bytes) -> Option<A::Chain> {
    let is_ready = |slot: &mut ConnectionSlot| !slot.in_flight && slot.sending != WriteState::Shut;
    let is_ready = io.slots.live_mut(conn).is_some_and(is_ready);
    let chain = if is_ready { app.take_unsent(io, conn, rest) } else { None };
    match io.slots.get_mut(conn) {
        Some(slot) if chain.is_some() => slot.in_flight = true,
        _ => io.close_for(conn, || io::Error::other("a broadcast has no chain for its rest").into()),
    }
    chain
}
