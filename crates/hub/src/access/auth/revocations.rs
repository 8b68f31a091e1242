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
use crate::model::stable_hash::{fnv, mix};

/// Maximum revocations in effect.
const REVOCATIONS_MAX: usize = 65_536;

/// Seconds in which a revocation reaches all nodes, and by which the clocks of nodes may differ.
const TRANSIT_MAX: f64 = 5.0;

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
    revoked: RwLock<HashMap<RevokedTokens, KnownRevocation>>,
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

/// A revocation in effect.
#[derive(Debug)]
struct KnownRevocation {
    time: RevokedTime,
    /// Hash over the tokens and the time.
    hash: u64,
}

/// A digest of the revocations in effect for a while before and after a time: equal at nodes with the same revocations,
/// also if others are on their way between the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RevocationDigest {
    /// Seconds since 1970.
    pub(crate) time: u64,
    pub(crate) digest: u64,
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
            revoked.retain(|_, known| known.time.until > now);
            if revoked.len() >= REVOCATIONS_MAX {
                return Inserted::Full;
            }
        }
        // An earlier revocation with the same tokens is not shortened.
        let former = revoked.get(tokens).map(|known| known.time);
        let later = |known: RevokedTime| RevokedTime { at: at.max(known.at), until: until.max(known.until) };
        let time = former.map_or(RevokedTime { at, until }, later);
        if former == Some(time) {
            return Inserted::Known;
        }
        revoked.insert(tokens.clone(), KnownRevocation { time, hash: hash(tokens, time) });
        self.any.store(true, Ordering::Release);
        Inserted::New
    }

    /// The revocations in effect.
    pub(crate) fn all(&self) -> Vec<Revocation> {
        let now = now();
        let revoked = self.revoked.read();
        let valid =
            revoked.iter().map(|(tokens, known)| (tokens, known.time)).filter(|(_, it)| it.until > now);
        valid
            .map(|(tokens, time)| Revocation { tokens: tokens.clone(), at: time.at, until: time.until })
            .collect()
    }

    /// Returns this second's digest. `None` if there is no capacity for further revocations, so that a node may lack
    /// revocations from others.
    pub(crate) fn digest(&self) -> Option<RevocationDigest> {
        self.digest_at(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs())
    }

    /// Returns the digest at a time in seconds since 1970, to compare it with another node's digest. It leaves out
    /// revocations that the other node may lack rightly: those from the last seconds, since they may be on their way,
    /// and those that are about to end, since a list of the revocations in effect no longer has them.
    pub(crate) fn digest_at(&self, time: u64) -> Option<RevocationDigest> {
        let (now, at) = (now(), Duration::from_secs(time).as_secs_f64());
        let revoked = self.revoked.read();
        let (mut count, mut digest) = (0, 0);
        for known in revoked.values() {
            count += usize::from(known.time.until > now);
            if known.time.at <= at - TRANSIT_MAX && known.time.until > at + TRANSIT_MAX {
                // The order of a map has no meaning.
                digest ^= known.hash;
            }
        }
        (count < REVOCATIONS_MAX).then_some(RevocationDigest { time, digest })
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
        revoked.get(tokens).is_some_and(|known| known.time.until > now() && is_affected(known.time.at))
    }
}

fn hash(tokens: &RevokedTokens, time: RevokedTime) -> u64 {
    let (kind, name) = match tokens {
        RevokedTokens::OfUser(name) => (0, name),
        RevokedTokens::WithId(name) => (1, name),
    };
    let times = [time.at, time.until].map(f64::to_le_bytes);
    mix(fnv(times.into_iter().flatten().chain([kind]).chain(name.bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_with_the_same_revocations_have_the_same_digest() {
        let all: Vec<Revocation> = [RevokedTokens::OfUser("a".into()), RevokedTokens::WithId("a".into())]
            .into_iter()
            .map(|tokens| Revocation::new(tokens, now() + 60.0))
            .collect();
        let digest = |all: &[Revocation]| {
            let node = Revocations::default();
            for revocation in all {
                node.insert(revocation);
            }
            // As another node reads them.
            let text = serde_json::to_string(&node.all()).unwrap();
            let other = Revocations::default();
            for revocation in serde_json::from_str::<Vec<_>>(&text).unwrap() {
                other.insert(&revocation);
            }
            // They are no longer on their way then, and in effect.
            let [digest, same] = [node, other].map(|node| node.digest_at(now() as u64 + 30).unwrap().digest);
            assert_eq!(digest, same, "{text}");
            digest
        };
        let expired =
            Revocation { until: now() - 1.0, ..Revocation::new(RevokedTokens::WithId("b".into()), 0.0) };
        let [first, second] = [&all[..1], &all[1..]].map(digest);
        assert_eq!(digest(&all), digest(&[all[1].clone(), expired, all[0].clone()]));
        let later = Revocation { until: all[0].until + 1.0, ..all[0].clone() };
        let digests = [digest(&[]), first, second, digest(&all), digest(&[later])];
        assert_eq!(digests.iter().collect::<std::collections::BTreeSet<_>>().len(), 5, "{digests:?}");
    }

    #[test]
    fn digest_leaves_out_revocations_on_their_way_and_those_about_to_end() {
        let node = Revocations::default();
        let none = |time| Revocations::default().digest_at(time);
        let tokens = RevokedTokens::WithId("a".into());
        // Far from now, since the map only forgets those that have ended if it is full.
        assert_eq!(node.insert(&Revocation { tokens, at: 3e9, until: 3e9 + 60.0 }), Inserted::New);
        let is_included = |after: u64| node.digest_at(3_000_000_000 + after) != none(3_000_000_000 + after);
        assert_eq!([0, 4, 5, 54, 55, 60].map(is_included), [false, false, true, true, false, false]);
        assert!(node.digest().is_some_and(|digest| Some(digest) == none(digest.time)));
    }

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
        assert_eq!(revocations.digest(), None);
        assert!(revoke(7, now() + 90.0), "it is known");
    }
}
