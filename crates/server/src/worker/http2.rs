//! Events of connections that speak HTTP/2, and their detection.

use sinews_engine::{ConnId, Io};
use sinews_session::Flow;

use super::Worker;
use super::conn::ConnProtocol;
use crate::framing::h2::H2Conn;
use crate::shared::WorkerShared;
use crate::timer::NEVER;

impl Worker {
    fn lend_http2(&mut self, conn: ConnId) -> Option<(&mut H2Conn, &mut WorkerShared)> {
        match self.lend(conn)? {
            (ConnProtocol::Http2(http2), shared) => Some((http2, shared)),
            _ => None,
        }
    }

    /// Turns a connection without requests into one of HTTP/2. The next input begins with its preface.
    pub(super) fn start_http2(&mut self, io: &mut Io, conn: ConnId) {
        self.time(io);
        let Some((protocol, shared)) = self.lend(conn) else { return };
        let ConnProtocol::Http(http) = protocol else { return };
        let http2 = H2Conn::new(conn, http.peer, shared);
        io.clear_timer(conn);
        *protocol = ConnProtocol::Http2(Box::new(http2));
    }

    pub(super) fn receive_http2(&mut self, io: &mut Io, conn: ConnId, chunk: &[u8]) -> Flow {
        self.time(io);
        let Some((http2, shared)) = self.lend_http2(conn) else { return Flow::Continue };
        http2.receive(chunk, shared);
        let flow = http2.flow();
        self.settle(io, conn);
        flow
    }

    /// Handles sent frames: queues more, and resumes waiting input.
    pub(super) fn sent_http2(&mut self, io: &mut Io, conn: ConnId) {
        let now = self.time(io);
        let Some((http2, shared)) = self.lend_http2(conn) else { return };
        http2.note_progress(now);
        http2.send_pieces(shared);
        self.continue_http2(io, conn);
    }

    pub(super) fn poll_http2(&mut self, io: &mut Io, conn: ConnId) {
        self.time(io);
        let Some((http2, shared)) = self.lend_http2(conn) else { return };
        http2.poll_answers(shared);
        self.continue_http2(io, conn);
    }

    /// Handles waiting input, unless reads are paused.
    fn continue_http2(&mut self, io: &mut Io, conn: ConnId) {
        let reads_paused = self.conn_mut(conn).is_some_and(|found| found.reads_paused);
        match self.lend_http2(conn) {
            Some((http2, _)) if http2.paused && !reads_paused => self.resume_http2(io, conn),
            _ => self.settle(io, conn),
        }
    }

    pub(super) fn resume_http2(&mut self, io: &mut Io, conn: ConnId) {
        self.time(io);
        let Some((http2, shared)) = self.lend_http2(conn) else { return };
        http2.resume(shared);
        if http2.flow() == Flow::Continue {
            io.resume(conn);
        }
        self.settle(io, conn);
    }

    pub(super) fn http2_timer(&mut self, io: &mut Io, conn: ConnId) {
        let now = self.time(io);
        let Some((http2, shared)) = self.lend_http2(conn) else { return };
        http2.armed = NEVER;
        if http2.deadline(&shared.services.http) > now {
            return self.settle(io, conn);
        }
        if http2.time_out(shared) {
            io.close(conn);
            return self.settle(io, conn);
        }
        self.continue_http2(io, conn);
    }
}
