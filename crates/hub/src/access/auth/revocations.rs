//! Revoked tokens.

mod file;

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::RwLock;
use serde::{Deserialize, Serialize};

use self::file::RevocationFile;
pub(crate) use self::file::RevocationStored;
use crate::access::auth::rights::{Denied, Rights};
use crate::background::Background;
use crate::error::HubError;

/// Maximum revocations in effect.
const REVOCATIONS_MAX: usize = 65_536;

/// The tokens that a revocation affects.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RevokedTokens {
    /// The tokens of a user (`sub`) that were issued (`iat`) until the revocation, or have no `iat`.
    OfUser(Box<str>),
    /// The token with this id (`jti`).
    WithId(Box<str>),
}

/// The revocations in effect.
#[derive(Debug, Default)]
pub(crate) struct Revocations {
    revoked: RwLock<HashMap<RevokedTokens, RevokedTime>>,
    /// Checked without the lock.
    any: AtomicBool,
    /// Set if they are stored on disk.
    file: OnceLock<RevocationFile>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct RevokedTime {
    /// Seconds since 1970.
    at: f64,
    until: f64,
}

/// The result of adding a revocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Inserted {
    /// It was known.
    Known,
    New,
    /// Too many revocations are in effect.
    Full,
}

/// Why a revocation is not in effect, or not stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RevocationError {
    /// Too many revocations are in effect.
    Full,
    /// It is in effect, and a restart forgets it.
    NotStored(String),
}

/// What completes when revocations are on disk; an error if at least one is not in effect, or not stored.
type Stored = Result<Option<RevocationStored>, RevocationError>;

/// A revocation, as cluster nodes exchange it. Times are seconds since 1970, in whole milliseconds: these are read from
/// JSON exactly as they were written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Revocation {
    pub(crate) tokens: RevokedTokens,
    pub(crate) at: f64,
    pub(crate) until: f64,
}

impl Revocation {
    /// A revocation from now on.
    pub(crate) fn new(tokens: RevokedTokens, until: f64) -> Self {
        // Tokens issued until now are revoked, so that it is not rounded down.
        Self { tokens, at: (now() * 1000.0).ceil() / 1000.0, until: whole_milliseconds(until) }
    }

    /// Seconds until it ends; negative if it has ended.
    pub(crate) fn seconds_left(&self) -> f64 {
        self.until - now()
    }

    /// Whether it was made within this time.
    pub(crate) fn is_younger_than(&self, time: Duration) -> bool {
        self.at >= now() - time.as_secs_f64()
    }

    /// Returns whether it affects a client's token.
    pub(crate) fn applies_to(&self, rights: &Rights) -> bool {
        match &self.tokens {
            RevokedTokens::OfUser(user) => {
                rights.subject() == Some(user) && rights.issued_at().is_none_or(|issued| issued <= self.at)
            }
            RevokedTokens::WithId(id) => rights.token_id() == Some(id),
        }
    }
}

fn whole_milliseconds(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs_f64()
}

impl Revocations {
    /// Revokes tokens until a time in seconds since 1970. Returns whether there was capacity.
    #[cfg(test)]
    fn revoke(&self, tokens: RevokedTokens, until: f64) -> bool {
        self.insert(&Revocation::new(tokens, until)) != Inserted::Full
    }

