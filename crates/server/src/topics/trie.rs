//! Trie of patterns by part, in which matching a name takes bounded steps, however many patterns exist.
//!
//! A name takes two paths at each node, through the `*` and through its own part, so patterns can be made for which the
//! paths double with each part. Nodes with up to [`FREE_PARTS`] parts are few for any one name. Below them the trie
//! counts: each node knows the maximum steps for a name at and below it, and a pattern that would lead to more than
//! [`MATCH_STEPS_MAX`] is rejected.

use std::collections::{BTreeMap, HashMap};

use super::name::{FREE_PARTS, MATCH_STEPS_MAX, ONE, REST};

/// Values by pattern. A name has at most [`NAME_MAX`](super::name::NAME_MAX) bytes, so no path is deeper than half
/// as many parts: recursion is safe.
#[derive(Debug)]
pub(crate) struct Trie<T> {
    /// Value for the pattern that ends here.
    here: Option<T>,
    /// Value for the pattern that continues with `>`.
    rest: Option<T>,
    one: Option<Box<Self>>,
    /// Tokens are chosen by clients, so their hash is keyed.
    literals: HashMap<Box<str>, Self>,
    /// Maximum counted steps for one name here and below: after the first parts.
    steps: usize,
    /// Literal counts by their steps, without literals with zero steps.
    weights: BTreeMap<usize, usize>,
}

/// Error: a pattern would make matching take more than [`MATCH_STEPS_MAX`] steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooManySteps;

/// Maximum steps for a name at nodes with up to [`FREE_PARTS`] parts: the paths double with each part.
const FREE_STEPS: usize = (2 << FREE_PARTS) - 1;

/// Maximum steps for a name below those nodes.
const COUNTED_STEPS_MAX: usize = MATCH_STEPS_MAX - FREE_STEPS;

impl<T> Default for Trie<T> {
    fn default() -> Self {
        Self {
            here: None,
            rest: None,
            one: None,
            literals: HashMap::new(),
            steps: 0,
            weights: BTreeMap::new(),
        }
    }
}

impl<T> Trie<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.here.is_none() && self.rest.is_none() && self.one.is_none() && self.literals.is_empty()
    }

    /// Adds a new pattern.
    pub(crate) fn insert(&mut self, pattern: &str, value: T) -> Result<(), TooManySteps> {
        self.insert_below(Some(pattern), 0, value);
        if self.steps > COUNTED_STEPS_MAX {
            self.remove(pattern);
            return Err(TooManySteps);
        }
        Ok(())
    }

    fn insert_below(&mut self, left: Option<&str>, depth: usize, value: T) {
        match left.map(split) {
            None => self.here = Some(value),
            Some((REST, _)) => self.rest = Some(value),
            Some((ONE, tail)) => self.one.get_or_insert_default().insert_below(tail, depth + 1, value),
            Some((literal, tail)) => {
                let next = self.literals.entry(literal.into()).or_default();
                let before = next.steps;
                next.insert_below(tail, depth + 1, value);
                let after = next.steps;
                self.weigh(before, after);
            }
        }
        self.count(depth);
    }

    /// Changes a literal's steps.
    fn weigh(&mut self, before: usize, after: usize) {
        if before == after {
            return;
        }
        if let Some(count) = self.weights.get_mut(&before) {
            *count -= 1;
            if *count == 0 {
                self.weights.remove(&before);
            }
        }
        if after > 0 {
            *self.weights.entry(after).or_default() += 1;
        }
    }

    /// Recounts the steps: a name continues through the `*` and through one literal, the heaviest at most.
    fn count(&mut self, depth: usize) {
        let one = self.one.as_ref().map_or(0, |one| one.steps);
        let literal = self.weights.last_key_value().map_or(0, |(steps, _)| *steps);
        self.steps = usize::from(depth > FREE_PARTS) + one + literal;
    }

    pub(crate) fn get(&self, pattern: &str) -> Option<&T> {
        let mut node = self;
        for part in pattern.split('.') {
            node = match part {
                REST => return node.rest.as_ref(),
                ONE => node.one.as_ref()?,
                literal => node.literals.get(literal)?,
            };
        }
        node.here.as_ref()
    }

    /// Removes a pattern, and nodes that only led to it.
    pub(crate) fn remove(&mut self, pattern: &str) -> Option<T> {
        self.remove_below(Some(pattern), 0)
    }

    fn remove_below(&mut self, left: Option<&str>, depth: usize) -> Option<T> {
        let removed = match left.map(split) {
            None => self.here.take(),
            Some((REST, _)) => self.rest.take(),
            Some((ONE, tail)) => {
                let one = self.one.as_mut()?;
                let removed = one.remove_below(tail, depth + 1);
                if one.is_empty() {
                    self.one = None;
                }
                removed
            }
            Some((literal, tail)) => {
                let next = self.literals.get_mut(literal)?;
                let before = next.steps;
                let removed = next.remove_below(tail, depth + 1);
                let (after, is_empty) = (next.steps, next.is_empty());
                if is_empty {
                    self.literals.remove(literal);
                }
                self.weigh(before, if is_empty { 0 } else { after });
                if self.literals.is_empty() {
                    self.literals = HashMap::new();
                }
                removed
            }
        };
        self.count(depth);
        removed
    }

    /// Calls `found` with each value whose pattern matches `name`. Returns the steps taken, at most
    /// [`MATCH_STEPS_MAX`].
    pub(crate) fn find<'a>(&'a self, name: &str, found: &mut impl FnMut(&'a T)) -> usize {
        self.find_below(Some(name), found)
    }

    fn find_below<'a>(&'a self, left: Option<&str>, found: &mut impl FnMut(&'a T)) -> usize {
        let Some(left) = left else {
            self.here.iter().for_each(found);
            return 1;
        };
        self.rest.iter().for_each(&mut *found);
        let (part, tail) = split(left);
        let one = self.one.as_ref().map_or(0, |one| one.find_below(tail, found));
        let literal = self.literals.get(part).map_or(0, |next| next.find_below(tail, found));
        1 + one + literal
    }
}

