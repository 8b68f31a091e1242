//! Import cycles inside a crate: files that can only be understood together.

use std::collections::{BTreeMap, BTreeSet};

use crate::tidy::Violation;
use crate::tidy::ratchets;
use crate::tidy::source::Source;
use crate::tidy::tree::Tree;

/// Files in one cycle, where the ratchet list names no other bound.
const FILES_MAX: u64 = 4;

/// Top-level modules in one cycle: the files and folders directly in `src`.
const TOP_LEVEL_MAX: u64 = 1;

/// Crates so large that the levels of their modules are limited.
const LEVELED: [&str; 1] = ["hub"];
/// Levels of top-level modules, each above all that it imports. The crate's root is a level more.
const LEVELS_MAX: u64 = 9;

/// Imports that the report names for each pair of top-level modules.
const NAMED_IMPORTS: usize = 3;

/// Modules, by path from the crate's root, with the modules whose items they name.
type Imports<'a> = BTreeMap<Vec<&'a str>, BTreeSet<Vec<&'a str>>>;

/// Names that modules take over with `use`, with the paths that they stand for.
type Uses<'a> = BTreeMap<Vec<&'a str>, Vec<&'a str>>;

/// Measures each product crate's largest cycle.
pub(super) fn cycles(tree: &Tree) -> Vec<Violation> {
    let measures = product_crates(tree).into_iter().map(|(name, sources)| {
        let largest = largest(&imports(&sources));
        (format!("files in the largest import cycle of {name}"), largest as u64)
    });
    ratchets::compare(tree, "files in the largest import cycle", &measures.collect(), FILES_MAX, 0)
}

/// Measures the largest cycle of top-level modules in each product crate.
pub(super) fn top_level(tree: &Tree) -> Vec<Violation> {
    let measures = product_crates(tree).into_iter().map(|(name, sources)| {
        let largest = largest(&by_top_level(&imports(&sources)));
        (format!("top-level modules in the largest import cycle of {name}"), largest as u64)
    });
    ratchets::compare(
        tree,
        "top-level modules in the largest import cycle",
        &measures.collect(),
        TOP_LEVEL_MAX,
        0,
    )
}

/// Measures the levels of the large crates' top-level modules.
pub(super) fn levels(tree: &Tree) -> Vec<Violation> {
    let crates = product_crates(tree).into_iter().filter(|(name, _)| LEVELED.contains(name));
    let measures = crates.map(|(name, sources)| {
        let levels = level_of_each(&by_top_level(&imports(&sources))).into_values().max();
        (format!("levels of top-level modules of {name}"), levels.unwrap_or(0))
    });
    ratchets::compare(tree, "levels of top-level modules", &measures.collect(), LEVELS_MAX, 0)
}

/// Returns the level of each module: one above the highest module that it imports. Modules of a cycle have no order, so
/// the levels rise at most once for each module.
fn level_of_each<'a>(imports: &Imports<'a>) -> BTreeMap<Vec<&'a str>, u64> {
    let mut levels: BTreeMap<_, _> = imports.keys().map(|module| (module.clone(), 1)).collect();
    for _ in imports {
        for (from, to) in imports {
            let below = to.iter().filter_map(|module| levels.get(module)).max().map_or(0, |level| *level);
            levels.insert(from.clone(), below + 1);
        }
    }
    levels
}

/// The imports between top-level modules. The crate's root is left out: it names all modules.
fn by_top_level<'a>(imports: &Imports<'a>) -> Imports<'a> {
    let top = |module: &Vec<&'a str>| module.first().map(|top| vec![*top]);
    let mut modules = Imports::new();
    for (from, to) in imports {
        let Some(own) = top(from) else { continue };
        let others = to.iter().filter_map(top).filter(|other| *other != own);
        modules.entry(own.clone()).or_default().extend(others.collect::<Vec<_>>());
    }
    modules
}

/// Lists each cycle's imports, pairs with the fewest first.
fn top_level_report(imports: &Imports<'_>) -> String {
    let mut text = String::new();
    for modules in components(&by_top_level(imports)).iter().filter(|modules| modules.len() > 1) {
        let mut pairs = BTreeMap::<_, Vec<String>>::new();
        for (from, to) in imports.iter().flat_map(|(from, to)| to.iter().map(move |to| (from, to))) {
            let (Some(own), Some(other)) = (from.first(), to.first()) else { continue };
            if own != other && [own, other].iter().all(|top| modules.contains(&vec![**top])) {
                let import = format!("{} -> {}", from.join("::"), to.join("::"));
                pairs.entry((own, other)).or_default().push(import);
            }
        }
        let mut pairs: Vec<_> = pairs.into_iter().collect();
        pairs.sort_by_key(|(_, named)| named.len());
        text += &format!("{} top-level modules:\n", modules.len());
        for ((own, other), named) in pairs {
            let some = named.iter().take(NAMED_IMPORTS).cloned().collect::<Vec<_>>().join(", ");
            text += &format!("  {} {own} -> {other}: {some}\n", named.len());
        }
    }
    text
}

