//! `sinews nodes`.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use sinews_hub::{ClusterNode, ClusterOptions, observe_nodes};
use sinews_server::escape::{escape_json, escape_line};

/// Time limit for the broker login.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Arguments of `sinews nodes`.
#[derive(Clone, Debug, Args)]
pub(crate) struct NodesArgs {
    /// Broker of the cluster, as in `sinews serve --cluster`: nats://host:4222, redis://host,
    /// redis+sentinel://host,host/SERVICE or redis+cluster://host,host, and ?prefix=NAME
    #[arg(value_name = "URL", env = "SINEWS_CLUSTER_URL", hide_env_values = true)]
    cluster: String,

    /// File with the password of the broker's user
    #[arg(long, value_name = "FILE", env = "SINEWS_CLUSTER_PASSWORD_FILE")]
    password_file: Option<PathBuf>,

    /// Write one JSON object per node
    #[arg(long)]
    json: bool,
}

/// Lists a cluster's living nodes.
pub(crate) fn run(args: &NodesArgs) -> Result<(), String> {
    let mut options = ClusterOptions::parse(&args.cluster).map_err(|error| format!("URL: {error}"))?;
    if let Some(path) = &args.password_file {
        options.check_password().map_err(|error| format!("--password-file: {error}"))?;
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|error| format!("--password-file: {}: {error}", path.display()))?;
        options = options.with_password(text.trim_end_matches(['\r', '\n']));
    }
    let nodes = observe_nodes(&options, TIMEOUT).map_err(|error| error.to_string())?;
    let text = if args.json { lines(&nodes) } else { table(&nodes) };
    io::stdout().lock().write_all(text.as_bytes()).map_err(|error| format!("standard output: {error}"))
}

fn lines(nodes: &[ClusterNode]) -> String {
    nodes.iter().map(|node| format!("{}\n", escape_json(&node.to_json().to_string()))).collect()
}

fn table(nodes: &[ClusterNode]) -> String {
    let names: Vec<String> = nodes.iter().map(|node| escape_line(&node.name)).collect();
    let width = names.iter().map(|name| name.chars().count()).chain([4]).max().unwrap_or(4);
    let mut table = format!(
        "{:<width$}  {:<32}  {:<10}  {:>9}  {:>11}  {:>9}  {:>9}  {}\n",
        "NAME", "ID", "VERSION", "UPTIME", "CONNECTIONS", "USERS", "TOPICS", "STORE"
    );
    for (node, name) in nodes.iter().zip(&names) {
        let ClusterNode { id, version, connections, users, topics, .. } = node;
        let (id, version, uptime) = (escape_line(id), escape_line(version), uptime(node.uptime));
        let store = escape_line(engine(node));
        let away = if node.store_away { ", away" } else { "" };
        table.push_str(&format!(
            "{name:<width$}  {id:<32}  {version:<10}  {uptime:>9}  {connections:>11}  {users:>9}  {topics:>9}  \
             {store}{away}\n"
        ));
    }
    let stores: BTreeSet<&str> = nodes.iter().map(|node| &*node.store).filter(|it| !it.is_empty()).collect();
    for store in stores {
        table.push_str(&format!("topic store {}\n", escape_line(store)));
    }
    if nodes.is_empty() {
        table.push_str("no node\n");
    }
    table
}

/// The name of a topic store.
fn engine(node: &ClusterNode) -> &str {
    match node.store.split_once(':') {
        Some((engine, _)) => engine,
        None => "none",
    }
}

fn uptime(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h{:02}m", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uptime_has_two_units() {
        let texts = [5, 65, 3_720, 180_000].map(uptime);
        assert_eq!(texts, ["5s", "1m05s", "1h02m", "2d02h"]);
    }

    #[test]
    fn names_of_nodes_cannot_control_the_terminal() {
        let mut node = ClusterNode::default();
        (node.name, node.version) = ("a\x1b[2J\u{9b}m\r\nfake".to_owned(), "1\x07".to_owned());
        "a\x1b: b\r\nc".clone_into(&mut node.store);
        for shown in [table(&[node.clone()]), lines(&[node])] {
            assert!(!shown.chars().any(|char| char.is_control() && char != '\n'), "{shown:?}");
            assert!(shown.lines().count() <= 3, "{shown:?}");
        }
    }

    #[test]
    fn each_store_and_its_promises_are_named_once() {
        let mut nodes = [(); 4].map(|()| ClusterNode::default());
        for node in &mut nodes[..2] {
            "redis: exact conditions".clone_into(&mut node.store);
        }
        nodes[1].store_away = true;
        "nats: no shared rates".clone_into(&mut nodes[2].store);
        let table = table(&nodes);
        let lines: Vec<&str> = table.lines().collect();
        let ends = ["  STORE", "  redis", "  redis, away", "  nats", "  none"];
        assert!(lines.iter().zip(ends).all(|(line, end)| line.ends_with(end)), "{table}");
        assert_eq!(lines[5..], ["topic store nats: no shared rates", "topic store redis: exact conditions"]);
    }

    #[test]
    fn table_has_a_line_if_there_is_no_node() {
        assert!(table(&[]).ends_with("STORE\nno node\n"));
    }
}
