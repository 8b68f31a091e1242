//! One Rust file as a flat list of tokens: enough to find identifiers, paths, functions and modules, also
//! inside macros, without confusion by comments and strings.

use std::ops::Range;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::tidy::Violation;

pub(super) struct Source {
    pub(super) path: String,
    pub(super) text: String,
    /// The whole file is compiled for tests only.
    pub(super) is_test: bool,
    pub(super) tokens: Vec<Token>,
    /// Literals by place in the text, without documentation comments.
    literals: Vec<Range<usize>>,
    /// Items compiled for tests only, by place among the tokens.
    tests: Vec<Range<usize>>,
}

#[derive(Debug)]
pub(super) struct Token {
    pub(super) kind: Kind,
    /// Counted from 1.
    pub(super) line: usize,
    /// For an opening bracket, its closing bracket's position; otherwise the token's own position.
    pub(super) mate: usize,
}

#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Name(String),
    Mark(char),
    Open(char),
    Close,
    Literal(String),
}

impl Token {
    pub(super) fn is_name(&self, name: &str) -> bool {
        matches!(&self.kind, Kind::Name(own) if own == name)
    }

    pub(super) fn is_mark(&self, mark: char) -> bool {
        self.kind == Kind::Mark(mark)
    }

    pub(super) fn is_open(&self, bracket: char) -> bool {
        self.kind == Kind::Open(bracket)
    }

    pub(super) fn name(&self) -> Option<&str> {
        match &self.kind {
            Kind::Name(name) => Some(name),
            _ => None,
        }
    }
}

impl Source {
    pub(super) fn parse(path: &str, text: &str) -> Result<Self, Violation> {
        let stream: TokenStream = text.parse().map_err(|error: proc_macro2::LexError| {
            Violation::new(path, error.span().start().line, "no Rust")
        })?;
        let mut source = Self {
            path: path.to_owned(),
            text: text.to_owned(),
            is_test: path.split('/').any(|part| matches!(part, "tests" | "tests.rs" | "benches")),
            tokens: Vec::new(),
            literals: Vec::new(),
            tests: Vec::new(),
        };
        source.flatten(stream);
        source.tests = find_tests(&source.tokens);
        Ok(source)
    }

    fn flatten(&mut self, stream: TokenStream) {
        for tree in stream {
            let place = self.tokens.len();
            let (kind, line) = match &tree {
                TokenTree::Ident(name) => (Kind::Name(name.to_string()), name.span().start().line),
                TokenTree::Punct(mark) => (Kind::Mark(mark.as_char()), mark.span().start().line),
                TokenTree::Literal(literal) => {
                    let range = literal.span().byte_range();
                    // A documentation comment arrives as an attribute with a string in it.
                    if self.text.get(range.clone()).is_some_and(|text| !text.starts_with('/')) {
                        self.literals.push(range);
                    }
                    (Kind::Literal(literal.to_string()), literal.span().start().line)
                }
                TokenTree::Group(group) => {
                    let bracket = match group.delimiter() {
                        Delimiter::Parenthesis => '(',
                        Delimiter::Brace => '{',
                        Delimiter::Bracket => '[',
                        // Only macros produce these; source text never has them.
                        Delimiter::None => ' ',
                    };
                    (Kind::Open(bracket), group.span_open().start().line)
                }
            };
            self.tokens.push(Token { kind, line, mate: place });
            if let TokenTree::Group(group) = tree {
                let end = group.span_close().start().line;
                self.flatten(group.stream());
                self.tokens[place].mate = self.tokens.len();
                self.tokens.push(Token { kind: Kind::Close, line: end, mate: self.tokens.len() });
            }
        }
    }

    /// Returns the positions of the tokens outside tests.
    pub(super) fn code(&self) -> impl Iterator<Item = usize> {
        let all = if self.is_test { 0..0 } else { 0..self.tokens.len() };
        all.filter(|place| !self.tests.iter().any(|test| test.contains(place)))
    }