/// Returns each product crate's files, tests excluded.
fn product_crates(tree: &Tree) -> BTreeMap<&str, Vec<&Source>> {
    let mut crates = BTreeMap::<&str, Vec<&Source>>::new();
    for source in tree.product() {
        if let Some((name, _)) = source.path.strip_prefix("crates/").and_then(|rest| rest.split_once("/src/"))
        {
            crates.entry(name).or_default().push(source);
        }
    }
    crates
}

/// Lists cycles longer than one file or top-level module in a crate under `crates/`, and the imports among them.
pub(super) fn report(tree: &Tree, name: &str) -> Option<String> {
    let imports = imports(product_crates(tree).get(name)?);
    let path = |module: &Vec<&str>| if module.is_empty() { "lib".to_owned() } else { module.join("::") };
    let mut text = String::new();
    for files in components(&imports).iter().filter(|files| files.len() > 1) {
        text += &format!("{} files:\n", files.len());
        for from in files {
            let to: Vec<_> = imports[from].iter().filter(|to| files.contains(*to)).map(path).collect();
            text += &format!("  {} -> {}\n", path(from), to.join(", "));
        }
    }
    Some(text + &top_level_report(&imports))
}

fn largest(imports: &Imports<'_>) -> usize {
    components(imports).first().map_or(0, BTreeSet::len)
}

/// The module that a file is: `src/a/b.rs` and `src/a/b/mod.rs` are `a::b`.
fn module(source: &Source) -> Vec<&str> {
    let inside = source.path.split_once("/src/").map_or("", |(_, inside)| inside).trim_end_matches(".rs");
    let mut parts: Vec<&str> = inside.split('/').collect();
    if parts.last().is_some_and(|last| matches!(*last, "mod" | "lib" | "main")) {
        parts.pop();
    }
    parts
}

fn imports<'a>(sources: &[&'a Source]) -> Imports<'a> {
    let modules: BTreeSet<Vec<&str>> = sources.iter().map(|source| module(source)).collect();
    let mut uses = Uses::new();
    for source in sources {
        let own = module(source);
        for path in source.uses() {
            let name = path.iter().rev().find(|part| **part != "self").copied();
            if let Some((name, path)) = name.zip(absolute(&path, &own, &modules)) {
                uses.insert([&own[..], &[name]].concat(), path);
            }
        }
    }
    let mut imports = Imports::new();
    for source in sources {
        let own = module(source);
        let paths = source.paths().into_iter().filter_map(|(path, _)| absolute(&path, &own, &modules));
        let named = paths.filter_map(|path| home(path, &modules, &uses)).filter(|named| *named != own);
        imports.entry(own.clone()).or_default().extend(named);
    }
    imports
}

/// A path from the crate's root, if it leads into the crate.
fn absolute<'a>(path: &[&'a str], own: &[&'a str], modules: &BTreeSet<Vec<&'a str>>) -> Option<Vec<&'a str>> {
    let (first, rest) = path.split_first()?;
    // Visibility, as in `pub(crate)`, and a lone name, also that of `mod child;`, import nothing.
    if rest.is_empty() || rest.iter().all(|part| *part == "super") {
        return None;
    }
    match *first {
        "crate" => Some(rest.to_vec()),
        "self" => Some([own, rest].concat()),
        "super" => {
            let above = path.iter().take_while(|part| **part == "super").count();
            let base = own.len().checked_sub(above)?;
            Some([&own[..base], &path[above..]].concat())
        }
        // A child: `child::Item`.
        name => modules.contains(&[own, &[name]].concat()).then(|| [own, path].concat()),
    }
}

/// Returns the file that defines the item at this path: names that a module takes over from elsewhere are followed.
fn home<'a>(path: Vec<&'a str>, modules: &BTreeSet<Vec<&'a str>>, uses: &Uses<'a>) -> Option<Vec<&'a str>> {
    let mut path = path;
    // A name is taken over a few times at most; two modules may take over each other's.
    for _ in 0..8 {
        let length = (0..=path.len()).rev().find(|length| modules.contains(&path[..*length]))?;
        let Some(from) = path.get(..=length).and_then(|name| uses.get(name)) else {
            path.truncate(length);
            return Some(path);
        };
        path = [&from[..], &path[length + 1..]].concat();
    }
    None
}

/// Returns the file sets in which each file reaches every other, the largest first.
fn components<'a>(imports: &Imports<'a>) -> Vec<BTreeSet<Vec<&'a str>>> {
    let reached: BTreeMap<_, _> = imports.keys().map(|from| (from, reach(from, imports))).collect();
    let mutual = |from: &Vec<&'a str>| {
        let returns =
            |to: &&Vec<&str>| *to == from || reached.get(*to).is_some_and(|back| back.contains(from));
        let mut files: BTreeSet<_> = reached[from].iter().filter(returns).cloned().collect();
        files.insert(from.clone());
        files
    };
    let mut sets: Vec<_> = imports.keys().map(mutual).collect();
    sets.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
    sets.dedup();
    sets
}

