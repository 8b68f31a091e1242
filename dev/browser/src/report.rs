//! The page that `sinews bench --report` writes, opened from the file.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::{
    host::{Failure, Server, Tools, ensure, go_through},
    webdriver::{Driver, Session},
};

struct World<'d> {
    session: Session<'d>,
    page: Page,
}

/// The function of a check.
type Check = fn(&mut World<'_>) -> Result<(), Failure>;

const CHECKS: &[(&str, Check)] = &[
    ("the page of a measurement makes no request", asks_nobody),
    ("each chart is present, with its curve inside of it", charts_are_drawn),
    ("its table has the numbers of its JSON", numbers_agree),
    ("it fits a desk and a phone, and can be read on both", fits),
    ("in dark mode it is dark, and its curves are visible", has_a_night),
    ("the console holds no error", console_is_clean),
];

/// Runs all checks and returns the numbers of passed and failed checks.
pub(crate) fn run(binary: &Path, tools: &Tools) -> Result<[usize; 2], Failure> {
    let page = Page::measure(binary)?;
    let driver = Driver::start(tools)?;
    let session = Session::start(&driver, 1180, 760)?;
    session.open(&format!("file://{}", page.path.display()))?;
    let mut world = World { session, page };
    Ok(go_through(&mut world, CHECKS))
}

/// A page, deleted on drop, and the output of the same run.
struct Page {
    path: PathBuf,
    printed: Value,
}

impl Page {
    /// Measures three seconds of echoes, of the server under test itself: enough for points of each chart on a busy machine.
    fn measure(binary: &Path) -> Result<Self, Failure> {
        let server = Server::start(binary)?;
        let path = std::env::temp_dir().join(format!("sinews-bench-{}.html", std::process::id()));
        let mut command = Command::new(binary);
        command.args(["bench", "--connections", "4", "--duration", "3s", "--warm-up", "0s", "--rate", "500"]);
        command.args(["--pid", &server.pid()?.to_string(), "--json", "--quiet", "--report"]).arg(&path);
        // A URL may contain any characters.
        command.arg(server.url("echo?_<b>&_\"'").replace("http://", "ws://"));
        let output = command.stdin(Stdio::null()).output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure(output.status.success(), || format!("sinews bench: {said}"))?;
        let printed = serde_json::from_slice(&output.stdout)
            .map_err(|error| Failure::new(format!("sinews bench prints no JSON: {error}")))?;
        Ok(Self { path, printed })
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn asks_nobody(w: &mut World<'_>) -> Result<(), Failure> {
    let asked = "return performance.getEntriesByType('resource').map((entry) => entry.name)";
    let asked = w.session.script(asked, &[])?;
    ensure(asked == json!([]), || format!("the page requests {asked}"))?;
    let scripts = w.session.script("return document.querySelectorAll('script, link, iframe').length", &[])?;
    ensure(scripts == 0, || format!("{scripts} scripts, links or frames"))?;
    let title = w.session.text("h1")?;
    ensure(title.ends_with("/echo?_<b>&_\"'"), || format!("the heading says {title:?}"))
}

/// Returns for each figure: its caption, its size, and whether its drawing lies inside of it.
const FIGURES: &str = "return [...document.querySelectorAll('figure')].map((figure) => {
    const chart = figure.querySelector('svg');
    const box = chart.getBoundingClientRect();
    const inside = ({ left, right, top, bottom }) =>
        left >= box.left - 1 && right <= box.right + 1 && top >= box.top - 1 && bottom <= box.bottom + 1;
    const curve = [...chart.querySelectorAll('polyline')].find((line) => line.getAttribute('stroke') === 'var(--line)');
    return {
        caption: figure.querySelector('figcaption').textContent,
        width: box.width,
        height: box.height,
        curve: curve ? curve.getBoundingClientRect().width / box.width : 0,
        points: curve ? curve.points.length : 0,
        labels: chart.querySelectorAll('text').length,
        inside: [...chart.querySelectorAll('*')].every((part) => inside(part.getBoundingClientRect())),
        letters: Math.min(...[...chart.querySelectorAll('text')].map((text) =>
            parseFloat(getComputedStyle(text).fontSize) * box.width / chart.viewBox.baseVal.width)),
    };
})";

fn charts_are_drawn(w: &mut World<'_>) -> Result<(), Failure> {
    let figures = w.session.script(FIGURES, &[])?;
    let all = figures.as_array().cloned().unwrap_or_default();
    let captions: Vec<&str> = all.iter().filter_map(|figure| figure["caption"].as_str()).collect();
    let wanted = ["Latency by percentile", "Rate over time", "The server's memory over time"];
    ensure(captions == wanted, || format!("the captions are {captions:?}"))?;
    for figure in &all {
        let number = |name: &str| figure[name].as_f64().unwrap_or_default();
        let sound = (600.0..800.0).contains(&number("width"))
            && (200.0..400.0).contains(&number("height"))
            && number("curve") > 0.5
            && number("points") >= 3.0
            && number("labels") >= 6.0
            && figure["inside"] == true;
        ensure(sound, || format!("{figure}"))?;
    }
    Ok(())
}

fn numbers_agree(w: &mut World<'_>) -> Result<(), Failure> {
    let rows = "return Object.fromEntries([...document.querySelectorAll('tr')].map((row) =>
        [row.querySelector('th').textContent, row.querySelector('td').textContent]))";
    let rows = w.session.script(rows, &[])?;
    let json = w.session.script("return document.querySelector('pre').textContent", &[])?;
    let json: Value = serde_json::from_str(json.as_str().unwrap_or_default())
        .map_err(|error| Failure::new(format!("the page's JSON: {error}")))?;
    ensure(json == w.page.printed, || format!("the page has {json}, and not {}", w.page.printed))?;
    for (row, field, unit) in [
        ("echoes, verified", &json["messages"], 1.0),
        ("connections open", &json["connections_open"], 1.0),
        ("sent", &json["bytes_sent"], 1.0),
        ("received", &json["bytes_received"], 1.0),
        ("connected within", &json["connect_us"]["p50"], 1e3),
        ("server's memory", &json["server"]["memory_bytes"], 1.0),
        ("latency p50", &json["latency_us"]["p50"], 1e3),
        ("latency p75", &json["latency_us"]["p75"], 1e3),
        ("latency p90", &json["latency_us"]["p90"], 1e3),
        ("latency p95", &json["latency_us"]["p95"], 1e3),
        ("latency p99", &json["latency_us"]["p99"], 1e3),
        ("latency p99.9", &json["latency_us"]["p99_9"], 1e3),
        ("latency p99.99", &json["latency_us"]["p99_99"], 1e3),
        ("latency max", &json["latency_us"]["max"], 1e3),
    ] {
        let shown = rows[row].as_str().and_then(number);
        let meant = field.as_f64().map(|value| value * unit);
        // Three digits are shown.
        let agrees =
            shown.zip(meant).is_some_and(|(shown, meant)| (shown - meant).abs() <= meant.abs() * 0.006);
        ensure(agrees, || format!("{row} is {}, and {field} in JSON", rows[row]))?;
    }
    Ok(())
}

