//! A self-contained page with charts: no script, no font, no network.

use super::super::plan::LoadPlan;
use super::super::result::{LoadResult, PERCENTILES, Sample};
use super::chart::{Axis, line_chart};
use super::table::{load, rows};
use super::units::{bytes, count, nanos};
use crate::url::shown_url;

/// Returns the page.
pub(crate) fn page(plan: &LoadPlan, outcome: &LoadResult) -> String {
    let row =
        |name: &str, value: &str| format!("<tr><th>{}</th><td>{}</td></tr>\n", escape(name), escape(value));
    let mut table = String::new();
    // Figures from a run with errors are read with their reason.
    for (kind, number) in &outcome.tally.errors {
        let example = outcome.tally.examples.get(kind).map_or("", String::as_str);
        table.push_str(&row(kind.name(), &format!("{number}: {example}")));
    }
    let mut charts = String::new();
    if outcome.has_figures(plan) {
        add_figures(plan, outcome, row, &mut table);
        charts = draw_charts(outcome);
    }
    let warnings = outcome.warnings(plan);
    let warnings: String =
        warnings.iter().map(|text| format!("<p class=warning>{}</p>\n", escape(text))).collect();
    let (url, load) = (escape(&shown_url(&plan.target.url)), escape(&load(plan, outcome)));
    let json = escape(&format!("{:#}", outcome.to_json(plan)));
    format!(
        "<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n<meta name=viewport content=\"width=device-width\">\n\
         <title>{url} – sinews bench</title>\n<style>{STYLE}</style>\n<h1>{url}</h1>\n<p>{load}</p>\n\
         {warnings}<table>\n{table}</table>\n{charts}\
         <details><summary>As JSON</summary><pre>{json}</pre></details>\n</html>\n"
    )
}

/// Adds the figures' rows to the table.
fn add_figures(
    plan: &LoadPlan,
    outcome: &LoadResult,
    row: impl Fn(&str, &str) -> String,
    table: &mut String,
) {
    table.extend(rows(plan, outcome).iter().map(|(name, value)| row(name, value)));
    let histogram = &outcome.tally.latency;
    if histogram.is_empty() {
        return;
    }
    for (name, quantile) in PERCENTILES {
        let name = format!("latency {}", name.replace('_', "."));
        table.push_str(&row(&name, &nanos(histogram.value_at_quantile(quantile) as f64)));
    }
    table.push_str(&row("latency max", &nanos(histogram.max() as f64)));
}

/// Draws the charts that have points.
fn draw_charts(outcome: &LoadResult) -> String {
    let mut charts = String::new();
    for (title, svg) in [
        ("Latency by percentile", latency(outcome)),
        ("Rate over time", over_time(outcome, |sample| Some(sample.rate), count)),
        (
            "The server's memory over time",
            over_time(outcome, |sample| sample.memory.map(|memory| memory as f64), bytes),
        ),
    ] {
        if let Some(svg) = svg {
            charts.push_str(&format!("<figure><figcaption>{title}</figcaption>{svg}</figure>\n"));
        }
    }
    charts
}

/// Plots latency against the percentile, with equal width for each nine.
fn latency(outcome: &LoadResult) -> Option<String> {
    let histogram = &outcome.tally.latency;
    if histogram.is_empty() {
        return None;
    }
    let nines = (histogram.len() as f64).log10().clamp(1.0, 5.0);
    let points: Vec<(f64, f64)> = (0..=POINTS)
        .map(|point| {
            let nines = nines * f64::from(point) / f64::from(POINTS);
            let quantile = 1.0 - 10f64.powf(-nines);
            (nines, histogram.value_at_quantile(quantile) as f64)
        })
        .collect();
    let most = points.last().map_or(1.0, |point| point.1).max(1.0);
    let percent = |nines: f64| match nines {
        nines if nines < 0.01 => "0 %".to_owned(),
        nines => {
            let digits = (nines - 2.0).max(0.0).round() as usize;
            format!("{:.digits$} %", 100.0 * (1.0 - 10f64.powf(-nines)))
        }
    };
    let x = Axis { end: nines, label: &percent };
    Some(line_chart(&points, &x, &Axis { end: most * 1.05, label: &nanos }))
}

fn over_time(
    outcome: &LoadResult,
    value: impl Fn(&Sample) -> Option<f64>,
    shown: fn(f64) -> String,
) -> Option<String> {
    let samples = &outcome.samples;
    let points: Vec<(f64, f64)> =
        samples.iter().filter_map(|sample| Some((sample.at.as_secs_f64(), value(sample)?))).collect();
    let (end, _) = *points.last().filter(|last| points.len() > 1 && last.0 > 0.0)?;
    let most = points.iter().map(|point| point.1).fold(1.0, f64::max);
    let x = Axis { end, label: &|at| format!("{at:.1} s") };
    Some(line_chart(&points, &x, &Axis { end: most * 1.05, label: &shown }))
}

/// Escapes text between tags and in attributes.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

const POINTS: u32 = 200;

const STYLE: &str = "\
:root{color-scheme:light dark;--line:#0b62c4;--grid:#e4e7eb;--paper:#fff;--ink:#1b1f24;--warn:#9a3412}\
@media(prefers-color-scheme:dark){:root{--line:#6cb2ff;--grid:#30363d;--paper:#11151a;--ink:#e6e9ec;--warn:#fdba74}}\
body{font:15px/1.5 system-ui,sans-serif;max-width:760px;margin:2rem auto;padding:0 1rem;background:var(--paper);color:var(--ink)}\
h1{font-size:1.2rem;overflow-wrap:anywhere}\
table{border-collapse:collapse;width:100%}\
th,td{text-align:left;font-weight:400;padding:.2rem .6rem .2rem 0;border-bottom:1px solid var(--grid);font-variant-numeric:tabular-nums}\
th{width:40%;opacity:.75}\
figure{margin:1.5rem 0;overflow-x:auto}figcaption{font-weight:600}svg{width:100%;min-width:36rem;height:auto}\
.warning{color:var(--warn);font-weight:600}pre{overflow:auto}";
