//! Tuples in place of parameters: a call does not name their parts.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::tidy::Violation;
use crate::tidy::ratchets;
use crate::tidy::source::Token;
use crate::tidy::tree::Tree;

/// Parameters of functions, closures and tests excluded, whose pattern or type is a tuple or a reference to one.
pub(super) fn tuples(tree: &Tree) -> Vec<Violation> {
    let mut places = Vec::new();
    let mut measures = BTreeMap::<String, u64>::new();
    for source in tree.sources.iter().filter(|source| !source.is_test) {
        let Some((package, _)) = source.path.split_once("/src/") else { continue };
        for place in source.code().filter(|place| source.tokens[*place].is_name("fn")) {
            for tuple in tuples_in_signature(&source.tokens, place) {
                *measures.entry(format!("tuple parameters in {package}")).or_default() += 1;
                places.push(Violation::new(
                    &source.path,
                    source.tokens[tuple].line,
                    "a tuple as a parameter",
                ));
            }
        }
    }
    let mut found = ratchets::compare(tree, "tuple parameters", &measures, 0, 0);
    if found.iter().any(|violation| violation.fix.is_none()) {
        found.extend(places);
    }
    found
}

/// Returns each tuple parameter's first token; `keyword` is the position of `fn`.
fn tuples_in_signature(tokens: &[Token], keyword: usize) -> Vec<usize> {
    // A function pointer's type, `fn(u8)`, has no name.
    if tokens.get(keyword + 1).and_then(Token::name).is_none() {
        return Vec::new();
    }
    let mut depth = 0;
    let mut place = keyword + 2;
    while tokens.get(place).is_some_and(|token| depth > 0 || !token.is_open('(')) {
        depth += depth_change(tokens, place);
        place = tokens[place].mate + 1;
    }
    if place >= tokens.len() {
        return Vec::new();
    }
    let parameters = split(tokens, place).into_iter();
    parameters.filter(|part| is_tuple(tokens, part)).map(|part| part.start).collect()
}

/// Whether a parameter's pattern or type, behind references, is a tuple.
fn is_tuple(tokens: &[Token], parameter: &Range<usize>) -> bool {
    let mut colon = parameter.start;
    while colon < parameter.end && !tokens[colon].is_mark(':') {
        colon = tokens[colon].mate + 1;
    }
    let mut parts = [parameter.start..colon, colon + 1..parameter.end].into_iter();
    parts.any(|part| {
        let open = behind_references(tokens, &part);
        open < part.end
            && tokens[open].is_open('(')
            && tokens[open].mate + 1 == part.end
            && split(tokens, open).len() > 1
    })
}

fn behind_references(tokens: &[Token], part: &Range<usize>) -> usize {
    let mut place = part.start;
    while place < part.end {
        let token = &tokens[place];
        let is_lifetime = tokens[place - 1].is_mark('\'');
        if !(token.is_mark('&') || token.is_mark('\'') || token.is_name("mut") || is_lifetime) {
            break;
        }
        place += 1;
    }
    place
}

/// Splits a bracket's content at the commas outside inner brackets and generic arguments.
fn split(tokens: &[Token], open: usize) -> Vec<Range<usize>> {
    let close = tokens[open].mate;
    let mut parts = Vec::new();
    let mut depth = 0;
    let mut start = open + 1;
    let mut place = start;
    while place < close {
        depth += depth_change(tokens, place);
        if depth == 0 && tokens[place].is_mark(',') {
            parts.push(start..place);
            start = place + 1;
        }
        place = tokens[place].mate + 1;
    }
    if start < close {
        parts.push(start..close);
    }
    parts
}

/// How a token changes the depth in generic arguments. An arrow's end does not.
fn depth_change(tokens: &[Token], place: usize) -> i32 {
    let ends_arrow = tokens[place].is_mark('>') && tokens[place - 1].is_mark('-');
    i32::from(tokens[place].is_mark('<')) - i32::from(tokens[place].is_mark('>') && !ends_arrow)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tree::tests::tree;

    fn count(text: &str) -> usize {
        let found = tuples(&tree(&[("crates/a/src/a.rs", text)]));
        found.iter().filter(|violation| violation.what == "a tuple as a parameter").count()
    }

    #[test]
    fn parameters_that_are_tuples_are_counted() {
        for (text, expected) in [
            ("fn f((a, b): (u8, u8)) {}", 1),
            ("fn f<F: Fn(u8) -> u8>(&self, pair: (u8, A<u8, u8>), (c, d): (u8, u8)) {}", 2),
            ("fn f<F: Fn() -> (u8, u8)>(a: (u8, u8), b: A<fn(u8) -> u8, u8>, c: (u8, u8), d: F) {}", 2),
            ("fn f((a, b): Pair, &(c, d): &Pair) {}", 2),
            ("trait A { fn f<'a>(pair: &'a mut (u8, u8), end: u8); }", 1),
            ("fn f(a: u8, b: Option<(u8, u8)>, c: &[(u8, u8)], d: impl Fn((u8, u8), u8)) {}", 0),
            ("fn f(a: &(dyn Fn(u8, u8) + Send), b: (A<u8, u8>), c: (), d: fn((u8, u8))) {}", 0),
            ("fn f(Point { x, y }: Point, [a, b]: [u8; 2]) -> (u8, u8) { g(|(a, b): (u8, u8)| a) }", 0),
            ("#[cfg(test)] mod tests { fn f((a, b): (u8, u8)) {} }", 0),
        ] {
            assert_eq!(count(text), expected, "{text}");
        }
    }

    #[test]
    fn a_package_with_more_tuples_than_its_bound_is_found() {
        let text = "fn f(a: (u8, u8)) {}\nfn g(a: (u8, u8)) {}\n";
        let found = |bound: &str| {
            let files =
                [("crates/a/src/a.rs", text), (ratchets::RATCHETS, bound), ("crates/a/tests/a.rs", text)];
            tuples(&tree(&files)).into_iter().map(|violation| violation.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(found("tuple parameters in crates/a 2\n"), Vec::<String>::new());
        let excess = found("tuple parameters in crates/a 1\n");
        assert!(excess[0].ends_with("tuple parameters in crates/a is 2, 1 at most"), "{excess:?}");
        assert_eq!(
            excess[1..],
            ["crates/a/src/a.rs:1: a tuple as a parameter", "crates/a/src/a.rs:2: a tuple as a parameter"]
        );
        let lower = found("tuple parameters in crates/a 3\n");
        assert!(lower[0].ends_with("lower the bound to 2"), "{lower:?}");
    }
}
