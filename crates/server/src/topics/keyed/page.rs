//! Pages of the keys of a topic.

use super::table::{KeyedTable, Notifier};
use super::update::KeyPage;
use super::write::KeyError;
use crate::topics::name;

/// Maximum number of keys in one page.
pub(super) const PAGE_MAX: usize = 1_000;

/// Returns a page of the keys of a topic.
pub(crate) fn page(
    table: &KeyedTable,
    topic: &str,
    after: Option<&str>,
    filter: Option<&str>,
    limit: usize,
    notifier: Notifier<'_>,
) -> Result<KeyPage, KeyError> {
    if filter.is_some_and(|filter| name::check_subscription(filter).is_err()) {
        return Err(KeyError::Filter);
    }
    Ok(table.page(topic, after, filter, limit.min(PAGE_MAX), notifier))
}
