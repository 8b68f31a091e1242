//! Completions of operations: every result that a kernel may produce, and some that it should not.

use std::ops::Range;

use super::super::kernel::{Completion, SendMode};
use super::super::token::{OpKind, Token};
use super::chain::end_kernel_access;
use super::peers::{StreamDirection, serial_of, stream};
use super::script::{ENDED, ModelOperation, OperationKind, Script, write};

impl Script {
    /// Completes an operation once, and returns whether it may complete again.
    pub(super) fn step(&mut self, operation: &mut ModelOperation, out: &mut Vec<Completion>) -> bool {
        let error = self.random_error(operation);
        let completed = match (&operation.kind, operation.file) {
            (OperationKind::Accept { multishot }, _) => self.accept_result(error, *multishot),
            (OperationKind::Name { listener, slot }, Some(file)) => {
                self.name_result(error, *listener, *slot, file)
            }
            (OperationKind::Install { result, ticket }, _) => {
                Some((self.install_result(result, *ticket), false))
            }
            (OperationKind::Connect { lent, ticket }, Some(file)) => {
                let connected = self.connect_result(error, file, *ticket);
                if connected.is_some() {
                    end_kernel_access(lent);
                }
                connected.map(|result| (result, false))
            }
            (OperationKind::Receive { multishot }, Some(file)) => {
                let received = self.receive_result(operation.token, error, file);
                received.map(|(result, more)| (result, more && *multishot))
            }
            (OperationKind::Large { lent }, Some(file)) => {
                let received = self.receive_large_result(lent, error, file);
                if received.is_some() {
                    end_kernel_access(lent);
                }
                received.map(|received| (received, false))
            }
            (OperationKind::Watch, Some(file)) => self.watch_result(error, file),
            (OperationKind::Send { lent, .. }, Some(file)) => {
                let sent = self.send_result(&lent.bytes, error, file, SendMode::Wait);
                if sent.is_some() {
                    lent.end_kernel_access();
                }
                sent.map(|sent| (sent, false))
            }
            (OperationKind::Shutdown, Some(file)) => Some((self.shutdown_result(error, file), false)),
            (OperationKind::Close, Some(file)) => {
                self.peers.close(file);
                Some((if self.rarely(5) { -libc::EIO } else { 0 }, false))
            }
            (OperationKind::Append { tag, lent }, _) => {
                let result = self.append_result(error, *tag, &lent.bytes);
                lent.end_kernel_access();
                Some((result, false))
            }
            (OperationKind::Sync { tag }, _) => Some((self.sync_result(error, *tag), false)),
            _ => unreachable!("a cancellation is not kept"),
        };
        let Some((result, more)) = completed else { return false };
        if !more {
            operation.cancelled = Some(ENDED);
        }
        let mut completion = plain(operation.token, result);
        completion.more = more;
        if matches!(operation.kind, OperationKind::Receive { .. }) {
            self.fill_buffer(operation, &mut completion);
        }
        out.push(completion);
        more
    }

    /// An error unrelated to the operation; most operations have to wait for their event.
    fn random_error(&self, operation: &ModelOperation) -> Option<i32> {
        let last = operation.cancelled == Some(0) || self.benign;
        match operation.cancelled {
            Some(_) if last || self.dice.percent(60) => Some(libc::ECANCELED),
            _ if self.rarely(4) => Some(self.dice.pick(&[libc::EINTR, libc::EAGAIN, libc::ECANCELED])),
            _ => None,
        }
    }

    pub(super) fn rarely(&self, percent: usize) -> bool {
        !self.benign && self.dice.percent(percent)
    }

    fn accept_result(&mut self, error: Option<i32>, multishot: bool) -> Option<(i32, bool)> {
        if let Some(error) = error {
            return Some((-error, false));
        }
        if self.peers.waiting == 0 {
            return None;
        }
        if self.rarely(10) {
            self.peers.waiting -= 1;
            let shortage = [libc::ENFILE, libc::EMFILE, libc::ENOMEM, libc::ECONNABORTED];
            return Some((-self.dice.pick(&shortage), false));
        }
        let file = self.peers.accept(&self.dice, !self.benign);
        Some((file as i32, multishot && !self.rarely(10)))
    }

