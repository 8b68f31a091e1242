//! `sinews nodes`.

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
    nodes
        .iter()
        .map(|node| {
            let ClusterNode { id, name, version, uptime, connections, users, topics, .. } = node;
            let line = serde_json::json!({
                "id": id, "name": name, "version": version, "uptime": uptime, "connections": connections,
                "users": users, "topics": topics,
            });
            format!("{}\n", escape_json(&line.to_string()))
        })
        .collect()
}

fn table(nodes: &[ClusterNode]) -> String {
    let names: Vec<String> = nodes.iter().map(|node| escape_line(&node.name)).collect();
    let width = names.iter().map(|name| name.chars().count()).chain([4]).max().unwrap_or(4);
    let mut table = format!(
        "{:<width$}  {:<32}  {:<10}  {:>9}  {:>11}  {:>9}  {:>9}\n",
        "NAME", "ID", "VERSION", "UPTIME", "CONNECTIONS", "USERS", "TOPICS"
    );
    for (node, name) in nodes.iter().zip(&names) {
        let ClusterNode { id, version, connections, users, topics, .. } = node;
        let (id, version, uptime) = (escape_line(id), escape_line(version), uptime(node.uptime));
        table.push_str(&format!(
            "{name:<width$}  {id:<32}  {version:<10}  {uptime:>9}  {connections:>11}  {users:>9}  {topics:>9}\n"
        ));
    }
    if nodes.is_empty() {
        table.push_str("no node\n");
    }
    table
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
        for shown in [table(&[node.clone()]), lines(&[node])] {
            assert!(!shown.chars().any(|char| char.is_control() && char != '\n'), "{shown:?}");
            assert!(shown.lines().count() <= 2, "{shown:?}");
        }
    }

    #[test]
    fn table_has_a_line_if_there_is_no_node() {
        assert!(table(&[]).ends_with("TOPICS\nno node\n"));
    }
}