fn split(left: &str) -> (&str, Option<&str>) {
    match left.split_once('.') {
        Some((part, tail)) => (part, Some(tail)),
        None => (left, None),
    }
}

#[cfg(test)]
mod tests {
    use super::super::name::NAME_MAX;
    use super::*;

    fn found(trie: &Trie<String>, name: &str) -> Vec<String> {
        let mut all = Vec::new();
        trie.find(name, &mut |pattern| all.push(pattern.clone()));
        all.sort();
        all
    }

    /// Reference implementation for pattern matching.
    fn matches(pattern: &[&str], name: &[&str]) -> bool {
        match (pattern, name) {
            ([">"], [_, ..]) => true,
            ([first, pattern @ ..], [part, name @ ..]) => {
                (*first == "*" || first == part) && matches(pattern, name)
            }
            (pattern, name) => pattern.is_empty() && name.is_empty(),
        }
    }

    /// Returns every sequence with up to `max` such parts.
    fn sequences(parts: &[&str], max: usize) -> Vec<String> {
        let (mut all, mut last) = (Vec::new(), vec![String::new()]);
        for length in 0..max {
            let longer = |begin: &String, part: &&str| {
                if length == 0 { (*part).to_owned() } else { format!("{begin}.{part}") }
            };
            last = last.iter().flat_map(|begin| parts.iter().map(move |part| longer(begin, part))).collect();
            all.extend(last.clone());
        }
        all
    }

    #[test]
    fn find_returns_exactly_the_matching_patterns() {
        let patterns = sequences(&["a", "b", "", "*", ">"], 3);
        let patterns: Vec<&String> = patterns
            .iter()
            .filter(|pattern| super::super::name::check_subscription(pattern).is_ok())
            .collect();
        let mut trie = Trie::default();
        for pattern in &patterns {
            assert_eq!(trie.insert(pattern, (*pattern).clone()), Ok(()));
        }
        let names = sequences(&["a", "b", "", "c"], 4);
        let check = |trie: &Trie<String>, patterns: &[&String]| {
            for name in &names {
                let parts: Vec<&str> = name.split('.').collect();
                let fits = |pattern: &&&String| matches(&pattern.split('.').collect::<Vec<_>>(), &parts);
                let mut expected: Vec<String> =
                    patterns.iter().filter(fits).map(|pattern| (*pattern).clone()).collect();
                expected.sort();
                assert_eq!(found(trie, name), expected, "{name}");
            }
        };
        check(&trie, &patterns);
        let (gone, left) = patterns.split_at(patterns.len() / 2);
        for pattern in gone {
            assert_eq!(trie.remove(pattern).as_ref(), Some(*pattern));
            assert_eq!(trie.remove(pattern), None);
        }
        check(&trie, left);
        for pattern in left {
            trie.remove(pattern);
        }
        assert!(trie.is_empty(), "{trie:?}");
        assert_eq!(trie.remove("a.b"), None);
    }

