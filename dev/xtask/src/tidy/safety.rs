//! Restricts unsafe code to listed files and requires a safety comment.

use crate::tidy::Violation;
use crate::tidy::source::{Source, Token};
use crate::tidy::tree::Tree;

/// Files and folders that may contain unsafe code: vector instructions, the allocators of a program without `std` and
/// of memory tests, the code in the engine and the plain echo that passes memory to io_uring or exposes a mapped file's
/// memory, and the calls of libuv. All other crates forbid unsafe code at their root; the engine and the test kit deny it there and
/// allow it in these files.
const UNSAFE: [&str; 16] = [
    "bindings/node/src/uv.rs",
    "crates/simd/",
    "dev/bare/",
    "dev/bench/src/plain_ring",
    "crates/file/",
    "crates/engine/src/calls.rs",
    "crates/engine/src/ring/appends.rs",
    "crates/engine/src/ring/kernel.rs",
    "crates/engine/src/ring/connect.rs",
    "crates/engine/src/ring/large.rs",
    "crates/engine/src/ring/memory.rs",
    "crates/engine/src/ring/send.rs",
    "crates/engine/src/ring/setup.rs",
    "crates/engine/src/ring/uring.rs",
    "crates/engine/src/spare.rs",
    "dev/testkit/src/allocator.rs",
];

/// Requires that each crate root forbids unsafe code, or that the crate has unsafe code in the listed files
/// only.
pub(super) fn forbidden(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for source in &tree.sources {
        let listed = UNSAFE.iter().any(|allowed| source.path.starts_with(allowed));
        if let Some(dir) = crate_of_root(&source.path) {
            let has_listed = UNSAFE.iter().any(|allowed| allowed.starts_with(&format!("{dir}/")));
            if !has_listed && !forbids(&source.tokens) {
                found.push(Violation::new(&source.path, 1, "a crate root without #![forbid(unsafe_code)]"));
            }
        }
        let code = source.code().map(|place| &source.tokens[place]);
        for token in code.filter(|token| !listed && token.is_name("unsafe")) {
            found.push(Violation::new(&source.path, token.line, "unsafe code in a file that is not listed"));
        }
    }
    found
}

/// Requires a comment on every unsafe block and implementation, with the condition and the code that ensures
/// it.
pub(super) fn explained(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for source in &tree.sources {
        for pair in source.tokens.windows(2) {
            let opens = pair[1].is_open('{') || pair[1].is_name("impl");
            if pair[0].is_name("unsafe") && opens && !is_explained(source, pair[0].line) {
                found.push(Violation::new(&source.path, pair[0].line, "unsafe without a SAFETY comment"));
            }
        }
    }
    found
}

/// Returns the crate's folder for this root file.
fn crate_of_root(path: &str) -> Option<&str> {
    let (dir, file) = path.rsplit_once("/src/")?;
    let is_program = file.strip_prefix("bin/").is_some_and(|name| !name.contains('/'));
    (matches!(file, "lib.rs" | "main.rs") || is_program).then_some(dir)
}

fn forbids(tokens: &[Token]) -> bool {
    tokens.windows(6).any(|window| {
        let [hash, bang, open, forbid, paren, name] = window else { return false };
        hash.is_mark('#')
            && bang.is_mark('!')
            && open.is_open('[')
            && forbid.is_name("forbid")
            && paren.is_open('(')
            && name.is_name("unsafe_code")
    })
}

/// Looks upwards from the line to the comment above the statement: past the same statement's lines and attributes, but
/// not past another statement's end.
fn is_explained(source: &Source, line: usize) -> bool {
    let above: Vec<&str> = source.text.lines().take(line).collect();
    for (index, text) in above.iter().rev().map(|text| text.trim()).enumerate() {
        let comment = text.find("//").map_or("", |start| &text[start..]);
        if comment.contains("SAFETY") {
            return true;
        }
        let code = text[..text.len() - comment.len()].trim();
        let ends_another = code.is_empty() && comment.is_empty() || code.ends_with([';', '}', '{']);
        if index > 0 && ends_another {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tree::tests::tree;

    #[test]
    fn crate_roots_forbid_unsafe_code_which_stays_in_the_listed_files() {
        let mut cases = vec![
            ("crates/a/src/b.rs", "fn a() {}", 0),
            ("crates/simd/src/lib.rs", "fn a() {}", 0),
            ("crates/a/src/b.rs", "fn a() { unsafe { b() } }", 1),
            ("crates/a/src/b.rs", "// unsafe { }\nfn a() { \"unsafe\"; }", 0),
            ("crates/simd/src/b.rs", "fn a() { unsafe { b() } }", 0),
        ];
        for root in ["crates/a/src/lib.rs", "crates/a/src/main.rs", "crates/a/src/bin/b.rs"] {
            let forbidden = "//! A.\n#![forbid(unsafe_code)]\nfn a() {}";
            cases.extend([
                (root, "fn a() {}", 1),
                (root, forbidden, 0),
                (root, "// #![forbid(unsafe_code)]\n", 1),
            ]);
        }
        for (path, text, count) in cases {
            assert_eq!(forbidden(&tree(&[(path, text)])).len(), count, "{path}: {text}");
        }
    }

    #[test]
    fn unsafe_code_must_be_explained() {
        for (text, count) in [
            ("fn a() {\n    unsafe { b() }\n}", 1),
            ("fn a() {\n    // SAFETY: b is fine.\n    unsafe { b() }\n}", 0),
            ("fn a() {\n    // SAFETY: b is\n    // fine.\n    let c =\n        unsafe { b() };\n}", 0),
            ("fn a() {\n    // SAFETY: b is fine.\n    b();\n    unsafe { b() }\n}", 1),
            ("// SAFETY: yes.\nfn a() {\n    unsafe { b() }\n}", 1),
            ("unsafe impl A for B {}", 1),
            ("// SAFETY: B is plain.\nunsafe impl A for B {}", 0),
            ("unsafe fn a() {}", 0),
        ] {
            assert_eq!(explained(&tree(&[("crates/simd/src/a.rs", text)])).len(), count, "{text}");
        }
    }
}
