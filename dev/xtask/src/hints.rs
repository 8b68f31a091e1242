//! Programs that must not compile, and the hint in the compiler's error.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Outcome;
use crate::count::Count;
use crate::features::LIBRARY;
use crate::process;

/// A stream type that the library cannot split.
const SPLIT: &str =
    "pub fn split(ws: sinews::WebSocket<tokio::io::Join<tokio::io::Empty, tokio::io::Sink>>) {
    let _halves = ws.split();
}
";

/// The expected lines of the compiler.
const SPLIT_HINTS: [&str; 2] = ["`split` does not support", "call `split_locked()` instead"];

/// Compiles each program against the library with the feature `tokio` alone.
pub(crate) fn check() -> Outcome {
    let mut command = process::cargo();
    command.args(["check", "--package", LIBRARY, "--lib", "--no-default-features", "--features", "tokio"]);
    command.args(["--message-format", "json"]);
    let built = process::output_of(&mut command).ok_or("the library does not compile")?;
    let said = refusal(&built, "hint-split.rs", SPLIT)?;
    let missing: Vec<_> = SPLIT_HINTS.into_iter().filter(|hint| !said.contains(hint)).collect();
    if missing.is_empty() {
        println!("ok      hint of split");
        return Ok(Count::PASSED);
    }
    println!("FAILED  hint of split: no {missing:?} in\n{said}");
    Ok(Count::FAILED)
}

/// Returns the compiler's error for a program that must not compile.
fn refusal(built: &str, name: &str, program: &str) -> Result<String, String> {
    let file = process::target().join("xtask").join(name);
    std::fs::create_dir_all(file.parent().unwrap_or_else(|| Path::new(".")))
        .map_err(|error| error.to_string())?;
    std::fs::write(&file, program).map_err(|error| format!("{}: {error}", file.display()))?;
    let mut rustc = Command::new("rustc");
    rustc.current_dir(process::root()).args([
        "--edition",
        "2024",
        "--crate-type",
        "lib",
        "--emit",
        "metadata",
    ]);
    rustc.arg("--out-dir").arg(process::target().join("xtask")).arg(&file);
    for library in [LIBRARY, "tokio"] {
        let artifact = artifact(built, library).ok_or_else(|| format!("{library} was not built"))?;
        let directory = artifact.parent().unwrap_or_else(|| Path::new("."));
        rustc.arg("-L").arg(format!("dependency={}", directory.display()));
        rustc.arg("--extern").arg(format!("{library}={}", artifact.display()));
    }
    let output = rustc.output().map_err(|error| format!("rustc: {error}"))?;
    match output.status.success() {
        true => Err(format!("{name} compiles, which it must not")),
        false => Ok(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// The metadata of a library among the messages of cargo.
fn artifact(built: &str, library: &str) -> Option<PathBuf> {
    let messages = built.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let mut artifacts = messages
        .filter(|message| message["reason"] == "compiler-artifact" && message["target"]["name"] == library);
    let files = artifacts.next_back()?["filenames"].as_array()?.clone();
    let mut files = files.iter().filter_map(|file| file.as_str()).map(PathBuf::from);
    files.find(|file| file.extension().is_some_and(|extension| extension == "rmeta"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn artifact_of_a_library_is_found_among_the_messages_of_cargo() {
        let built = "{\"reason\": \"compiler-artifact\", \"target\": {\"name\": \"tokio\"}, \
                     \"filenames\": [\"/t/libtokio.rlib\", \"/t/libtokio-1.rmeta\"]}\nno JSON\n\
                     {\"reason\": \"build-finished\"}";
        assert_eq!(artifact(built, "tokio"), Some(PathBuf::from("/t/libtokio-1.rmeta")));
        assert_eq!(artifact(built, "sinews"), None);
    }
}
