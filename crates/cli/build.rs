//! Passes the target and, to release builds, the commit to the compiler: `sinews --version` prints them.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=SINEWS_COMMIT");
    println!("cargo::rustc-env=SINEWS_TARGET={}", std::env::var("TARGET").unwrap_or_default());
    println!("cargo::rustc-env=SINEWS_COMMIT={}", commit());
}

/// `SINEWS_COMMIT`, else the commit of the checkout. A debug build leaves it out, so that a commit does not make it stale.
fn commit() -> String {
    if let Ok(commit) = std::env::var("SINEWS_COMMIT") {
        return commit;
    }
    if std::env::var("PROFILE").is_ok_and(|profile| profile == "debug") {
        return "debug build".to_owned();
    }
    for path in ["HEAD", "packed-refs"].into_iter().map(str::to_owned).chain(git(&["symbolic-ref", "HEAD"])) {
        if let Some(path) = git(&["rev-parse", "--git-path", &path]) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    git(&["log", "-1", "--format=%h of %cs"]).unwrap_or_else(|| "unknown commit".to_owned())
}

fn git(arguments: &[&str]) -> Option<String> {
    let output =
        Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}
