//! Medians, ratios, and the table they make.

use crate::load::Load;
use crate::round::{Measure, Rounds, WAITED_MAX};
use crate::target::Target;

/// Prints the head of the table.
pub(crate) fn head(targets: &[Target]) {
    let mut cells = vec!["load".to_owned()];
    cells.extend(targets.iter().map(|target| format!("{}, ns", target.name())));
    cells.extend(pairs(targets).map(|(this, other)| format!("{} ÷ {}", this.name(), other.name())));
    cells.push("thousand messages/s".to_owned());
    cells.push("server's core busy".to_owned());
    cells.push("rounds".to_owned());
    println!("| {} |", cells.join(" | "));
    println!("|{}", "---|".repeat(cells.len()));
}

/// Prints the row of a load.
pub(crate) fn row(load: &Load, targets: &[Target], rounds: &Rounds) {
    let mut cells = vec![load.name.to_owned()];
    let each = |what: fn(&Measure) -> f64| {
        (0..targets.len()).map(move |target| median(rounds.measures.iter().map(|round| what(&round[target]))))
    };
    cells.extend(each(|measure| measure.ns).map(significant));
    for (this, other) in pairs(targets) {
        let (this, other) = (position(targets, this), position(targets, other));
        let ratios = ratios(rounds, this, other);
        let (low, high) =
            (ratios.iter().copied().fold(f64::MAX, f64::min), ratios.iter().copied().fold(0., f64::max));
        cells.push(format!("**{:.3}** ({low:.3}–{high:.3})", median(ratios)));
    }
    let join = |numbers: Vec<String>| numbers.join(" / ");
    cells.push(join(each(|measure| measure.messages_per_s / 1e3).map(significant).collect()));
    cells.push(join(each(|measure| measure.busy * 1e2).map(|share| format!("{share:.0} %")).collect()));
    let remark = if rounds.quiet { "quiet" } else { "all, some disturbed" };
    cells.push(format!("{} ({remark})", rounds.measures.len()));
    println!("| {} |", cells.join(" | "));
}

/// What became of a load's bar, if it has one and both targets were measured.
pub(crate) fn bar(load: &Load, targets: &[Target], rounds: &Rounds) -> Option<String> {
    let (beside, most) = load.bar?;
    let this = targets.iter().position(|target| *target == Target::Sinews)?;
    let other = targets.iter().position(|target| *target == beside)?;
    let ratio = median(ratios(rounds, this, other));
    let outcome = if ratio <= most { "met" } else { "MISSED" };
    let caveat = match rounds.quiet {
        true => String::new(),
        false => {
            format!(", in rounds where one waited more than {} % of the time for its core", WAITED_MAX * 1e2)
        }
    };
    Some(format!("{}: sinews ÷ {} = {ratio:.3}, at most {most}: {outcome}{caveat}", load.name, beside.name()))
}

/// The ratios in a row, as far as both targets are measured.
fn pairs(targets: &[Target]) -> impl Iterator<Item = (Target, Target)> {
    let all = [
        (Target::Sinews, Target::TcpEcho),
        (Target::Sinews, Target::PlainMio),
        (Target::TcpEcho, Target::PlainMio),
    ];
    all.into_iter().filter(|(this, other)| targets.contains(this) && targets.contains(other))
}

fn position(targets: &[Target], target: Target) -> usize {
    targets.iter().position(|other| *other == target).expect("pairs are made of these targets")
}

/// Within each round: what disturbs a round disturbs both.
fn ratios(rounds: &Rounds, this: usize, other: usize) -> Vec<f64> {
    rounds.measures.iter().map(|round| round[this].ns / round[other].ns).collect()
}

/// The middle one, or the mean of the middle two.
fn median(numbers: impl IntoIterator<Item = f64>) -> f64 {
    let mut numbers: Vec<f64> = numbers.into_iter().collect();
    numbers.sort_by(f64::total_cmp);
    let middle = numbers.len() / 2;
    if numbers.len() % 2 == 1 { numbers[middle] } else { (numbers[middle - 1] + numbers[middle]) / 2. }
}

/// Three digits or more, as the noise allows.
fn significant(number: f64) -> String {
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
