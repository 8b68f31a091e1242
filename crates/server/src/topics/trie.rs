//! Patterns by their tokens, so that finding those that match a name costs what the name's tokens cost, however
//! many patterns there are.

use std::collections::HashMap;

use super::name::{ONE, REST};

/// What belongs to patterns. A name has at most [`NAME_MAX`](super::Topics::NAME_MAX) bytes, so that no path is
/// deeper than half as many tokens: recursion is safe.
#[derive(Debug)]
pub(crate) struct Trie<T> {
    /// The pattern that ends here.
    here: Option<T>,
    /// The pattern that goes on with `>`.
    rest: Option<T>,
    one: Option<Box<Self>>,
    /// Tokens come from strangers, so their hash is keyed.
    literals: HashMap<Box<str>, Self>,
}

impl<T> Default for Trie<T> {
    fn default() -> Self {
        Self { here: None, rest: None, one: None, literals: HashMap::new() }
    }
}

impl<T> Trie<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.here.is_none() && self.rest.is_none() && self.one.is_none() && self.literals.is_empty()
    }

    /// The place of a pattern.
    pub(crate) fn place(&mut self, pattern: &str) -> &mut Option<T> {
        let mut node = self;
        for token in pattern.split('.') {
            node = match token {
                REST => return &mut node.rest,
                ONE => node.one.get_or_insert_default(),
                literal => node.literals.entry(literal.into()).or_default(),
            };
        }
        &mut node.here
    }

    pub(crate) fn get(&self, pattern: &str) -> Option<&T> {
        let mut node = self;
        for token in pattern.split('.') {
            node = match token {
                REST => return node.rest.as_ref(),
                ONE => node.one.as_ref()?,
                literal => node.literals.get(literal)?,
            };
        }
        node.here.as_ref()
    }

    /// Empties the place of a pattern, and takes away what only led there.
    pub(crate) fn remove(&mut self, pattern: &str) -> Option<T> {
        self.remove_below(Some(pattern))
    }

    fn remove_below(&mut self, left: Option<&str>) -> Option<T> {
        let Some(left) = left else { return self.here.take() };
        let (token, tail) = split(left);
        match token {
            REST => self.rest.take(),
            ONE => {
                let one = self.one.as_mut()?;
                let removed = one.remove_below(tail);
                if one.is_empty() {
                    self.one = None;
                }
                removed
            }
            literal => {
                let next = self.literals.get_mut(literal)?;
                let removed = next.remove_below(tail);
                if next.is_empty() {
                    self.literals.remove(literal);
                }
                if self.literals.is_empty() {
                    self.literals = HashMap::new();
                }
                removed
            }
        }
    }

    /// Calls `found` with what belongs to each pattern that matches `name`.
    pub(crate) fn find<'a>(&'a self, name: &str, found: &mut impl FnMut(&'a T)) {
        self.find_below(Some(name), found);
    }

    fn find_below<'a>(&'a self, left: Option<&str>, found: &mut impl FnMut(&'a T)) {
        let Some(left) = left else { return self.here.iter().for_each(found) };
        self.rest.iter().for_each(&mut *found);
        let (token, tail) = split(left);
        if let Some(one) = &self.one {
            one.find_below(tail, found);
        }
        if let Some(next) = self.literals.get(token) {
            next.find_below(tail, found);
        }
    }
}

fn split(left: &str) -> (&str, Option<&str>) {
    match left.split_once('.') {
        Some((token, tail)) => (token, Some(tail)),
        None => (left, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(trie: &Trie<String>, name: &str) -> Vec<String> {
        let mut all = Vec::new();
        trie.find(name, &mut |pattern| all.push(pattern.clone()));
        all.sort();
        all
    }

    /// Whether a pattern matches a name, spelt out.
    fn matches(pattern: &[&str], name: &[&str]) -> bool {
        match (pattern, name) {
            ([">"], [_, ..]) => true,
            ([first, pattern @ ..], [token, name @ ..]) => {
                (*first == "*" || first == token) && matches(pattern, name)
            }
            (pattern, name) => pattern.is_empty() && name.is_empty(),
        }
    }

    /// Every sequence of up to `max` of these tokens.
    fn sequences(tokens: &[&str], max: usize) -> Vec<String> {
        let (mut all, mut last) = (Vec::new(), vec![String::new()]);
        for length in 0..max {
            let longer = |begin: &String, token: &&str| {
                if length == 0 { (*token).to_owned() } else { format!("{begin}.{token}") }
            };
            last =
                last.iter().flat_map(|begin| tokens.iter().map(move |token| longer(begin, token))).collect();
            all.extend(last.clone());
        }
        all
    }

    #[test]
    fn finds_exactly_what_matches() {
        let patterns = sequences(&["a", "b", "", "*", ">"], 3);
        let patterns: Vec<&String> = patterns
            .iter()
            .filter(|pattern| super::super::name::check_subscription(pattern).is_ok())
            .collect();
        let mut trie = Trie::default();
        for pattern in &patterns {
            *trie.place(pattern) = Some((*pattern).clone());
        }
        let names = sequences(&["a", "b", "", "c"], 4);
        let check = |trie: &Trie<String>, patterns: &[&String]| {
            for name in &names {
                let tokens: Vec<&str> = name.split('.').collect();
                let fits = |pattern: &&&String| matches(&pattern.split('.').collect::<Vec<_>>(), &tokens);
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

    #[test]
    fn the_longest_pattern_has_a_place() {
        let mut trie = Trie::default();
        let longest = "*.".repeat(super::super::Topics::NAME_MAX / 2);
        *trie.place(&longest) = Some(longest.clone());
        assert_eq!(found(&trie, &longest.replace('*', "a")), [&*longest]);
        assert_eq!(trie.remove(&longest), Some(longest));
        assert!(trie.is_empty());
    }
}