    /// Returns how many lines are outside test items.
    pub(super) fn lines_of_code(&self) -> usize {
        let of_test = |test: &Range<usize>| self.tokens[test.end - 1].line - self.tokens[test.start].line + 1;
        self.text.lines().count() - self.tests.iter().map(of_test).sum::<usize>()
    }

    /// Returns the modules for tests in separate files, as paths without `.rs`.
    pub(super) fn test_modules(&self) -> Vec<String> {
        let (dir, file) = self.path.rsplit_once('/').unwrap_or(("", &self.path));
        let stem = file.trim_end_matches(".rs");
        let base =
            if matches!(stem, "lib" | "main" | "mod") { dir.to_owned() } else { format!("{dir}/{stem}") };
        let module = |test: &Range<usize>| {
            let tokens = &self.tokens[test.clone()];
            let [.., keyword, name, end] = tokens else { return None };
            (keyword.is_name("mod") && end.is_mark(';'))
                .then(|| format!("{base}/{}", name.name().unwrap_or("")))
        };
        self.tests.iter().filter_map(module).collect()
    }

    /// The text with strings blanked, comments left, so that both keep their lines.
    pub(super) fn text_without_literals(&self) -> String {
        let mut bytes = self.text.clone().into_bytes();
        for range in &self.literals {
            bytes[range.clone()].iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns all paths in the code outside tests, with `use` groups expanded: `use a::{b, c::d};` is `a::b` and
    /// `a::c::d`. A lone name is a path too.
    pub(super) fn paths(&self) -> Vec<(Vec<&str>, usize)> {
        let mut paths = Vec::new();
        let mut next = 0;
        for place in self.code() {
            let follows = |mark| place > 0 && self.tokens[place - 1].is_mark(mark);
            if place >= next && self.tokens[place].name().is_some() && !follows('.') {
                next = self.expand(place, &[], &mut paths);
            }
        }
        paths
    }

    /// Returns the paths that `use` imports into the file, outside tests.
    pub(super) fn uses(&self) -> Vec<Vec<&str>> {
        let mut paths = Vec::new();
        for place in self.code().filter(|place| self.tokens[*place].is_name("use")) {
            if self.tokens.get(place + 1).is_some_and(|token| token.name().is_some()) {
                self.expand(place + 1, &[], &mut paths);
            }
        }
        paths.into_iter().map(|(path, _)| path).collect()
    }

    /// Reads one path from `place` on, `prefix` before it; returns the place behind it.
    fn expand<'a>(
        &'a self,
        mut place: usize,
        prefix: &[&'a str],
        paths: &mut Vec<(Vec<&'a str>, usize)>,
    ) -> usize {
        let line = self.tokens[place].line;
        let mut path = prefix.to_vec();
        while let Some(name) = self.tokens.get(place).and_then(Token::name) {
            path.push(name);
            place += 1;
            let [first, second, third, ..] = &self.tokens[place..] else { break };
            if !(first.is_mark(':') && second.is_mark(':')) {
                break;
            }
            if third.is_open('{') {
                return self.expand_group(place + 2, &path, paths);
            }
            if third.name().is_none() {
                break;
            }
            place += 2;
        }
        paths.push((path, line));
        place
    }

    fn expand_group<'a>(
        &'a self,
        open: usize,
        prefix: &[&'a str],
        paths: &mut Vec<(Vec<&'a str>, usize)>,
    ) -> usize {
        let close = self.tokens[open].mate;
        let mut place = open + 1;
        while place < close {
            // Tokens that are not names (a star, a comma) and a rename's `as` and new name lead nowhere.
            place = match self.tokens[place].name() {
                Some("as") => place + 2,
                Some(_) => self.expand(place, prefix, paths),
                None => place + 1,
            };
        }
        close + 1
    }
}

/// Items under `#[cfg(test)]` or `#[cfg(all(test, …))]`, attribute included.
fn find_tests(tokens: &[Token]) -> Vec<Range<usize>> {
    let mut tests: Vec<Range<usize>> = Vec::new();
    for place in 0..tokens.len() {
        let inside = tests.last().is_some_and(|test| test.contains(&place));
        if !inside && is_test_attribute(&tokens[place..]) {
            tests.push(place..end_of_item(tokens, place));
        }
    }
    tests
}

fn is_test_attribute(tokens: &[Token]) -> bool {
    let [hash, open, cfg, paren, rest @ ..] = tokens else { return false };
    let is_cfg = hash.is_mark('#') && open.is_open('[') && cfg.is_name("cfg") && paren.is_open('(');
    let is_test = match rest {
        [all, paren, test, ..] if all.is_name("all") && paren.is_open('(') => test.is_name("test"),
        [test, ..] => test.is_name("test"),
        [] => false,
    };
    is_cfg && is_test
}

/// Returns the position behind the item that starts with an attribute at `place`: behind its `;`, its body,
/// or, for a field or a variant, its comma.
fn end_of_item(tokens: &[Token], mut place: usize) -> usize {
    while tokens.get(place).is_some_and(|token| token.is_mark('#')) {
        place = tokens[place + 1].mate + 1;
    }
    let first = tokens[place..].iter().position(|token| {
        token.name().is_some_and(|name| !matches!(name, "pub" | "crate" | "super" | "in" | "self"))
    });
    let behind = |offset: usize| first.and_then(|first| tokens.get(place + first + offset));
    let in_use = behind(0).is_some_and(|token| token.is_name("use"));
    let is_field = behind(1).is_some_and(|token| token.is_mark(':'))
        && !behind(2).is_some_and(|token| token.is_mark(':'));
    while place < tokens.len() && tokens[place].kind != Kind::Close {
        let token = &tokens[place];
        let ends = token.is_mark(';') || (is_field && token.is_mark(',')) || (!in_use && token.is_open('{'));
        place = token.mate + 1;
        if ends {
            break;
        }
    }
    place
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(text: &str) -> Vec<String> {
        let source = Source::parse("crates/a/src/lib.rs", text).unwrap_or_else(|fault| panic!("{fault}"));
        source.paths().into_iter().map(|(path, _)| path.join("::")).collect()
    }

    #[test]
    fn paths_are_multiplied_out() {
        assert_eq!(
            paths("use std::{io::{self, Read as _}, time::*, fmt};"),
            ["use", "std::io::self", "std::io::Read", "std::time", "std::fmt"]
        );
        assert_eq!(paths("x.now(); a::b::<C>::d();"), ["x", "a::b", "C", "d"]);
    }

    #[test]
    fn tests_are_not_code() {
        let text = "fn a() {}\n#[cfg(test)]\n#[allow(x)]\nmod tests {\n    use b::c;\n}\nfn d() {}\n";
        assert_eq!(paths(text), ["fn", "a", "fn", "d"]);
        let source = Source::parse("a.rs", text).unwrap_or_else(|fault| panic!("{fault}"));
        assert_eq!(source.lines_of_code(), 2);
        assert_eq!(paths("#[cfg(test)]\nuse a::{b, c};\nfn d() {}"), ["fn", "d"]);
        assert_eq!(paths("#[cfg(all(test, feature = \"x\"))] fn a() {} fn b() {}"), ["fn", "b"]);
        assert_eq!(paths("#[cfg(not(test))] fn a() {}"), ["cfg", "not", "test", "fn", "a"]);
        assert_eq!(paths("struct A { #[cfg(test)] b: C, d: E }"), ["struct", "A", "d", "E"]);
        assert_eq!(
            paths("#[cfg(test)] const A: B = 1; fn c() {}"),
            ["const", "A", "B", "fn", "c"].split_at(3).1
        );
    }

    #[test]
    fn strings_and_comments_are_not_code() {
        assert_eq!(paths("/// std::time\n// std::io\nfn a() { \"std::net\"; }"), ["doc", "fn", "a"]);
    }

    #[test]
    fn strings_are_blanked_and_comments_kept() {
        let source =
            Source::parse("a.rs", "/// say\nfn a() { \"say\"; /* say */ }").unwrap_or_else(|f| panic!("{f}"));
        assert_eq!(source.text_without_literals(), "/// say\nfn a() {      ; /* say */ }");
    }
}
