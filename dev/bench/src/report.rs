//! Medians, ratios, and their tables.

use crate::round::{Rounds, WAITED_MAX};

/// Prints a table: a row for each server, and a column of ratios for each server it is compared with. The
/// unit has a singular and a plural name.
pub(crate) fn table(
    title: &str,
    [unit, units]: [&str; 2],
    names: &[String],
    beside: &[usize],
    rounds: &Rounds,
) {
    let kind = if rounds.quiet { "quiet" } else { "not all quiet" };
    println!("\n**{title}**, rounds: {}, {kind}\n", rounds.measures.len());
    let mut head = vec!["server".to_owned(), format!("CPU ns a {unit}")];
    head.extend(beside.iter().map(|other| format!("÷ {}", names[*other])));
    head.extend([format!("thousand {units}/s"), format!("thousand {units} a CPU second"), "busy".to_owned()]);
    println!("| {} |\n|{}", head.join(" | "), "---|".repeat(head.len()));
    for (this, name) in names.iter().enumerate() {
        let ns = median(rounds.of(this, |measure| measure.ns));
        let mut cells = vec![name.clone(), significant(ns)];
        for &other in beside {
            cells.push(if this == other { "1".to_owned() } else { spread(&rounds.ratios(this, other)) });
        }
        cells.push(significant(median(rounds.of(this, |measure| measure.units_per_s / 1e3))));
        cells.push(significant(1e6 / ns));
        cells.push(format!("{:.0} %", median(rounds.of(this, |measure| measure.busy * 1e2))));
        println!("| {} |", cells.join(" | "));
    }
}

/// Prints the result of a bar: the maximum cost of this server as a multiple of the other server's cost.
pub(crate) fn bar(load: &str, names: &[String], this: usize, other: usize, most: f64, rounds: &Rounds) {
    let ratio = median(rounds.ratios(this, other));
    let outcome = if ratio <= most { "met" } else { "MISSED" };
    let caveat = match rounds.quiet {
        true => String::new(),
        false => {
            format!(", in rounds where one waited more than {} % of the time for its core", WAITED_MAX * 1e2)
        }
    };
    println!("{load}: {} ÷ {} = {ratio:.3}, at most {most}: {outcome}{caveat}", names[this], names[other]);
}

/// Formats the median, minimum and maximum.
fn spread(ratios: &[f64]) -> String {
    let low = ratios.iter().copied().fold(f64::MAX, f64::min);
    let high = ratios.iter().copied().fold(0., f64::max);
    format!("**{:.3}** ({low:.3}–{high:.3})", median(ratios.iter().copied()))
}

/// Returns the middle number, or the mean of the two middle numbers.
pub(crate) fn median(numbers: impl IntoIterator<Item = f64>) -> f64 {
    let mut numbers: Vec<f64> = numbers.into_iter().collect();
    numbers.sort_by(f64::total_cmp);
    let middle = numbers.len() / 2;
    if numbers.len() % 2 == 1 { numbers[middle] } else { (numbers[middle - 1] + numbers[middle]) / 2. }
}

/// Formats a number with three digits or more, as the noise allows.
pub(crate) fn significant(number: f64) -> String {
    if number < 10. {
        format!("{number:.2}")
    } else if number < 100. {
        format!("{number:.1}")
    } else {
        format!("{number:.0}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_in_the_middle() {
        assert_eq!(median([3., 1., 2.]), 2.);
        assert_eq!(median([4., 1., 2., 3.]), 2.5);
        assert_eq!(median([7.]), 7.);
    }

    #[test]
    fn numbers_have_three_digits_at_least() {
        assert_eq!([1.234, 12.34, 123.4, 12_345.6].map(significant), ["1.23", "12.3", "123", "12346"]);
    }
}
