//! The namespaces in force, which a reload replaces.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use crate::access::namespaces::NamespaceTable;

/// The table in force. All rights share it, so that open connections follow a reload.
#[derive(Debug, Default)]
pub(crate) struct LiveNamespaces {
    /// Distinguishes the tables of a process; 0 without a table.
    id: AtomicU64,
    table: RwLock<Option<Arc<NamespaceTable>>>,
}

thread_local! {
    /// The last table that this thread has used: it shares no memory with other threads for each message.
    static CURRENT: RefCell<(u64, Option<Arc<NamespaceTable>>)> = const { RefCell::new((0, None)) };
}

impl LiveNamespaces {
    /// Replaces the table.
    pub(crate) fn replace(&self, table: Option<Arc<NamespaceTable>>) {
        let mut current = self.table.write();
        self.id.store(table.as_ref().map_or(0, |table| table.id()), Ordering::Release);
        *current = table;
    }

    /// Calls a function with the table; `None` without a table.
    pub(crate) fn with<R>(&self, read: impl FnOnce(&NamespaceTable) -> R) -> Option<R> {
        let id = self.id.load(Ordering::Acquire);
        if id == 0 {
            return None;
        }
        CURRENT.with_borrow_mut(|current| {
            if current.0 != id {
                let table = self.table.read();
                // It may be newer than the id.
                *current = (table.as_ref().map_or(0, |table| table.id()), Option::clone(&table));
            }
            current.1.as_deref().map(read)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::namespaces::{Namespace, Namespaces};
    use crate::outgoing::options::HookOptions;

    #[test]
    fn rights_follow_the_table_in_force() {
        let live = LiveNamespaces::default();
        let has_keys = || live.with(|table| !table.options_for("a").has_no_keys);
        assert_eq!(has_keys(), None);
        for keyed in [true, false, true] {
            let namespaces = Namespaces::new([Namespace::new("a").with_keyed(keyed)]).unwrap();
            live.replace(NamespaceTable::new(&namespaces, &HookOptions::new()));
            assert_eq!((has_keys(), has_keys()), (Some(keyed), Some(keyed)));
        }
        live.replace(None);
        assert_eq!(has_keys(), None);
    }
}
