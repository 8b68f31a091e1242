//! The same bytes for several connections: one system call each, and no chain.

use std::io::{self, Write};
use std::mem;

use bytes::Bytes;

use super::Poll;
use crate::backend::take_unsent;
use crate::io::Broadcast;
use crate::slots::WriteState;
use crate::{App, ConnId, Io, SendChain};

impl<C: SendChain> Poll<C> {
    /// Sends listed broadcasts.
    pub(super) fn broadcast_listed<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io) {
        if io.broadcasts.is_empty() {
            return;
        }
        for Broadcast { bytes, conns } in mem::take(&mut io.broadcasts) {
            let (mut sends, mut sent_bytes) = (0, 0);
            for conn in conns {
                let Some(slot) = io.slots.live_mut(conn) else { continue };
                let is_ready = !slot.in_flight && !slot.connecting && slot.sending != WriteState::Shut;
                let Some(Some(link)) = self.links.get_mut(conn.index()) else { continue };
                let outcome = if is_ready { link.stream.write(&bytes) } else { Ok(0) };
                sends += u64::from(is_ready);
                match outcome {
                    Ok(sent) if sent == bytes.len() => sent_bytes += sent as u64,
                    Ok(sent) => {
                        sent_bytes += sent as u64;
                        self.continue_unsent(app, io, conn, bytes.slice(sent..));
                    }
                    Err(error) => match error.kind() {
                        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => {
                            self.continue_unsent(app, io, conn, bytes.clone());
                        }
                        _ => io.close_for(conn, || error.into()),
                    },
                }
            }
            io.stats.sends.add(sends);
            io.stats.sent_bytes.add(sent_bytes);
        }
    }

    /// Sends the rest of a broadcast as a chain.
    #[cold]
    fn continue_unsent<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io, conn: ConnId, rest: Bytes) {
        if let Some(chain) = take_unsent(app, io, conn, rest)
            && let Some(link) = self.link(io, conn)
        {
            link.chain = Some(chain);
            self.continue_send(app, io, conn);
        }
    }
}
