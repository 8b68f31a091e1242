//! Links in documents: each leads to a file, a folder or a heading in the repository; the book lists each page.

use std::collections::{BTreeMap, BTreeSet};

use crate::tidy::Violation;
use crate::tidy::tree::Tree;

const BOOK: &str = "docs/book/src/";
const SUMMARY: &str = "SUMMARY.md";

/// Follows all documents' relative links and anchors.
pub(super) fn links(tree: &Tree) -> Vec<Violation> {
    let documents = || tree.files.iter().filter(|(path, _)| path.ends_with(".md"));
    let anchors: BTreeMap<&str, BTreeSet<String>> =
        documents().map(|(path, text)| (path.as_str(), anchors(text))).collect();
    let mut found = Vec::new();
    for (path, text) in documents() {
        for (target, line) in targets(text) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = if file.is_empty() { Some(path.clone()) } else { resolve(path, file) };
            let Some(file) = file.filter(|file| tree.has(file)) else {
                found.push(Violation::new(path, line, format!("{target} leads to no file")));
                continue;
            };
            let has_anchor = |anchors: &BTreeSet<String>| anchor.is_empty() || anchors.contains(anchor);
            if !anchors.get(file.as_str()).is_none_or(has_anchor) {
                found.push(Violation::new(path, line, format!("{target} leads to no heading")));
            }
        }
    }
    found
}

/// Compares the book's pages with its table of contents.
pub(super) fn pages(tree: &Tree) -> Vec<Violation> {
    let summary = format!("{BOOK}{SUMMARY}");
    let listed: BTreeSet<String> = targets(tree.file(&summary).unwrap_or_default())
        .into_iter()
        .filter_map(|(target, _)| resolve(&summary, target))
        .collect();
    let pages = tree.files.iter().map(|(path, _)| path);
    let pages = pages.filter(|path| path.starts_with(BOOK) && path.ends_with(".md") && **path != summary);
    pages
        .filter(|path| !listed.contains(*path))
        .map(|path| Violation::new(path, 1, format!("{summary} does not list this page")))
        .collect()
}

/// Returns a relative path from a document's folder, without `.` and `..`; `None` above the root.
fn resolve(document: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = document.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// Returns link targets within the repository, with their lines.
fn targets(text: &str) -> Vec<(&str, usize)> {
    let mut targets = Vec::new();
    for (line, number) in prose(text) {
        let mut parts = line.split('`').step_by(2).collect::<Vec<_>>();
        // `[ref]: target`
        if let Some((_, target)) = line.strip_prefix('[').and_then(|rest| rest.split_once("]: ")) {
            parts.clear();
            targets.push((target, number));
        }
        // Code within a link's text splits it; its target is behind the last part.
        for part in parts {
            targets
                .extend(part.split("](").skip(1).filter_map(|rest| Some((rest.split_once(')')?.0, number))));
        }
    }
    let target = |text: &str| text.find(char::is_whitespace).unwrap_or(text.len());
    let targets = targets.into_iter().map(|(text, line)| (&text[..target(text)], line));
    targets.filter(|(text, _)| !text.contains(':') && !text.is_empty()).collect()
}

/// Returns the lines outside code blocks, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (&str, usize)> {
    let mut is_code = false;
    text.lines().zip(1..).filter(move |(line, _)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// Returns the names by which links reach a document's headings: GitHub's, which are mdbook's too.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut seen = BTreeMap::<String, usize>::new();
    let mut anchors = BTreeSet::new();
    for (line, _) in prose(text) {
        let Some((_, heading)) = line.split_once("# ").filter(|(marks, _)| marks.chars().all(|c| c == '#'))
        else {
            continue;
        };
        let name = slug(heading);
        let count = seen.entry(name.clone()).or_default();
        anchors.insert(if *count == 0 { name } else { format!("{name}-{count}") });
        *count += 1;
    }
    anchors
}

fn slug(heading: &str) -> String {
    let mut text = String::new();
    let mut rest = heading.trim();
    // A link in a heading counts with its text only.
    while let Some((before, link)) = rest.split_once('[') {
        let Some((shown, after)) =
            link.split_once("](").and_then(|(shown, target)| Some((shown, target.split_once(')')?.1)))
        else {
            break;
        };
        text.extend([before, shown]);
        rest = after;
    }
    text.push_str(rest);
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | ' '));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tree::tests::tree;

    fn found(text: &str) -> Vec<String> {
        let other = "# One thing\n## `b` and [c](d.md)\n## One thing\n";
        let tree =
            tree(&[("docs/a.md", text), ("docs/b/other.md", other), ("docs/b/d.md", ""), ("docs/d.md", "")]);
        links(&tree).into_iter().map(|violation| violation.to_string()).collect()
    }

    #[test]
    fn links_lead_to_files_folders_and_headings() {
        let text = "# Top\n[a](b/other.md#b-and-c) [b](#top) [c](./b) [d](https://x.y/z) ![e](d.md \"title\")\n\
            [`f`](b/other.md#one-thing-1)\n[g]: ../docs/d.md\n```\n[h](gone.md)\n```\n`[i](gone.md)`\n";
        assert_eq!(found(text), [""; 0]);
        assert_eq!(found("\n[a](gone.md)"), ["docs/a.md:2: gone.md leads to no file"]);
        assert_eq!(found("[`a`](../../above.md)"), ["docs/a.md:1: ../../above.md leads to no file"]);
        assert_eq!(found("[a](b/other.md#two)"), ["docs/a.md:1: b/other.md#two leads to no heading"]);
        assert_eq!(found("[g]: gone.md").len(), 1);
    }

    #[test]
    fn a_page_outside_of_the_contents_is_found() {
        let files = [
            ("docs/book/src/SUMMARY.md", "* [A](start/a.md)\n"),
            ("docs/book/src/start/a.md", ""),
            ("docs/book/src/start/b.md", ""),
        ];
        let found = pages(&tree(&files));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].path, "docs/book/src/start/b.md");
    }
}
