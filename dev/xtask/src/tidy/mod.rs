//! The rules beyond the compiler and clippy.
//!
//! Each rule is a function from the file tree to its violations, and has a test that plants a violation and finds it.
//! The rules read tokens, not text, where comments and strings could mislead them.

mod commits;
mod cycles;
mod duplicates;
mod errors;
mod layers;
mod leftovers;
mod lengths;
mod links;
mod manifests;
mod names;
mod parameters;
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

const RULES: [(&str, Rule); 26] = [
    ("every Rust file is read", tree::unreadable),
    ("functions fit a screen", lengths::functions),
    ("files are short", lengths::files),
    ("files of tests are short", lengths::test_files),
    ("scripts are short", lengths::scripts),
    ("layers do not know what is above them", layers::layers),
    ("unsafe code is forbidden except where listed", safety::forbidden),
    ("unsafe blocks say why they are sound", safety::explained),
    ("nothing is left unfinished", leftovers::markers),
    ("examples run", leftovers::ignored_examples),
    ("no path of one machine", leftovers::machine_paths),
    ("dependencies are declared in one place", manifests::inherited),
    ("dependencies are justified", manifests::justified),
    ("import cycles are small", cycles::cycles),
    ("top-level modules import downward", cycles::top_level),
    ("top-level modules have few levels", cycles::levels),
    ("code is not written twice", duplicates::duplicates),
    ("comments and documents name things", words::pronouns),
    ("comments have few genitives", words::genitives),
    ("a type name is defined once", names::types),
    ("functions are named by their result", names::functions),
    ("each help text stands alone", names::help),
    ("errors of public functions have a type", errors::texts),
    ("parameters have names", parameters::tuples),
    ("links lead somewhere", links::links),
    ("the book lists its pages", links::pages),
];

/// A violation's place and description.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Violation {
    path: String,
    line: usize,
    what: String,
    fix: Option<Fix>,
}

/// A change to a violation's line that needs no judgment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fix {
    /// The bound at the line's end becomes this one.
    Lower(u64),
    Remove,
}

impl Violation {
    fn new(path: &str, line: usize, what: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, what: what.into(), fix: None }
    }

    /// A list's entry is out of date.
    fn outdated(path: &str, line: usize, what: impl Into<String>, fix: Fix) -> Self {
        Self { fix: Some(fix), ..Self::new(path, line, what) }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

/// Prints a product crate's import cycles.
pub(crate) fn print_cycles(name: &str) -> Outcome {
    let tree = Tree::read(&process::root())?;
    let report = cycles::report(&tree, name).ok_or_else(|| format!("`crates/{name}` has no Rust source"))?;
    print!("{report}");
    Ok(Count::default())
}

/// Prints the product crates' code that occurs twice.
pub(crate) fn print_duplicates() -> Outcome {
    print!("{}", duplicates::report(&Tree::read(&process::root())?));
    Ok(Count::default())
}

/// Lowers the bounds for all measures that have fallen, and removes those that are no longer needed.
pub(crate) fn lower() -> Outcome {
    let root = process::root();
    let tree = Tree::read(&root)?;
    let violations: Vec<Violation> = RULES.iter().flat_map(|(_, rule)| rule(&tree)).collect();
    let text = ratchets::lowered(tree.file(ratchets::RATCHETS).unwrap_or_default(), &violations);
    process::write(&root.join(ratchets::RATCHETS), text)?;
    run()
}

/// Applies every rule to the repository; counts rules.
pub(crate) fn run() -> Outcome {
    let root = process::root();
    let tree = Tree::read(&root)?;
    let count: Count = RULES.iter().map(|(name, rule)| print(name, &rule(&tree))).sum();
    let named = match commits::history(&root) {
        Ok(history) => print("commits that documents name exist", &commits::commits(&tree, &history)),
        Err(why) => Count::skip(format!("commits that documents name: {why}")),
    };
    let packages = manifests::program_packages()?;
    Ok(count + named + print("the program has few packages", &manifests::few(&packages)))
}

fn print(name: &str, violations: &[Violation]) -> Count {
    println!("{} {name}", if violations.is_empty() { "ok  " } else { "FAIL" });
    for violation in violations {
        println!("     {violation}");
    }
    Count::of(violations.is_empty())
}