    /// Returns all patterns with this many parts, each `a` or `*`.
    fn ambiguous(parts: usize) -> impl Iterator<Item = String> {
        (0..1_u32 << parts).map(move |bits| {
            let part = |at: usize| if bits >> at & 1 == 0 { "a" } else { "*" };
            (0..parts).map(part).collect::<Vec<_>>().join(".")
        })
    }

    #[test]
    fn matching_a_name_against_32768_ambiguous_patterns_takes_few_steps() {
        let mut trie = Trie::default();
        let accepted = ambiguous(15).filter(|pattern| trie.insert(pattern, pattern.clone()).is_ok()).count();
        let name = "a.".repeat(15) + "b";
        let steps = trie.find(&name, &mut |pattern| unreachable!("{pattern}"));
        assert!(steps <= MATCH_STEPS_MAX, "{steps} steps");
        assert!((1..32_768).contains(&accepted), "{accepted}");
        // Short patterns are accepted nevertheless.
        for pattern in (1..=FREE_PARTS).flat_map(ambiguous) {
            assert_eq!(trie.insert(&pattern, pattern.clone()), Ok(()), "{pattern}");
        }
        let steps = trie.find(&name, &mut |pattern| unreachable!("{pattern}"));
        assert!((FREE_STEPS..=MATCH_STEPS_MAX).contains(&steps), "{steps} steps");
        // Removed patterns' steps are available to others.
        let rejected = "*.a.".repeat(7) + "*";
        for pattern in ambiguous(15) {
            trie.remove(&pattern);
        }
        assert_eq!((trie.steps, trie.insert(&rejected, rejected.clone())), (0, Ok(())));
    }

    /// Counts the steps without the nodes' cached numbers.
    fn steps(trie: &Trie<String>, depth: usize) -> usize {
        let below = |node| steps(node, depth + 1);
        let literal = trie.literals.values().map(below).max().unwrap_or(0);
        usize::from(depth > FREE_PARTS) + trie.one.as_deref().map_or(0, below) + literal
    }

    #[test]
    fn steps_are_counted_as_patterns_are_added_and_removed() {
        let (mut trie, mut inside, mut state) = (Trie::default(), Vec::new(), 1_u64);
        let mut next = |below: u64| {
            // Knuth's constants.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let mut rejected = 0;
        for round in 0..3_000 {
            let parts = 1 + next(24);
            let mut pattern: Vec<&str> = (0..parts).map(|_| ["a", "b", "*"][next(3) as usize]).collect();
            if next(3) == 0 {
                pattern.push(">");
            }
            let pattern = pattern.join(".");
            if trie.get(&pattern).is_none() {
                let before = trie.steps;
                match trie.insert(&pattern, pattern.clone()) {
                    Ok(()) => inside.push(pattern),
                    Err(TooManySteps) => {
                        rejected += 1;
                        assert!(parts > FREE_PARTS as u64 && trie.steps == before);
                        assert_eq!(trie.get(&pattern), None);
                    }
                }
            }
            if next(4) == 0 && !inside.is_empty() {
                let gone = inside.swap_remove(next(inside.len() as u64) as usize);
                assert_eq!(trie.remove(&gone), Some(gone));
            }
            let name: Vec<&str> = (0..=next(30)).map(|_| ["a", "b", "c"][next(3) as usize]).collect();
            assert!(trie.find(&name.join("."), &mut |_| ()) <= FREE_STEPS + trie.steps);
            assert!(trie.steps <= COUNTED_STEPS_MAX);
            assert!(round % 100 > 0 || trie.steps == steps(&trie, 0));
        }
        assert!(rejected > 10 && inside.len() > 500, "{rejected} {}", inside.len());
        inside.iter().for_each(|pattern| drop(trie.remove(pattern)));
        assert!(trie.is_empty() && trie.steps == 0 && trie.weights.is_empty());
    }

    #[test]
    fn longest_pattern_is_accepted() {
        let mut trie = Trie::default();
        let longest = "*.".repeat(NAME_MAX / 2);
        assert_eq!(trie.insert(&longest, longest.clone()), Ok(()));
        assert_eq!(found(&trie, &longest.replace('*', "a")), [&*longest]);
        assert_eq!(trie.remove(&longest), Some(longest));
        assert!(trie.is_empty());
    }
}
