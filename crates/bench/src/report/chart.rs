//! A line chart as SVG, in the page style's colors.

use super::html::escape;

/// Axis that begins at 0.
pub(super) struct Axis<'a> {
    /// Largest value. More than 0.
    pub(super) end: f64,
    pub(super) label: &'a dyn Fn(f64) -> String,
}

impl Axis<'_> {
    /// Returns values from 0 on, at a distance of 1, 2 or 5 times a power of ten.
    fn ticks(&self) -> impl Iterator<Item = f64> {
        let smallest = self.end / f64::from(TICKS);
        let power = 10f64.powf(smallest.log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
        let step = steps.into_iter().find(|step| *step >= smallest).unwrap_or(smallest);
        (0..=TICKS).map(move |tick| f64::from(tick) * step).filter(|value| *value <= self.end)
    }
}

/// Draws the points, whose values lie on the axes.
pub(super) fn line_chart(points: &[(f64, f64)], x: &Axis<'_>, y: &Axis<'_>) -> String {
    let x_of = |value: f64| LEFT + value / x.end * (RIGHT - LEFT);
    let y_of = |value: f64| BOTTOM - value / y.end * (BOTTOM - TOP);
    let mut svg = format!(
        "<svg width=\"{WIDTH}\" height=\"{HEIGHT}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         xmlns=\"http://www.w3.org/2000/svg\" font-family=\"sans-serif\" font-size=\"12\" fill=\"currentColor\">\n"
    );
    for value in x.ticks() {
        let (at, label) = (x_of(value), escape(&(x.label)(value)));
        svg.push_str(&format!("<path d=\"M{at:.1} {TOP}V{BOTTOM}\" stroke=\"var(--grid)\"/>"));
        svg.push_str(&format!("<text x=\"{at:.1}\" y=\"{X_LABEL}\" text-anchor=\"middle\">{label}</text>\n"));
    }
    for value in y.ticks() {
        let (at, label) = (y_of(value), escape(&(y.label)(value)));
        svg.push_str(&format!("<path d=\"M{LEFT} {at:.1}H{RIGHT}\" stroke=\"var(--grid)\"/>"));
        let middle = at + 4.0;
        svg.push_str(&format!(
            "<text x=\"{Y_LABEL}\" y=\"{middle:.1}\" text-anchor=\"end\">{label}</text>\n"
        ));
    }
    svg.push_str(&format!(
        "<path d=\"M{LEFT} {TOP}V{BOTTOM}H{RIGHT}\" fill=\"none\" stroke=\"currentColor\"/>\n"
    ));
    let line = points.iter().map(|point| format!("{:.1},{:.1}", x_of(point.0), y_of(point.1)));
    let line = line.collect::<Vec<_>>().join(" ");
    svg.push_str(&format!(
        "<polyline points=\"{line}\" fill=\"none\" stroke=\"var(--line)\" stroke-width=\"2\"/>\n</svg>"
    ));
    svg
}

/// Maximum steps between the grid lines of an axis.
const TICKS: u32 = 6;

const WIDTH: u32 = 720;
const HEIGHT: u32 = 280;

/// The line's rectangle; labels are on its left and below.
const LEFT: f64 = 94.0;
const RIGHT: f64 = 680.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 238.0;

const X_LABEL: f64 = BOTTOM + 20.0;
const Y_LABEL: f64 = LEFT - 8.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_numbers_up_to_the_end() {
        for (end, expected) in [
            (6.0, &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0][..]),
            (1.05, &[0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
            (2_500.0, &[0.0, 500.0, 1_000.0, 1_500.0, 2_000.0, 2_500.0]),
        ] {
            let ticks: Vec<f64> = Axis { end, label: &|_| String::new() }.ticks().collect();
            let near = ticks.iter().zip(expected).all(|(tick, value)| (tick - value).abs() < end * 1e-9);
            assert!(near && ticks.len() == expected.len(), "{end}: {ticks:?}");
        }
    }

    #[test]
    fn line_covers_the_axes_and_labels_are_escaped() {
        let x = Axis { end: 2.0, label: &|value| format!("<{value}>") };
        let y = Axis { end: 10.0, label: &|value| format!("{value} & more") };
        let svg = line_chart(&[(0.0, 0.0), (1.0, 10.0), (2.0, 5.0)], &x, &y);
        assert!(svg.contains("points=\"94.0,238.0 387.0,10.0 680.0,124.0\""), "{svg}");
        assert!(svg.contains(">&lt;2&gt;</text>") && svg.contains(">10 &amp; more</text>"), "{svg}");
        assert_eq!(open_elements(&svg), Vec::<&str>::new(), "{svg}");
    }

    /// Returns the elements without an end, after a check that ends match.
    fn open_elements(svg: &str) -> Vec<&str> {
        let mut open = Vec::new();
        for tag in svg.split('<').skip(1) {
            let (tag, text) = tag.split_once('>').unwrap();
            assert!(!text.contains('>') && tag.matches('"').count() % 2 == 0, "{tag}");
            match tag.strip_prefix('/') {
                Some(name) => assert_eq!(open.pop(), Some(name)),
                None if tag.ends_with('/') => {}
                None => open.push(tag.split(' ').next().unwrap()),
            }
        }
        open
    }
}
