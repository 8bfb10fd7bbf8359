//! Order statistics and Markdown tables of them.

/// Where measured values lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) min: f64,
    pub(crate) lower_quartile: f64,
    pub(crate) median: f64,
    pub(crate) upper_quartile: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// Not a number throughout if there are no values.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let at = |part: f64| quantile(&sorted, part);
        Self { min: at(0.0), lower_quartile: at(0.25), median: at(0.5), upper_quartile: at(0.75), max: at(1.0) }
    }

    /// `min | median | max`, with so many decimals.
    pub(crate) fn cells(&self, decimals: usize) -> String {
        let Self { min, median, max, .. } = self;
        format!("{min:.decimals$} | {median:.decimals$} | {max:.decimals$}")
    }

    /// Between the quartiles.
    pub(crate) fn middle(&self) -> f64 {
        self.upper_quartile - self.lower_quartile
    }
}

fn quantile(sorted: &[f64], part: f64) -> f64 {
    if sorted.is_empty() {
        return f64::NAN;
    }
    let place = part * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    below + (above - below) * place.fract()
}

/// A row of a table of spreads: what, and `cells` of it.
pub(crate) fn row(what: &str, spread: &Spread, decimals: usize, rest: &str) -> String {
    format!("| {what} | {} | {rest} |\n", spread.cells(decimals))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_neighbours() {
        let s = Spread::of([4.0, 1.0, 3.0, 2.0]);
        assert_eq!((s.min, s.lower_quartile, s.median, s.upper_quartile, s.max), (1.0, 1.75, 2.5, 3.25, 4.0));
        assert_eq!(s.middle(), 1.5);
        assert_eq!(Spread::of([7.0]).median, 7.0);
        assert!(Spread::of([]).median.is_nan());
    }

    #[test]
    fn rows_are_markdown() {
        assert_eq!(row("x, µs", &Spread::of([1.0, 2.0]), 1, "2"), "| x, µs | 1.0 | 1.5 | 2.0 | 2 |\n");
    }
}
