//! The files in `deploy/` name metrics, variables and settings that the program has.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::config::Directory;
use crate::support::{Running, program};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The text files below a folder, with their paths.
fn files(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push((path.clone(), fs::read_to_string(path).unwrap()));
        }
    }
    found
}

/// The words of a text that begin with one of the prefixes.
fn words<'a>(text: &'a str, prefixes: &'a [&str]) -> impl Iterator<Item = &'a str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| prefixes.iter().any(|prefix| word.len() > prefix.len() && word.starts_with(prefix)))
}

/// The names of a server's samples: of each metric, and those of its kind.
fn names(metrics: &str) -> BTreeSet<String> {
    let types = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let names = types.flat_map(|(name, kind)| {
        let endings: &[&str] = match kind {
            "counter" => &["_total"],
            "histogram" => &["_bucket", "_count", "_sum"],
            _ => &[""],
        };
        endings.iter().map(move |ending| format!("{name}{ending}"))
    });
    names.collect()
}

/// The expressions of a dashboard's panels.
fn expressions(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get("expr").and_then(Value::as_str).map(str::to_owned));
            fields.values().for_each(|field| expressions(field, found));
        }
        Value::Array(list) => list.iter().for_each(|entry| expressions(entry, found)),
        _ => {}
    }
}

/// `label="value"` of the selectors of a metric in a text, without those that Prometheus adds.
fn matchers(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (before, rest) in text.match_indices('{').map(|(at, _)| (&text[..at], &text[at + 1..])) {
        let name = before.rsplit(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default();
        let inside = rest.split('}').next().unwrap_or_default();
        if name.starts_with("sinews_") {
            let parts = inside.split(',').map(|part| part.replace("!=", "="));
            let parts = parts.filter(|part| !part.starts_with("job") && !part.starts_with("instance"));
            found.extend(parts.map(|part| (name.to_owned(), part)));
        }
    }
    found
}

#[test]
fn dashboard_and_alerts_name_metrics_of_the_server() {
    let directory = Directory::new();
    let server = Running::serve(&["--streams", &directory.path("streams")]);
    server.request("POST /streams/orders HTTP/1.1", "a record");
    let metrics = server.get("/metrics");
    let mut known = names(&metrics);
    // A broker adds these.
    let source = read("crates/hub/src/health.rs");
    known.extend(words(&source, &["sinews_store_"]).map(str::to_owned));
    known.insert("sinews_store_refused_total".to_owned());

    let dashboard: Value = serde_json::from_str(&read("deploy/grafana/sinews.json")).unwrap();
    let mut shown = Vec::new();
    expressions(&dashboard, &mut shown);
    assert!(shown.len() > 20, "{} expressions", shown.len());
    let alerts = read("deploy/prometheus/alerts.yaml");
    assert!(alerts.matches("expr:").count() > 10);
    for text in shown.iter().chain([&alerts]) {
        for name in words(text, &["sinews_", "process_"]) {
            assert!(known.contains(name), "{name} in {text:.200} is no metric");
        }
    }
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(ids.len(), panels.len(), "ids are unique");
    for (name, label) in matchers(&alerts) {
        let is_sample = |line: &str| line.starts_with(&format!("{name}{{")) && line.contains(&label);
        assert!(metrics.lines().any(is_sample), "{name} has no {label}");
    }
}

#[test]
fn variables_of_deployments_are_settings() {
    let output = program().args(["serve", "--help"]).output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let mut known: BTreeSet<_> = words(&help, &["SINEWS_"]).collect();
    // Arguments of the image's build.
    known.extend(["SINEWS_COMMIT", "SINEWS_FEATURES"]);
    let mut named = 0;
    let image = (root().join("Dockerfile"), read("Dockerfile"));
    for (path, text) in files(&root().join("deploy")).into_iter().chain([image]) {
        for name in words(&text, &["SINEWS_"]) {
            assert!(known.contains(name), "{}: {name} is no setting", path.display());
            named += 1;
        }
    }
    assert!(named > 10, "{named} variables");
}

#[test]
fn default_configuration_of_the_chart_is_valid() {
    let values = read("deploy/chart/sinews/values.yaml");
    let block = values.split_once("\nconfig: |\n").unwrap().1;
    let lines = block.lines().take_while(|line| line.is_empty() || line.starts_with("  "));
    let config: Vec<_> = lines.map(|line| line.strip_prefix("  ").unwrap_or_default()).collect();
    assert!(config.len() > 2, "{config:?}");
    let directory = Directory::new();
    let file = directory.write("sinews.toml", &config.join("\n"));
    let output = program().args(["config", "check", &file]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
