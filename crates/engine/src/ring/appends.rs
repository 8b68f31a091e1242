//! File appends: writes, repeated until complete, then a sync if requested.

#![allow(unsafe_code)]

use std::io;

use super::kernel::{Completion, RingKernel};
use super::state::Ring;
use super::token::{OpKind, Token};
use crate::appending::is_transient;
use crate::{App, Append, Io, SendChain};

impl<C: SendChain, K: RingKernel> Ring<C, K> {
    /// Starts requested appends.
    pub(super) fn append_listed<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io) {
        while let Some(append) = io.appends.pop_front() {
            let index = self.appends.insert(Box::new(append));
            self.append_step(app, io, index);
        }
    }

    /// Submits the next operation of an append that has none in flight.
    fn append_step<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io, index: usize) {
        let Some(append) = self.appends.get(index) else { return };
        if !append.is_whole() {
            // SAFETY: the append lies in `appends`, from where it is taken only when its one operation has completed
            // and none follows. If the backend is dropped before, `Drop` waits for the kernel or leaks it.
            unsafe { self.kernel.append(Token::numbered(OpKind::Append, index as u32), append) };
        } else if append.syncs() {
            // SAFETY: as above.
            unsafe { self.kernel.sync(Token::numbered(OpKind::Sync, index as u32), append) };
        } else {
            self.append_done(app, io, index, Ok(()));
        }
    }

    pub(super) fn appended<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io, completion: &Completion) {
        let index = completion.token.index();
        let Some(append) = self.appends.get_mut(index) else { return };
        match completion.outcome() {
            Ok(0) => self.append_done(app, io, index, Err(io::ErrorKind::WriteZero.into())),
            Ok(bytes) => {
                append.advance(bytes);
                self.append_step(app, io, index);
            }
            Err(error) if is_transient(&error) => self.append_step(app, io, index),
            Err(error) => self.append_done(app, io, index, Err(error)),
        }
    }

    pub(super) fn synced<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io, completion: &Completion) {
        let index = completion.token.index();
        if self.appends.contains(index) {
            // A sync with an error is not repeated: the interrupted sync may have consumed an error that a
            // second sync would not report.
            self.append_done(app, io, index, completion.outcome().map(|_| ()));
        }
    }

    fn append_done<A: App<Chain = C>>(
        &mut self,
        app: &mut A,
        io: &mut Io,
        index: usize,
        result: io::Result<()>,
    ) {
        let append: Box<Append> = self.appends.remove(index);
        io.append_done();
        app.appended(io, *append, result);
    }
}
