//! A line through measurements at several connection counts.

/// Bytes as a linear function of the connection count.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LinearFit {
    /// Bytes for each further connection.
    pub(super) slope: f64,
    /// Bytes that do not depend on the connection count.
    pub(super) intercept: f64,
}

impl LinearFit {
    /// Fits a line by least squares. A single measurement gives the line through zero.
    pub(super) fn through(measured: impl Iterator<Item = (f64, f64)> + Clone) -> Self {
        let count = measured.clone().count() as f64;
        let mean = |sum: f64| if count > 0.0 { sum / count } else { 0.0 };
        let (x, y) =
            (mean(measured.clone().map(|(x, _)| x).sum()), mean(measured.clone().map(|(_, y)| y).sum()));
        let (mut products, mut squares) = (0.0, 0.0);
        for (at, bytes) in measured {
            products += (at - x) * (bytes - y);
            squares += (at - x) * (at - x);
        }
        if squares == 0.0 {
            return Self { slope: if x > 0.0 { y / x } else { 0.0 }, intercept: 0.0 };
        }
        let slope = products / squares;
        Self { slope, intercept: y - slope * x }
    }

    pub(super) fn at(self, connections: usize) -> f64 {
        self.intercept + self.slope * connections as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_is_fitted_by_least_squares() {
        let exact = LinearFit::through([(10.0, 1_050.0), (20.0, 2_050.0), (30.0, 3_050.0)].into_iter());
        assert_eq!(exact, LinearFit { slope: 100.0, intercept: 50.0 });
        assert_eq!(exact.at(1_000), 100_050.0);
        let off = LinearFit::through([(0.0, 0.0), (1.0, 2.0), (2.0, 1.0)].into_iter());
        assert_eq!(off, LinearFit { slope: 0.5, intercept: 0.5 });
    }

    #[test]
    fn single_measurement_gives_line_through_zero() {
        assert_eq!(LinearFit::through([(10.0, 50.0)].into_iter()), LinearFit { slope: 5.0, intercept: 0.0 });
    }
}
