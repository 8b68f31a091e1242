//! The last positions of topics that this node has seen.

use std::cell::RefCell;
use std::collections::HashMap;

use sinews_store::Position;

/// The last positions, by topic.
#[derive(Default)]
pub(super) struct KnownTops(pub(super) RefCell<HashMap<Box<str>, Position>>);
