//! The summary on the terminal.

use super::super::plan::{LoadMode, LoadPlan};
use super::super::result::{LoadResult, PERCENTILES, SystemCalls};
use super::units::{bytes, count, nanos};
use crate::url::shown_url;

pub(crate) fn summary(plan: &LoadPlan, outcome: &LoadResult) -> String {
    let mut lines = vec![format!("{} ({})", shown_url(&plan.target.url), load(plan, outcome))];
    // Figures from a run with errors are read with their reason.
    for (kind, number) in &outcome.tally.errors {
        let example = outcome.tally.examples.get(kind).map_or("", String::as_str);
        lines.push(format!("  {number} × {}: {example}", kind.name()));
    }
    if !outcome.has_figures(plan) {
        lines.push("  no figures: no message was answered during the measurement".to_owned());
        return lines.join("\n");
    }
    lines.extend(rows(plan, outcome).into_iter().map(|(name, value)| format!("  {name:<22} {value}")));
    let histogram = &outcome.tally.latency;
    if !histogram.is_empty() {
        lines.push(String::new());
        let mut cells = vec![("min", histogram.min())];
        cells.extend(PERCENTILES.map(|(name, quantile)| (name, histogram.value_at_quantile(quantile))));
        cells.push(("max", histogram.max()));
        let row =
            |cells: Vec<String>| cells.into_iter().map(|cell| format!("{cell:>10}")).collect::<String>();
        lines.push(format!(
            "  latency{}",
            row(cells.iter().map(|(name, _)| name.replace('_', ".")).collect())
        ));
        lines
            .push(format!("         {}", row(cells.iter().map(|(_, value)| nanos(*value as f64)).collect())));
    }
    lines.join("\n")
}

/// Describes the load in one line.
pub(super) fn load(plan: &LoadPlan, outcome: &LoadResult) -> String {
    let flow = match plan.rate {
        Some(rate) => format!("{}/s offered", count(rate)),
        None => format!("{} in flight", plan.in_flight),
    };
    let seconds = outcome.elapsed.as_secs_f64();
    let threads = if plan.threads == 1 { "thread" } else { "threads" };
    let connections = match (plan.http2, plan.http3) {
        (false, false) => format!("{} connections", plan.connections),
        (is_http2, _) => {
            let version = if is_http2 { "HTTP/2" } else { "HTTP/3" };
            let sockets = match plan.sockets_per_connection {
                _ if plan.handshakes.is_empty() => String::new(),
                1 if plan.webtransport => " of 1 session".to_owned(),
                1 => " of 1 WebSocket".to_owned(),
                sessions if plan.webtransport => format!(" of {sessions} sessions"),
                sockets => format!(" of {sockets} WebSockets"),
            };
            format!("{} {version} connections{sockets}", plan.connections)
        }
    };
    format!("{}, {connections}, {flow}, {} {threads}, {seconds:.1} s", plan.mode.name(), plan.threads,)
}

/// Names and values, without the latencies.
pub(super) fn rows(plan: &LoadPlan, outcome: &LoadResult) -> Vec<(&'static str, String)> {
    let tally = &outcome.tally;
    let seconds = outcome.elapsed.as_secs_f64().max(1e-9);
    let mut rows = Vec::new();
    let what = match plan.mode {
        LoadMode::Echo
            if plan.handshakes.is_empty()
                && plan.target.protocol == super::super::target::TargetProtocol::Http =>
        {
            "requests"
        }
        LoadMode::Echo => "echoes, verified",
        LoadMode::Storm => "connections made",
        LoadMode::FanOut => "deliveries, verified",
        LoadMode::Idle => "messages",
    };
    if plan.mode != LoadMode::Idle {
        rows.push((what, format!("{} ({}/s)", tally.messages, count(outcome.rate()))));
    }
    if plan.is_fan_out() {
        rows.push((
            "published",
            format!("{} ({}/s)", tally.published, count(tally.published as f64 / seconds)),
        ));
    }
    if tally.bytes_sent > 0 {
        let rate = |number: u64| format!("{} ({}/s)", bytes(number as f64), bytes(number as f64 / seconds));
        rows.push(("sent", rate(tally.bytes_sent)));
        rows.push(("received", rate(tally.bytes_received)));
    }
    rows.push(("connections open", outcome.open.to_string()));
    if !tally.connect.is_empty() && plan.mode != LoadMode::Storm {
        let (half, most) = (tally.connect.value_at_quantile(0.5), tally.connect.max());
        rows.push((
            "connected within",
            format!("{} (median), {} (max)", nanos(half as f64), nanos(most as f64)),
        ));
    }
    if let Some(server) = outcome.server {
        let busy = server.busy.as_secs_f64() / seconds;
        let each = outcome.server_cpu_us().map_or(String::new(), |us| format!(", {us:.2} µs a message"));
        rows.push((
            "server's processor",
            format!("{:.0} % of one{each}, {} threads", busy * 100.0, server.threads),
        ));
        rows.push((
            "server's memory",
            format!("{}, {} before", bytes(server.memory as f64), bytes(server.memory_before as f64)),
        ));
        if let Some(each) = outcome.memory_per_connection() {
            rows.push(("memory per connection", bytes(each.max(0.0))));
        }
        if let Some(calls) = outcome.system_calls.as_ref().map(SystemCalls::all) {
            rows.push(("system calls", format!("{calls:.3} a message")));
        }
    }
    if let Some(share) = outcome.generator.share() {
        let each = outcome.own_cpu_us(plan).map_or(String::new(), |us| format!(", {us:.2} µs a message"));
        rows.push((
            "load's processor",
            format!("{:.0} % of one, the busiest thread{each} ({})", share * 100.0, outcome.backend),
        ));
    }
    rows
}
