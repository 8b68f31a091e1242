//! Revocations of other nodes and processes: they close the connections of the tokens.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use sinews_server::LogLimit;

use super::{ConnectionCommand, ConnectionRegistry, ConnectionSelector, REVOKED, STEP};
use crate::access::auth::{Revocation, RevocationError, Revocations, RevokedTokens};
use crate::closing::TOKEN_EXPIRED;

/// Limit for lines about revocations that this process does not store.
static FAULT_LINES: LogLimit = LogLimit::new();

impl ConnectionRegistry {
    /// Revokes tokens in this process, for another process or node, and closes their connections. Returns their number.
    /// Connections with tokens that are revoked already are closed.
    pub(crate) fn revoke(&self, revocations: &Revocations, all: &[Revocation]) -> usize {
        let (new, stored) = revocations.revoke_all(all);
        // The other process or node answers the request.
        if let Err(error) = stored
            && let Some(omitted) = FAULT_LINES.permit(Instant::now())
        {
            match error {
                RevocationError::Full => {
                    tracing::warn!(
                        omitted,
                        "too many revocations are in effect: some of another node are ignored"
                    );
                }
                RevocationError::NotStored(why) => {
                    tracing::error!(omitted, "a restart forgets revocations of another node: {why}");
                }
            }
        }
        let (mut count, mut with_id) = (0, HashMap::new());
        for revocation in &new {
            let selector = match &revocation.tokens {
                RevokedTokens::WithId(id) => {
                    with_id.insert(&**id, revocation);
                    continue;
                }
                tokens @ RevokedTokens::OfUser(_) => ConnectionSelector::from_tokens(tokens),
            };
            count += self.close_if(&selector, TOKEN_EXPIRED, REVOKED, |rights| revocation.applies_to(rights));
        }
        if with_id.is_empty() { count } else { count + self.close_with_id(&with_id) }
    }

    /// Closes the connections whose token ids are revoked; returns their number. Token ids have no index, so that one
    /// pass over the connections looks for all.
    fn close_with_id(&self, revoked: &HashMap<&str, &Revocation>) -> usize {
        let reason: Arc<str> = REVOKED.into();
        let page = |after: Option<&str>| self.page(None, after, STEP);
        self.command_each(page, |connection| {
            let rights = connection.rights();
            let revocation = revoked.get(rights.token_id()?)?;
            let close = || ConnectionCommand::Close { code: TOKEN_EXPIRED, reason: Arc::clone(&reason) };
            revocation.applies_to(&rights).then(close)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::task::Waker;

    use sinews_server::SubscriberId;

    use super::*;
    use crate::access::auth::Rights;
    use crate::connections::{ConnectionPath, RegisteredConnection};

    #[test]
    fn ids_of_many_revoked_tokens_are_found_in_one_pass_over_the_connections() {
        const CONNECTIONS: usize = 1_000;
        let registry = Arc::new(ConnectionRegistry::default());
        let connections: Vec<_> = (0..CONNECTIONS)
            .map(|at| {
                let rights = match at % 4 {
                    0 => Rights::for_subject("anna"),
                    // Issued before and after the revocations.
                    kind => {
                        Rights::for_token("anna", &format!("{at}"), Some(if kind == 1 { 1.0 } else { 4e9 }))
                    }
                };
                registry.register(
                    ConnectionPath::Protocol,
                    &rights,
                    SubscriberId::from_bits(7),
                    Waker::noop().clone(),
                )
            })
            .collect();
        let revocation =
            |at: usize| Revocation::new(RevokedTokens::WithId(format!("{}", 2 * at).into()), 4e9);
        let all: Vec<Revocation> = (0..256).map(revocation).collect();
        let revocations = Revocations::default();
        assert_eq!(registry.revoke(&revocations, &all), 128);
        let pages = registry.pages.swap(0, Ordering::Relaxed);
        assert!(pages <= CONNECTIONS.div_ceil(STEP) + 1, "{pages} pages");
        let is_closed = |connection: &RegisteredConnection| {
            matches!(connection.take_commands()[..], [ConnectionCommand::Close { .. }])
        };
        for (at, connection) in connections.iter().enumerate() {
            assert_eq!(is_closed(connection), at % 4 == 2 && at < 512, "{at}");
        }
        // These are known, and the user of the others has an index.
        assert_eq!(registry.revoke(&revocations, &all), 0);
        assert_eq!(registry.pages.load(Ordering::Relaxed), 0);
        let of_user = Revocation::new(RevokedTokens::OfUser("anna".into()), 4e9);
        assert_eq!(registry.revoke(&revocations, &[revocation(301), of_user]), 500 + 1);
    }
}