fn reach<'a>(from: &[&'a str], imports: &Imports<'a>) -> BTreeSet<Vec<&'a str>> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from.to_vec()];
    while let Some(next) = open.pop() {
        for to in imports.get(&next).into_iter().flatten() {
            if reached.insert(to.clone()) {
                open.push(to.clone());
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tree::tests::tree;

    fn largest_cycle(files: &[(&str, &str)]) -> usize {
        let paths: Vec<_> =
            files.iter().map(|(path, text)| (format!("crates/a/src/{path}"), *text)).collect();
        let files: Vec<_> = paths.iter().map(|(path, text)| (&**path, *text)).collect();
        let tree = tree(&files);
        largest(&imports(&tree.sources.iter().collect::<Vec<_>>()))
    }

    #[test]
    fn cycles_are_found_through_any_kind_of_path() {
        let down = [("lib.rs", "mod a; mod b;"), ("a.rs", "use crate::b::B;"), ("b.rs", "struct B;")];
        assert_eq!(largest_cycle(&down), 1);
        let round = [
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "fn f() { super::c::g() }"),
            ("c.rs", "use super::a::*;"),
        ];
        assert_eq!(largest_cycle(&round), 3);
        let parent = [("a.rs", "mod c; use self::c::C;"), ("a/c.rs", "use super::A;")];
        assert_eq!(largest_cycle(&parent), 2);
        let child = [("a.rs", "mod c; fn f() { c::g() }"), ("a/c.rs", "use crate::a::A;")];
        assert_eq!(largest_cycle(&child), 2);
        assert_eq!(largest_cycle(&[("a.rs", "mod c;"), ("a/c.rs", "use crate::a::A;")]), 1);
        let root =
            [("lib.rs", "pub use a::A; pub use b::B;"), ("a.rs", "use crate::B;"), ("b.rs", "use std::io;")];
        assert_eq!(largest_cycle(&root), 1);
    }

    #[test]
    fn five_files_are_too_many() {
        let files: Vec<_> = (0..5)
            .map(|at| (format!("crates/a/src/m{at}.rs"), format!("use crate::m{0}::Item{0};", (at + 1) % 5)))
            .collect();
        let files: Vec<_> = files.iter().map(|(path, text)| (&**path, &**text)).collect();
        let found = cycles(&tree(&files));
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].what, "files in the largest import cycle of a is 5, 4 at most");
    }

    #[test]
    fn top_level_modules_that_import_each_other_through_several_files_are_a_cycle() {
        let files = [
            ("crates/a/src/lib.rs", "mod b; mod c; use b::B; use c::C;"),
            ("crates/a/src/b.rs", "mod d; pub use self::d::B;"),
            ("crates/a/src/b/d.rs", "use crate::c::C;"),
            ("crates/a/src/c.rs", "mod e;"),
            ("crates/a/src/c/e.rs", "use crate::b::X;"),
            ("crates/a/src/f.rs", "use crate::b::B;"),
        ];
        let tree = tree(&files);
        assert!(cycles(&tree).is_empty());
        let found = top_level(&tree);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].what, "top-level modules in the largest import cycle of a is 2, 1 at most");
        let expected = "2 top-level modules:\n  1 b -> c: b::d -> c\n  1 c -> b: c::e -> b\n";
        assert_eq!(report(&tree, "a").as_deref(), Some(expected));
    }

    #[test]
    fn ten_levels_are_too_many() {
        let chain = |count: usize| {
            let file = |at: usize| {
                (format!("crates/hub/src/m{at}.rs"), format!("use crate::m{0}::Item{0};", at + 1))
            };
            let files: Vec<_> = (0..count).map(file).collect();
            let files: Vec<_> = files.iter().map(|(path, text)| (&**path, &**text)).collect();
            levels(&tree(&files))
        };
        assert!(chain(9).is_empty());
        assert_eq!(chain(10)[0].what, "levels of top-level modules of hub is 10, 9 at most");
    }

    #[test]
    fn report_lists_files_and_imports_of_each_cycle() {
        let files = [
            ("crates/a/src/b.rs", "use crate::c::C; use crate::d::D;"),
            ("crates/a/src/c.rs", "use crate::b::B;"),
            ("crates/a/src/d.rs", ""),
        ];
        let tree = tree(&files);
        let expected =
            "2 files:\n  b -> c\n  c -> b\n2 top-level modules:\n  1 b -> c: b -> c\n  1 c -> b: c -> b\n";
        assert_eq!(report(&tree, "a").as_deref(), Some(expected));
        assert_eq!(report(&tree, "unknown"), None);
    }
}
