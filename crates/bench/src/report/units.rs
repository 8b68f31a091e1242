//! Human-readable numbers.

/// Formats with three digits: `12.3k`, `1.20M`.
pub(crate) fn count(number: f64) -> String {
    scaled(number, 1000.0, &["", "k", "M", "G", "T"])
}

pub(crate) fn bytes(number: f64) -> String {
    scaled(number, 1024.0, &[" B", " KiB", " MiB", " GiB", " TiB"])
}

/// Formats a time in nanoseconds.
pub(crate) fn nanos(number: f64) -> String {
    scaled(number, 1000.0, &[" ns", " µs", " ms", " s"])
}

fn scaled(mut number: f64, step: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while number.abs() >= step && unit + 1 < units.len() {
        number /= step;
        unit += 1;
    }
    let digits = match number.abs() {
        _ if unit == 0 && number.fract() == 0.0 => 0,
        size if size < 10.0 => 2,
        size if size < 100.0 => 1,
        _ => 0,
    };
    format!("{number:.digits$}{}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        assert_eq!((count(0.0), count(999.0), count(1234.0)), ("0".into(), "999".into(), "1.23k".into()));
        assert_eq!((bytes(512.0), bytes(1536.0)), ("512 B".into(), "1.50 KiB".into()));
        assert_eq!((nanos(12_345.0), nanos(2.5e9)), ("12.3 µs".into(), "2.50 s".into()));
    }
}
