//! Events of connections that speak HTTP/2, and their detection.

use sinews_engine::{ConnId, Io};
use sinews_session::{Chain, Flow};

use super::Worker;
use super::conn::ConnProtocol;
use crate::framing::h2::{H2Conn, SocketEvent};
use crate::framing::streams::{RequestStreams as _, WaitingRequests as _};
use crate::shared::WorkerShared;
use crate::timer::NEVER;

impl Worker {
    fn http2_and_shared(&mut self, conn: ConnId) -> Option<(&mut H2Conn, &mut WorkerShared)> {
        match self.conn_and_shared(conn)? {
            (ConnProtocol::Http2(http2), shared) => Some((http2, shared)),
            _ => None,
        }
    }

    /// Turns a connection without requests into one of HTTP/2. The next input begins with its preface.
    pub(super) fn start_http2(&mut self, io: &mut Io, conn: ConnId) {
        self.time(io);
        let Some((protocol, shared)) = self.conn_and_shared(conn) else { return };
        let ConnProtocol::Http(http) = protocol else { return };
        let http2 = H2Conn::new(conn, http.peer, shared);
        io.clear_timer(conn);
        *protocol = ConnProtocol::Http2(Box::new(http2));
    }

    pub(super) fn receive_http2(&mut self, io: &mut Io, conn: ConnId, chunk: &mut [u8]) -> Flow {
        let now = self.time(io);
        let Some((http2, _)) = self.http2_and_shared(conn) else { return Flow::Continue };
        http2.note_input(now);
        if http2.buffer_input(chunk) {
            if !http2.paused && !http2.has_failed() {
                self.handle_buffered(io, conn);
            }
        } else {
            let used = self.handle_http2(io, conn, chunk);
            if let Some((http2, _)) = self.http2_and_shared(conn) {
                http2.buffer_rest(&chunk[used..]);
            }
        }
        let flow = self.http2_and_shared(conn).map_or(Flow::Continue, |(http2, _)| http2.flow());
        self.flush_conn(io, conn);
        flow
    }

    fn handle_buffered(&mut self, io: &mut Io, conn: ConnId) {
        let Some((http2, _)) = self.http2_and_shared(conn) else { return };
        let mut buffer = http2.take_buffer();
        let used = self.handle_http2(io, conn, &mut buffer);
        if let Some((http2, _)) = self.http2_and_shared(conn) {
            http2.put_buffer(buffer, used);
        }
    }

    /// Handles input until it is consumed, or reads are paused. Returns the number of consumed bytes.
    fn handle_http2(&mut self, io: &mut Io, conn: ConnId, input: &mut [u8]) -> usize {
        let mut at = 0;
        loop {
            let Some((http2, shared)) = self.http2_and_shared(conn) else { return input.len() };
            match http2.handle(input, &mut at, shared) {
                Some(SocketEvent::Opened(opened)) => self.open_socket(io, conn, *opened),
                Some(SocketEvent::Data { socket, range, ends }) => {
                    self.receive_socket(io, socket, &mut input[range], ends);
                }
                Some(SocketEvent::Reset(socket)) => self.remove_sockets(io, vec![socket]),
                None => break,
            }
        }
        self.answer_waiting(io, conn);
        self.end_failed(io, conn);
        at
    }

    /// Executes requests that waited, if the client has taken earlier answers.
    fn answer_waiting(&mut self, io: &mut Io, conn: ConnId) {
        if self.http2_and_shared(conn).is_some_and(|(http2, _)| http2.table.has_waiting) {
            self.poll_answers_http2(io, conn);
        }
    }

    fn poll_answers_http2(&mut self, io: &mut Io, conn: ConnId) {
        loop {
            let Some((http2, shared)) = self.http2_and_shared(conn) else { return };
            match http2.poll_answers(shared) {
                Some(opened) => self.open_socket(io, conn, *opened),
                None => return,
            }
        }
    }

    /// Ends the sockets of a connection that ends without its streams.
    pub(super) fn end_failed(&mut self, io: &mut Io, conn: ConnId) {
        if let Some((http2, _)) = self.http2_and_shared(conn)
            && http2.has_failed()
        {
            // The end of each flushes the connection, which must not end the others meanwhile.
            let sockets = http2.sockets.take();
            self.remove_sockets(io, sockets);
        }
    }

    /// Returns the queued output of a connection and of its sockets.
    pub(super) fn start_send_http2(&mut self, conn: ConnId) -> Option<Box<Chain>> {
        self.fill_http2(conn);
        self.http2_and_shared(conn)?.0.outbound.start()
    }

    /// Handles sent frames: queues more, and resumes waiting input.
    pub(super) fn sent_http2(&mut self, io: &mut Io, conn: ConnId) {
        let now = self.time(io);
        let Some((http2, shared)) = self.http2_and_shared(conn) else { return };
        http2.note_progress(now);
        http2.send_pieces(shared);
        for socket in std::mem::take(&mut http2.sockets.moved) {
            self.sent_socket(io, socket);
        }
        self.continue_http2(io, conn);
    }

    pub(super) fn poll_http2(&mut self, io: &mut Io, conn: ConnId) {
        self.time(io);
        self.poll_answers_http2(io, conn);
        self.continue_http2(io, conn);
    }

    /// Handles waiting input, unless reads are paused.
    fn continue_http2(&mut self, io: &mut Io, conn: ConnId) {
        self.answer_waiting(io, conn);
        let reads_paused = self.conn_mut(conn).is_some_and(|found| found.reads_paused);
        match self.http2_and_shared(conn) {
            Some((http2, _)) if http2.paused && !reads_paused => self.resume_http2(io, conn),
            _ => self.flush_conn(io, conn),
        }
    }

    pub(super) fn resume_http2(&mut self, io: &mut Io, conn: ConnId) {
        let now = self.time(io);
        if let Some((http2, _)) = self.http2_and_shared(conn) {
            http2.note_resumed(now);
        }
        self.handle_buffered(io, conn);
        let Some((http2, _)) = self.http2_and_shared(conn) else { return };
        if http2.flow() == Flow::Continue {
            io.resume(conn);
        }
        self.flush_conn(io, conn);
    }

    /// Handles the end of the peer's side: no stream gets more input.
    pub(super) fn end_http2(&mut self, io: &mut Io, conn: ConnId) {
        let Some((http2, shared)) = self.http2_and_shared(conn) else { return };
        http2.end();
        // Bodies whose windows are closed end.
        http2.send_pieces(shared);
        let sockets = http2.sockets.list();
        self.end_sockets(io, sockets);
        self.answer_waiting(io, conn);
    }

    pub(super) fn http2_timer(&mut self, io: &mut Io, conn: ConnId) {
        let now = self.time(io);
        let Some((http2, _)) = self.http2_and_shared(conn) else { return };
        http2.armed = NEVER;
        self.time_sockets(io, conn);
        let reads_paused = self.conn_ref(conn).is_some_and(|found| found.reads_paused);
        let Some((http2, shared)) = self.http2_and_shared(conn) else { return };
        if http2.deadline(&shared.services.http, reads_paused) > now {
            return self.flush_conn(io, conn);
        }
        if http2.time_out(reads_paused, shared) {
            io.close(conn);
            return self.flush_conn(io, conn);
        }
        self.end_failed(io, conn);
        self.continue_http2(io, conn);
    }
}
