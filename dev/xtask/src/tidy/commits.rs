//! Commits that documents name: a reader must be able to find each in the history.

use std::path::Path;
use std::process::Command;

use crate::process;
use crate::tidy::Violation;
use crate::tidy::tree::Tree;

/// Digits in a short name, as git prints it, and in a whole one.
const DIGITS: std::ops::RangeInclusive<usize> = 7..=40;

/// All commits of the checkout's history, sorted; or why they are not known.
pub(super) fn history(root: &Path) -> Result<Vec<String>, String> {
    let git = |arguments: &[&str]| process::output_of(Command::new("git").args(arguments).current_dir(root));
    match git(&["rev-parse", "--is-shallow-repository"]).as_deref().map(str::trim) {
        Some("false") => {}
        Some(_) => return Err("the history is shallow (git fetch --unshallow)".to_owned()),
        None => return Err("no history: not a git checkout, or no git".to_owned()),
    }
    let names = git(&["rev-list", "HEAD"]).ok_or("git rev-list failed")?;
    let mut names: Vec<String> = names.lines().map(str::to_owned).collect();
    names.sort_unstable();
    Ok(names)
}

/// Compares the commits that documents name with a sorted history.
pub(super) fn commits(tree: &Tree, history: &[String]) -> Vec<Violation> {
    let mut found = Vec::new();
    for (path, text) in tree.files.iter().filter(|(path, _)| path.ends_with(".md")) {
        for (index, line) in text.lines().enumerate() {
            for name in named(line) {
                // The first entry that does not sort before a prefix is the one that may begin with it.
                let place = history.partition_point(|commit| commit.as_str() < name);
                if !history.get(place).is_some_and(|commit| commit.starts_with(name)) {
                    found.push(Violation::new(path, index + 1, format!("no commit {name} in the history")));
                }
            }
        }
    }
    found
}

/// Names of commits in a line. A number is none unless "commit" precedes it.
fn named(line: &str) -> Vec<&str> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let words: Vec<&str> = line.split(|c| !is_word(c)).filter(|word| !word.is_empty()).collect();
    let is_name = |place: &usize| {
        let word = words[*place];
        let is_announced = *place > 0 && words[*place - 1].eq_ignore_ascii_case("commit");
        let has_both =
            word.contains(|c: char| c.is_ascii_digit()) && word.contains(|c: char| c.is_ascii_lowercase());
        let is_hexadecimal = word.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f'));
        DIGITS.contains(&word.len()) && is_hexadecimal && (has_both || is_announced)
    };
    (0..words.len()).filter(is_name).map(|place| words[place]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tree::tests::tree;

    #[test]
    fn commits_are_told_from_numbers_and_words() {
        assert_eq!(
            named("commit `d257aa7`, of `5e749af`; commit 1234567"),
            ["d257aa7", "5e749af", "1234567"]
        );
        assert_eq!(named("1073741824 deadbee 0x1f2e3d4c5b 88 1b 12ab x1234abc"), [""; 0]);
        let long = "5e749af".repeat(6);
        assert_eq!(named(&long[..40]), [&long[..40]]);
        assert_eq!(named(&long), [""; 0]);
    }

    #[test]
    fn a_commit_outside_of_the_history_is_found() {
        let history = ["1a2b3c4d".repeat(5), "5e749af0".repeat(5)];
        let text = "measured at 5e749af0\nand at 5e749af1, commit `1a2b3c4`\n";
        let found = commits(&tree(&[("docs/a.md", text), ("a.rs", "// 5e749af1\n")]), &history);
        assert_eq!(found, [Violation::new("docs/a.md", 2, "no commit 5e749af1 in the history")]);
        assert_eq!(commits(&tree(&[("docs/a.md", "ffff1111")]), &history).len(), 1);
    }

    #[test]
    fn a_folder_without_history_says_so() {
        assert!(history(Path::new("/")).is_err_and(|why| why.starts_with("no history")));
    }
}