/// Parses a formatted number: of bytes, of nanoseconds, or without a unit.
fn number(text: &str) -> Option<f64> {
    let mut words = text.split([' ', '(', ',']);
    let number: f64 = words.next()?.parse().ok()?;
    let factor = match words.next().unwrap_or_default() {
        "KiB" => 1024.0,
        "MiB" => 1_048_576.0,
        "GiB" => 1_073_741_824.0,
        "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => 1.0,
    };
    Some(number * factor)
}

fn fits(w: &mut World<'_>) -> Result<(), Failure> {
    for (width, mobile) in [(1920, false), (1180, false), (390, true), (320, true)] {
        let size = json!({"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": mobile});
        w.session.devtools("Emulation.setDeviceMetricsOverride", &size)?;
        let sideways = "const page = document.documentElement; return page.scrollWidth - page.clientWidth";
        let sideways = w.session.script(sideways, &[])?;
        ensure(sideways == 0, || format!("at {width} px the page is {sideways} px too wide"))?;
        let figures = w.session.script(FIGURES, &[])?;
        for figure in figures.as_array().into_iter().flatten() {
            let letters = figure["letters"].as_f64().unwrap_or_default();
            ensure(letters >= 9.0, || format!("at {width} px letters of {letters} px: {figure}"))?;
        }
    }
    w.session.devtools("Emulation.clearDeviceMetricsOverride", &json!({})).map(drop)
}

/// Brightness of the background, the letters and the curves, from 0 to 255.
const BRIGHTNESS: &str = "const bright = (colour) => {
        const [red, green, blue] = colour.match(/\\d+/g).map(Number);
        return 0.3 * red + 0.6 * green + 0.1 * blue;
    };
    const of = (css, what) => bright(getComputedStyle(document.querySelector(css))[what]);
    return [of('body', 'backgroundColor'), of('td', 'color'), of('svg text', 'fill'),
        of('svg polyline[stroke=\"var(--line)\"]', 'stroke')]";

fn has_a_night(w: &mut World<'_>) -> Result<(), Failure> {
    for (scheme, paper_is_bright) in [("dark", false), ("light", true)] {
        let feature = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        w.session.devtools("Emulation.setEmulatedMedia", &feature)?;
        let found = w.session.script(BRIGHTNESS, &[])?;
        let all: Vec<f64> = found.as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
        let [paper, ink @ ..] = &all[..] else { return Err(Failure::new(format!("no colors: {found}"))) };
        let seen = ink.len() == 3 && ink.iter().all(|ink| (ink - paper).abs() > 90.0);
        ensure(seen && (*paper > 128.0) == paper_is_bright, || format!("{scheme}: {found}"))?;
    }
    Ok(())
}

fn console_is_clean(w: &mut World<'_>) -> Result<(), Failure> {
    let errors = w.session.console_errors()?;
    ensure(errors.is_empty(), || format!("{errors:?}"))
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn formatted_numbers_are_parsed() {
        assert_eq!(number("4.44 ms (median), 4.52 ms (max)"), Some(4.44e6));
        assert_eq!(number("500 (500/s)"), Some(500.0));
        assert_eq!(number("31.2 KiB (31.2 KiB/s)"), Some(31.2 * 1024.0));
        assert_eq!(number("17.8 MiB, 17.0 MiB before"), Some(17.8 * 1_048_576.0));
        assert_eq!(number("none"), None);
    }
}
