//! What a configuration needs that a topic store may lack.

use sinews_store::Capabilities;

use crate::access::namespaces::{Namespace, Namespaces};
use crate::error::HubError;

/// Checks that a store suffices for the options.
///
/// # Errors
/// Names the namespace, its option, and the missing capability.
pub(crate) fn check_store(
    store: &Capabilities,
    namespaces: &Namespaces,
    has_histories: bool,
) -> Result<(), HubError> {
    if has_histories && !store.logs {
        return Err(HubError::setting(format!("the topic store {} has no histories", store.engine)));
    }
    for namespace in namespaces.list() {
        if let Some((option, why)) = missing(store, namespace) {
            let at = format!("namespace {:?}: {option}", namespace.pattern);
            return Err(HubError::setting(why).at(format_args!("{at}")));
        }
    }
    Ok(())
}

/// Returns a namespace's option that needs more than the store has, and the reason.
fn missing(store: &Capabilities, namespace: &Namespace) -> Option<(&'static str, String)> {
    let Capabilities { engine, ttl_resolution, .. } = *store;
    let keys = [
        ("key_ttl", namespace.key_ttl.is_some()),
        ("max_keys", namespace.max_keys.is_some()),
        ("keyed", namespace.keyed == Some(true)),
    ];
    if let Some((option, _)) = keys.into_iter().find(|(_, is_set)| *is_set && !store.keys) {
        return Some((option, format!("the topic store {engine} has no keys")));
    }
    let ttl = namespace.key_ttl.filter(|ttl| *ttl < ttl_resolution)?;
    let why =
        format!("the topic store {engine} has times to live by {ttl_resolution:?}, and {ttl:?} is less");
    Some(("key_ttl", why))
}
