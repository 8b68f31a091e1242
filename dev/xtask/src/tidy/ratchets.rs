//! Measures that may only fall: each has its bound in a file, which a change lowers when it can.

use std::collections::BTreeMap;

use crate::tidy::tree::Tree;
use crate::tidy::{Fix, Violation};

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
            let what = format!("{name} fell: lower the bound to {measure}");
            found.push(Violation::outdated(RATCHETS, line, what, Fix::Lower(*measure)));
        }
    }
    let gone = bounds.into_iter().map(|(name, (_, line))| {
        let what = format!("{name} is not measured: remove the entry");
        Violation::outdated(RATCHETS, line, what, Fix::Remove)
    });
    found.extend(gone);
    found
}

/// Returns the list of bounds after the fixes for the violations in it.
pub(super) fn lowered(text: &str, violations: &[Violation]) -> String {
    let fixes = violations.iter().filter_map(|violation| Some((violation.line, violation.fix?)));
    let fixes: BTreeMap<usize, Fix> = fixes.collect();
    let mut lines = String::new();
    for (index, line) in text.lines().enumerate() {
        match (fixes.get(&(index + 1)), line.rsplit_once(' ')) {
            (Some(Fix::Remove), _) => {}
            (Some(Fix::Lower(bound)), Some((name, _))) => lines += &format!("{name} {bound}\n"),
            _ => lines += &format!("{line}\n"),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tree::tests::tree;

    #[test]
    fn measures_may_only_fall_and_bounds_follow_them() {
        let measured = |list: &str, measures: &[(&str, u64)]| {
            let measures = measures.iter().map(|(name, measure)| ((*name).to_owned(), *measure)).collect();
            compare(&tree(&[(RATCHETS, list)]), "cycle", &measures, 4, 0)
        };
        for (list, measure, expected) in [
            ("# why\nwords 9\ncycle a 7\n", 7, ""),
            ("cycle a 7\n", 8, "cycle a is 8, 7 at most"),
            ("cycle a 7\n", 6, "cycle a fell: lower the bound to 6"),
            ("", 4, ""),
            ("", 5, "cycle a is 5, 4 at most"),
            ("cycle a 4\ncycle b 9\n", 3, "cycle b is not measured: remove the entry"),
            ("cycle a\n", 3, "an entry is `name bound`"),
        ] {
            let found = measured(list, &[("cycle a", measure)]).into_iter().map(|violation| violation.what);
            assert_eq!(found.collect::<String>(), expected, "{list}");
        }
        let list = "# why\ncycle a 7\ncycle b 9\ncycle c 8\n";
        let found = measured(list, &[("cycle a", 6), ("cycle c", 9)]);
        assert_eq!(lowered(list, &found), "# why\ncycle a 6\ncycle c 8\n");
    }
}
