//! Script in a page that records notes, for checks to wait for.

use serde_json::Value;

use crate::{
    host::{Failure, until},
    webdriver::Session,
};

/// Runs script that may wait; its calls of `note` can be awaited.
pub(crate) fn run(session: &Session<'_>, script: &str) -> Result<(), Failure> {
    let wrapped = format!(
        "window.notes ??= []; window.note = (words) => notes.push(words);
         (async () => {{ {script} }})().catch((error) => note('threw ' + error));"
    );
    session.script(&wrapped, &[]).map(drop)
}

/// Returns the recorded notes.
pub(crate) fn all(session: &Session<'_>) -> Result<Vec<String>, Failure> {
    let Value::Array(notes) = session.script("return window.notes", &[])? else {
        return Ok(Vec::new());
    };
    Ok(notes.iter().filter_map(|note| note.as_str().map(str::to_owned)).collect())
}

/// Waits until this note is recorded.
pub(crate) fn until_noted(session: &Session<'_>, words: &str) -> Result<(), Failure> {
    let noted =
        until(&format!("the page notes {words:?}"), || Ok(all(session)?.iter().any(|note| note == words)));
    noted.map_err(|failure| {
        Failure::new(format!("{failure}; it noted {:?}", all(session).unwrap_or_default()))
    })
}