    fn name_result(
        &mut self,
        error: Option<i32>,
        listener: usize,
        slot: usize,
        file: u32,
    ) -> Option<(i32, bool)> {
        let serial = self.peers.serial(file);
        let name = &mut self.names[slot];
        name[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        name[2..4].copy_from_slice(&(listener as u16).to_be_bytes());
        name[4..8].copy_from_slice(&serial.to_be_bytes());
        let result = match error {
            Some(error) => -error,
            None if self.rarely(10) => self.dice.pick(&[-libc::ENOTCONN, 0, 5, 29]),
            None => 16,
        };
        Some((result, false))
    }

    fn install_result(&mut self, result: &Range<usize>, ticket: u16) -> i32 {
        end_kernel_access(result);
        if self.rarely(10) {
            return -self.dice.pick(&[libc::ENFILE, libc::ENOMEM]);
        }
        let Some(file) = self.peers.install(&self.dice, !self.benign, ticket) else { return -libc::ENFILE };
        write(result, &file.to_ne_bytes());
        1
    }

    fn connect_result(&self, error: Option<i32>, file: u32, ticket: u16) -> Option<i32> {
        if let Some(error) = error {
            return Some(-error);
        }
        if self.rarely(30) {
            return None;
        }
        if self.rarely(10) {
            return Some(-self.dice.pick(&[libc::ECONNREFUSED, libc::ETIMEDOUT, libc::ECONNRESET]));
        }
        assert_eq!(serial_of(ticket), self.peers.serial(file), "connected to the requested peer");
        Some(0)
    }

    /// A positive result is the number of available bytes.
    fn receive_result(&mut self, token: Token, error: Option<i32>, file: u32) -> Option<(i32, bool)> {
        if let Some(error) = error {
            return Some((-error, false));
        }
        let (_, peer) = self.peers.at(file);
        debug_assert_eq!(token.kind(), Some(OpKind::Receive));
        if let Some(failure) = peer.failure {
            peer.hurt = true;
            return Some((-failure, false));
        }
        let waiting = if peer.lost { 0 } else { peer.arrived - peer.handed };
        if waiting == 0 {
            return peer.ends().then_some((0, false));
        }
        match self.pool.spare_capacity() {
            None => Some((-libc::ENOBUFS, false)),
            Some(spare_capacity) if self.benign => Some((waiting.min(spare_capacity) as i32, true)),
            Some(spare_capacity) => {
                let most = waiting.min(spare_capacity);
                let bytes = if self.dice.percent(40) { most } else { 1 + self.dice.below(most) };
                Some((bytes as i32, !self.dice.percent(15)))
            }
        }
    }

    /// Writes into the application's buffer, as many bytes as have arrived and fit.
    fn receive_large_result(&mut self, to: &Range<usize>, error: Option<i32>, file: u32) -> Option<i32> {
        if let Some(error) = error {
            return Some(-error);
        }
        let (part, fails) = (self.rarely(50), self.rarely(5));
        let (serial, peer) = self.peers.at(file);
        if fails {
            peer.failure = Some(libc::ETIMEDOUT);
        }
        if let Some(failure) = peer.failure {
            peer.hurt = true;
            return Some(-failure);
        }
        let waiting = if peer.lost { 0 } else { peer.arrived - peer.handed };
        if waiting == 0 {
            return peer.ends().then_some(0);
        }
        let most = waiting.min(to.len());
        let bytes = if part { 1 + self.dice.below(most) } else { most };
        write(to, &stream(serial, StreamDirection::In, peer.handed, peer.handed + bytes));
        peer.handed += bytes;
        Some(bytes as i32)
    }

    /// Puts received bytes into a buffer.
    fn fill_buffer(&mut self, operation: &ModelOperation, completion: &mut Completion) {
        match (usize::try_from(completion.result), operation.file) {
            (Ok(bytes @ 1..), Some(file)) => {
                let (serial, peer) = self.peers.at(file);
                let bytes = stream(serial, StreamDirection::In, peer.handed, peer.handed + bytes);
                peer.handed += bytes.len();
                let retire = self.rarely(10);
                self.pool.fill(completion, &bytes, retire);
            }
            _ => self.pool.empty(completion),
        }
    }

    fn watch_result(&mut self, error: Option<i32>, file: u32) -> Option<(i32, bool)> {
        if let Some(error) = error {
            return Some((if error == libc::ECANCELED { -error } else { 0 }, false));
        }
        let more = self.rarely(50);
        let failed = {
            let (_, peer) = self.peers.at(file);
            peer.hurt |= peer.failure.is_some();
            peer.failure.is_some()
        };
        match failed {
            true => Some((i32::from(libc::POLLERR | libc::POLLHUP), more)),
            false => self.rarely(10).then_some((i32::from(libc::POLLIN | libc::POLLRDHUP), more)),
        }
    }

    /// The result of a send: the number of bytes that the kernel took. `None`: it waits.
    fn send_result(&mut self, bytes: &[u8], error: Option<i32>, file: u32, wait: SendMode) -> Option<i32> {
        if let Some(error) = error {
            return Some(-error);
        }
        if self.rarely(2) {
            self.peers.at(file).1.failure = Some(self.dice.pick(&[libc::EPIPE, libc::ECONNRESET]));
        }
        let full = self.rarely(20);
        let some = if self.rarely(30) { self.dice.below(bytes.len()) } else { bytes.len() };
        let (serial, peer) = self.peers.at(file);
        if let Some(failure) = peer.failure {
            peer.hurt = true;
            return Some(-failure);
        }
        match wait {
            SendMode::Wait if peer.unresponsive || peer.lost => return None,
            SendMode::DontWait if peer.unresponsive || peer.lost || full || some == 0 => {
                return Some(-libc::EAGAIN);
            }
            _ => {}
        }
        let expected = stream(serial, StreamDirection::Out, peer.taken, peer.taken + some);
        assert_eq!(&bytes[..some], expected, "bytes are sent in order: {serial} at {}", peer.taken);
        peer.taken += some;
        Some(some as i32)
    }

    /// A send that does not wait completes on submission, silently if all bytes were taken.
    pub(super) fn take_fired(&mut self, operation: &ModelOperation) {
        let (OperationKind::Send { lent, .. }, Some(file)) = (&operation.kind, operation.file) else {
            return;
        };
        let error = self.rarely(4).then(|| self.dice.pick(&[libc::EINTR, libc::EAGAIN, libc::ECANCELED]));
        let result = self.send_result(&lent.bytes, error, file, SendMode::DontWait);
        lent.end_kernel_access();
        if let Some(result) = result.filter(|result| *result != lent.bytes.len() as i32) {
            self.reports.push(plain(operation.token, result));
        }
    }

    /// A file takes some bytes, unless an error occurs.
    fn append_result(&mut self, error: Option<i32>, tag: u64, bytes: &[u8]) -> i32 {
        let broken = self.rarely(5).then(|| self.dice.pick(&[libc::ENOSPC, libc::EIO]));
        if let Some(error) = error.or(broken) {
            return -error;
        }
        let count = if self.rarely(40) { self.dice.below(bytes.len() + 1) } else { bytes.len() };
        self.disk.entry(tag).or_default().0.extend_from_slice(&bytes[..count]);
        count as i32
    }

    fn sync_result(&mut self, error: Option<i32>, tag: u64) -> i32 {
        if let Some(error) = error.or_else(|| self.rarely(5).then_some(libc::EIO)) {
            return -error;
        }
        let (bytes, synced) = self.disk.entry(tag).or_default();
        *synced = bytes.len();
        0
    }

    fn shutdown_result(&mut self, error: Option<i32>, file: u32) -> i32 {
        let fails = error.is_some() || self.rarely(10);
        let (_, peer) = self.peers.at(file);
        peer.hurt |= fails;
        peer.lost |= fails;
        peer.shut |= !fails;
        if fails { -libc::ENOTCONN } else { 0 }
    }

    /// Unexpected completions, which must have no effect.
    pub(super) fn add_unexpected_completions(&mut self, out: &mut Vec<Completion>) {
        if !self.dice.percent(25) {
            return;
        }
        let number = self.dice.next();
        let late =
            |kind: OpKind, of: Token| Token::from_bits((kind as u64) << 56 | of.bits() & ((1 << 56) - 1));
        let kinds = [
            OpKind::Receive,
            OpKind::Large,
            OpKind::Watch,
            OpKind::Fire,
            OpKind::Share,
            OpKind::Send,
            OpKind::Shutdown,
            OpKind::Close,
        ];
        let token = match self.dice.below(8) {
            0 => Token::from_bits(number | 1 << 63),
            1 => Token::NOTHING,
            2 => Token::WAKE,
            3 => Token::numbered(OpKind::Accept, 40 + number as u32 % 1000),
            4 => Token::numbered(OpKind::Name, 40 + number as u32 % 1000),
            _ if self.gone.is_empty() => return,
            _ => late(self.dice.pick(&kinds), self.dice.pick(&self.gone)),
        };
        let result = self.dice.pick(&[0, 1, 10, -libc::ECONNRESET, -libc::ECANCELED, i32::MIN + 1]);
        let mut completion = plain(token, result);
        if token.kind() == Some(OpKind::Receive) {
            match self.pool.spare_capacity() {
                Some(spare_capacity) if result > 0 => {
                    self.pool.fill(&mut completion, &[0; 10][..spare_capacity.min(10)], false)
                }
                _ => self.pool.empty(&completion),
            }
        }
        out.push(completion);
    }
}

fn plain(token: Token, result: i32) -> Completion {
    Completion { token, result, buffer: None, buffer_kept: false, more: false }
}
