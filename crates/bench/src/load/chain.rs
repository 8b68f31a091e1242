//! Session buffer chains, for the engine.

use std::io::IoSlice;

use sinews_engine::SendChain;

/// A session's buffer chain, as the engine accepts it.
#[derive(Debug)]
pub(crate) struct SessionChain(pub(super) Box<sinews_session::Chain>);

impl SendChain for SessionChain {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn slices<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        self.0.slices(out)
    }

    fn advance(&mut self, bytes: usize) {
        self.0.advance(bytes);
    }
}
