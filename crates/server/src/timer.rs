//! Timers of connections.

use std::time::Instant;

use sinews_engine::{ConnId, Io};
use sinews_proto::Time;

/// Deadline of a timer that is not set. Not an `Option`: each connection has one.
pub(crate) const NEVER: Time = Time::from_micros(u64::MAX);

/// Sets the loop's timer only to an earlier time. Deadlines mostly move later, and are checked when the timer fires.
#[inline]
pub(crate) fn arm(io: &mut Io, conn: ConnId, armed: &mut Time, deadline: Time, epoch: Instant) {
    if deadline < *armed {
        *armed = deadline;
        io.set_timer(conn, epoch + deadline.since(Time::ZERO));
    }
}
