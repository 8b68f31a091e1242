//! The rules beyond the compiler and clippy.
//!
//! Each rule is a function from the tree of files to its violations, and has a test that plants a violation
//! and finds it. The rules read tokens instead of text where comments and strings could mislead them.

mod cycles;
mod layers;
mod leftovers;
mod lengths;
mod manifests;
mod names;
mod ratchets;
mod safety;
mod source;
mod tree;
mod words;

use std::fmt;

use crate::Outcome;
use crate::count::Count;
use crate::process;
use crate::tidy::tree::Tree;

type Rule = fn(&Tree) -> Vec<Violation>;

const RULES: [(&str, Rule); 15] = [
    ("every Rust file is read", tree::unreadable),
    ("functions fit a screen", lengths::functions),
    ("files are short", lengths::files),
    ("layers do not know what is above them", layers::layers),
    ("unsafe code is forbidden except where listed", safety::forbidden),
    ("unsafe blocks say why they are sound", safety::explained),
    ("nothing is left unfinished", leftovers::markers),
    ("examples run", leftovers::ignored_examples),
    ("no path of one machine", leftovers::machine_paths),
    ("dependencies are declared in one place", manifests::inherited),
    ("dependencies are justified", manifests::justified),
    ("import cycles are small", cycles::cycles),
    ("comments and documents name things", words::pronouns),
    ("a type name is defined once", names::types),
    ("each help text stands alone", names::help),
];

/// Place and description of a violation.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Violation {
    path: String,
    line: usize,
    what: String,
}

impl Violation {
    fn new(path: &str, line: usize, what: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, what: what.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

/// Applies every rule to the repository; counts rules.
pub(crate) fn run() -> Outcome {
    let tree = Tree::read(&process::root())?;
    let mut count = Count::default();
    for (name, rule) in RULES {
        let violations = rule(&tree);
        count = count + Count::of(violations.is_empty());
        println!("{} {name}", if violations.is_empty() { "ok  " } else { "FAIL" });
        for violation in violations {
            println!("     {violation}");
        }
    }
    Ok(count)
}
