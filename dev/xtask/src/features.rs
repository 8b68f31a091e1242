//! The library features that can be built here.

use std::env;
use std::process::Command;

use crate::process;

/// The crate that has the features.
const LIBRARY: &str = "sinews";

/// The only feature with a system dependency.
pub(crate) const NATIVE_TLS: &str = "native-tls";

/// How to install it.
const NO_OPENSSL: &str = "native-tls: no headers of OpenSSL (apt-get install libssl-dev pkg-config)";

/// Returns the reason if some library features cannot be built here.
pub(crate) fn lacking() -> Option<&'static str> {
    let has_own = !cfg!(target_os = "linux") || env::var_os("OPENSSL_DIR").is_some();
    let is_found =
        || process::output_of(Command::new("pkg-config").args(["--modversion", "openssl"])).is_some();
    (!has_own && !is_found()).then_some(NO_OPENSSL)
}

/// Returns arguments for all library features that can be built here.
pub(crate) fn all() -> Result<Vec<String>, String> {
    if lacking().is_none() {
        return Ok(vec!["--all-features".to_owned()]);
    }
    let names = buildable()?.join(",");
    Ok(vec!["--no-default-features".to_owned(), "--features".to_owned(), names])
}

/// Returns the same features as `--features` for the whole workspace.
pub(crate) fn of_workspace() -> Result<String, String> {
    let names = buildable()?.into_iter().map(|name| format!("{LIBRARY}/{name}"));
    Ok(names.collect::<Vec<_>>().join(","))
}

/// Returns the manifest's features except `default`, which is only a choice.
fn buildable() -> Result<Vec<String>, String> {
    let lacks = lacking().is_some();
    let packages = process::packages()?;
    let package = packages.iter().find(|package| package["name"] == LIBRARY);
    let features = package.and_then(|package| package["features"].as_object());
    let features = features.ok_or_else(|| format!("cargo metadata has no features of {LIBRARY}"))?;
    let is_buildable = |name: &&String| *name != "default" && !(lacks && *name == NATIVE_TLS);
    Ok(features.keys().filter(is_buildable).cloned().collect())
}
