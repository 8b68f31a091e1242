//! Errors of public functions: a type that a caller can match, not a text.

use std::collections::BTreeMap;

use crate::tidy::Violation;
use crate::tidy::ratchets;
use crate::tidy::source::{Kind, Source, Token};
use crate::tidy::tree::Tree;

/// Counts each product crate's public functions whose error is a text.
pub(super) fn texts(tree: &Tree) -> Vec<Violation> {
    let mut measures = BTreeMap::new();
    for source in tree.product() {
        let name = source.path.split('/').nth(1).unwrap_or_default();
        let found = source.code().filter(|place| fails_with_text(source, *place)).count() as u64;
        *measures.entry(format!("public functions of {name} whose error is a text")).or_default() += found;
    }
    ratchets::compare(tree, "public functions", &measures, 0, 0)
}

/// Whether a public function begins at this place, and returns a `Result` whose error is a text.
fn fails_with_text(source: &Source, place: usize) -> bool {
    let tokens = &source.tokens;
    let is_restricted = tokens.get(place + 1).is_some_and(|token| token.is_open('('));
    if !tokens[place].is_name("pub") || is_restricted {
        return false;
    }
    let is_word = |token: &&Token| {
        matches!(token.kind, Kind::Literal(_))
            || ["const", "async", "unsafe", "extern"].iter().any(|word| token.is_name(word))
    };
    let function = place + 1 + tokens[place + 1..].iter().take_while(is_word).count();
    if !tokens.get(function).is_some_and(|token| token.is_name("fn")) {
        return false;
    }
    // Behind the name and its generics, which may have parentheses and arrows, are the arguments.
    let end = end_of_angles(tokens, function + 2);
    let Some(arguments) = tokens.get(end).filter(|token| token.is_open('(')) else { return false };
    let returned = &tokens[arguments.mate + 1..];
    let is_end = |token: &Token| token.is_open('{') || token.is_mark(';') || token.is_name("where");
    let returned = &returned[..returned.iter().position(is_end).unwrap_or(returned.len())];
    (0..returned.len()).any(|at| returned[at].is_name("Result") && error_is_text(returned, at + 1))
}

/// The place behind the angle brackets that open at `place`; `place` itself without them.
fn end_of_angles(tokens: &[Token], place: usize) -> usize {
    let mut depth = 0;
    for at in place..tokens.len() {
        let is_arrow = at > 0 && tokens[at - 1].is_mark('-');
        let closes = tokens[at].is_mark('>') && !is_arrow;
        depth += i32::from(tokens[at].is_mark('<')) - i32::from(closes);
        if depth == 0 {
            return if tokens[at].is_mark('>') { at + 1 } else { at };
        }
    }
    tokens.len()
}

/// Whether the last of several arguments in angle brackets at `place` is a text: `String`, or a reference to `str`.
fn error_is_text(tokens: &[Token], place: usize) -> bool {
    let Some(arguments) = tokens.get(place..end_of_angles(tokens, place)) else { return false };
    let [before @ .., error, _] = arguments else { return false };
    let has_error = before.iter().any(|token| token.is_mark(','));
    has_error && (error.is_name("String") || error.is_name("str"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tree::tests::tree;

    fn found(function: &str) -> usize {
        texts(&tree(&[("crates/a/src/a.rs", function)])).len()
    }

    #[test]
    fn public_functions_whose_error_is_a_text_are_counted() {
        for function in [
            "pub fn a() -> Result<(), String> {}",
            "pub const unsafe fn a() -> Result<Vec<u8>, &'static str> {}",
            "impl A { pub async fn a(&self, b: B) -> Result<Option<C<D>>, String> where E: F {} }",
            "pub fn a<F: Fn(u8) -> Vec<u8>>(f: F) -> std::result::Result<F, std::string::String> {}",
            "pub fn a() -> impl Future<Output = Result<u8, String>> + Send {}",
            "pub extern \"C\" fn a() -> Result<(), String> {}",
        ] {
            assert_eq!(found(function), 1, "{function}");
        }
        for function in [
            "fn a() -> Result<(), String> {}",
            "pub(crate) fn a() -> Result<(), String> {}",
            "pub fn a() -> Result<String, E> {}",
            "pub fn a() -> Result<Vec<String>, E> {}",
            "pub fn a() -> io::Result<String> {}",
            "pub fn a() -> Option<String> {}",
            "pub fn a(f: impl Fn() -> Result<(), String>) -> Result<(), E> {}",
            "pub fn a<F: Fn() -> Result<(), String>>(f: F) {}",
            "pub fn a() {} fn b() -> Result<(), String> {}",
            "pub struct A(Result<(), String>);",
            "#[cfg(test)] mod tests { pub fn a() -> Result<(), String> {} }",
        ] {
            assert_eq!(found(function), 0, "{function}");
        }
        let files = [
            ("crates/a/src/a.rs", "pub fn a() -> Result<(), String> {}"),
            ("crates/a/src/b.rs", "pub fn b() -> Result<(), String> {}"),
            (ratchets::RATCHETS, "public functions of a whose error is a text 1\n"),
        ];
        let found = texts(&tree(&files));
        assert_eq!(found[0].what, "public functions of a whose error is a text is 2, 1 at most");
    }
}
