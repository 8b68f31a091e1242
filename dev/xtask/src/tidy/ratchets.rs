//! Measures that may only fall: each has its bound in a file, which a change lowers when it can.

use std::collections::BTreeMap;

use crate::tidy::Violation;
use crate::tidy::tree::Tree;

/// Lines `name bound`. A `#` starts a comment.
pub(super) const RATCHETS: &str = "dev/xtask/tidy-ratchets.txt";

/// Compares measures with their bounds. A measure without a bound must not exceed `otherwise`. One that falls by more than
/// `slack` asks for a lower bound.
pub(super) fn compare(
    tree: &Tree,
    prefix: &str,
    measures: &BTreeMap<String, u64>,
    otherwise: u64,
    slack: u64,
) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut bounds = BTreeMap::new();
    let entries = tree.file(RATCHETS).unwrap_or_default().lines().enumerate();
    for (index, entry) in entries.filter(|(_, entry)| entry.starts_with(prefix)) {
        match entry.rsplit_once(' ').and_then(|(name, bound)| Some((name, bound.parse::<u64>().ok()?))) {
            Some((name, bound)) => {
                bounds.insert(name.to_owned(), (bound, index + 1));
            }
            None => found.push(Violation::new(RATCHETS, index + 1, "an entry is `name bound`")),
        }
    }
    for (name, measure) in measures {
        let (bound, line) = bounds.remove(name).unwrap_or((otherwise, 1));
        if *measure > bound {
            found.push(Violation::new(RATCHETS, line, format!("{name} is {measure}, {bound} at most")));
        } else if measure + slack < bound && bound > otherwise {
            found.push(Violation::new(RATCHETS, line, format!("{name} fell: lower the bound to {measure}")));
        }
    }
    let gone = bounds.into_iter().map(|(name, (_, line))| {
        Violation::new(RATCHETS, line, format!("{name} is not measured: remove the entry"))
    });
    found.extend(gone);
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tree::tests::tree;

    fn found(list: &str, measure: u64) -> Vec<String> {
        let measures = BTreeMap::from([("cycle a".to_owned(), measure)]);
        let found = compare(&tree(&[(RATCHETS, list)]), "cycle", &measures, 4, 0);
        found.into_iter().map(|violation| violation.what).collect()
    }

    #[test]
    fn measures_may_only_fall() {
        assert_eq!(found("# why\nwords 9\ncycle a 7\n", 7), [""; 0]);
        assert_eq!(found("cycle a 7\n", 8), ["cycle a is 8, 7 at most"]);
        assert_eq!(found("cycle a 7\n", 6), ["cycle a fell: lower the bound to 6"]);
        assert_eq!(found("", 4), [""; 0]);
        assert_eq!(found("", 5), ["cycle a is 5, 4 at most"]);
        assert_eq!(found("cycle a 4\ncycle b 9\n", 3), ["cycle b is not measured: remove the entry"]);
        assert_eq!(found("cycle a\n", 3), ["an entry is `name bound`"]);
    }
}