    /// Stores the revocations in a directory's file from now on, and adds those that it has.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub(crate) fn store_in(
        self: &Arc<Self>,
        directory: &Path,
        has_predecessor: bool,
        background: &Background,
    ) -> Result<(), HubError> {
        let file = RevocationFile::open(directory, self, has_predecessor, background)?;
        // A hub calls this once.
        let _ = self.file.set(file);
        Ok(())
    }

    /// Sets whether another process appends to the file.
    pub(crate) fn set_file_shared(&self, is_shared: bool) {
        if let Some(file) = self.file.get() {
            file.set_shared(is_shared);
        }
    }

    /// Stores the revocations that wait for the disk. Later ones are not stored.
    pub(crate) fn close_file(&self) {
        if let Some(file) = self.file.get() {
            file.close();
        }
    }

    /// Adds revocations, and stores those that are new. Returns the new ones, and what completes when they are on disk,
    /// if they are stored.
    pub(crate) fn revoke_all(&self, all: &[Revocation]) -> (Vec<Revocation>, Stored) {
        let mut is_full = false;
        let is_new = |revocation: &&Revocation| match self.insert(revocation) {
            Inserted::Known => false,
            Inserted::New => true,
            Inserted::Full => {
                is_full = true;
                false
            }
        };
        let new: Vec<Revocation> = all.iter().filter(is_new).cloned().collect();
        let stored = match self.file.get().filter(|_| !new.is_empty()) {
            Some(file) => file.append(&new).map(Some).map_err(RevocationError::NotStored),
            None => Ok(None),
        };
        (new, if is_full { Err(RevocationError::Full) } else { stored })
    }

    /// Adds a revocation.
    fn insert(&self, revocation: &Revocation) -> Inserted {
        let tokens = &revocation.tokens;
        // Revocations from earlier versions have fractions of a millisecond.
        let [at, until] = [revocation.at, revocation.until].map(whole_milliseconds);
        let mut revoked = self.revoked.write();
        if revoked.len() >= REVOCATIONS_MAX && !revoked.contains_key(tokens) {
            let now = now();
            revoked.retain(|_, known| known.until > now);
            if revoked.len() >= REVOCATIONS_MAX {
                return Inserted::Full;
            }
        }
        // An earlier revocation with the same tokens is not shortened.
        let former = revoked.get(tokens).copied();
        let later = |known: RevokedTime| RevokedTime { at: at.max(known.at), until: until.max(known.until) };
        let time = former.map_or(RevokedTime { at, until }, later);
        if former == Some(time) {
            return Inserted::Known;
        }
        revoked.insert(tokens.clone(), time);
        self.any.store(true, Ordering::Release);
        Inserted::New
    }

    /// The revocations in effect.
    pub(crate) fn all(&self) -> Vec<Revocation> {
        let now = now();
        let revoked = self.revoked.read();
        let valid = revoked.iter().filter(|(_, it)| it.until > now);
        valid
            .map(|(tokens, time)| Revocation { tokens: tokens.clone(), at: time.at, until: time.until })
            .collect()
    }

    /// Checks a client's token.
    ///
    /// # Errors
    /// The token is revoked.
    pub(crate) fn check(&self, rights: &Rights) -> Result<(), Denied> {
        if !self.any.load(Ordering::Acquire) {
            return Ok(());
        }
        let is_revoked = rights.subject().is_some_and(|user| {
            let issued = rights.issued_at();
            self.applies(&RevokedTokens::OfUser(user.into()), |at| issued.is_none_or(|issued| issued <= at))
        }) || rights
            .token_id()
            .is_some_and(|id| self.applies(&RevokedTokens::WithId(id.into()), |_| true));
        if is_revoked { Err(Denied::token("the token has been revoked".to_owned())) } else { Ok(()) }
    }

    fn applies(&self, tokens: &RevokedTokens, is_affected: impl Fn(f64) -> bool) -> bool {
        let revoked = self.revoked.read();
        revoked.get(tokens).is_some_and(|known| known.until > now() && is_affected(known.at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_revoked_by_user_and_by_id() {
        let revocations = Revocations::default();
        let of = |user: &str, id: &str, issued| Rights::for_token(user, id, issued);
        let is_revoked = |rights: &Rights| revocations.check(rights).is_err();
        let old = Some(now() - 10.0);
        assert!(!is_revoked(&of("anna", "1", old)));
        assert!(revocations.revoke(RevokedTokens::OfUser("anna".into()), now() + 60.0));
        assert!(is_revoked(&of("anna", "1", old)) && is_revoked(&of("anna", "1", None)));
        assert!(!is_revoked(&of("anna", "1", Some(now() + 1.0))), "a later token is valid");
        assert!(!is_revoked(&of("ben", "2", old)) && !is_revoked(&Rights::all()));
        assert!(revocations.revoke(RevokedTokens::WithId("2".into()), now() + 60.0));
        assert!(is_revoked(&of("ben", "2", Some(now() + 1.0))) && !is_revoked(&of("ben", "3", old)));
        assert!(revocations.revoke(RevokedTokens::WithId("3".into()), now() - 1.0));
        assert!(!is_revoked(&of("ben", "3", old)), "it is over");
        assert!(revocations.revoke(RevokedTokens::WithId("2".into()), now() - 1.0));
        assert!(is_revoked(&of("ben", "2", old)), "it is not shortened");
    }

    #[test]
    fn revocations_are_bounded() {
        let revocations = Revocations::default();
        let revoke =
            |at: usize, until| revocations.revoke(RevokedTokens::WithId(at.to_string().into()), until);
        for at in 0..REVOCATIONS_MAX {
            assert!(revoke(at, now() + if at == 0 { -1.0 } else { 60.0 }));
        }
        assert!(revoke(REVOCATIONS_MAX, now() + 60.0), "the first has expired");
        assert!(!revoke(REVOCATIONS_MAX + 1, now() + 60.0));
        assert!(revoke(7, now() + 90.0), "it is known");
    }
}
