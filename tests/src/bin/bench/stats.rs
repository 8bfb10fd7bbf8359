//! Median and spread.

/// Sorted values.
pub(crate) struct Sample(Vec<f64>);

impl Sample {
    pub(crate) fn new(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        Self(values)
    }

    /// The value below which this share (0 to 1) lies.
    pub(crate) fn at(&self, share: f64) -> f64 {
        let i = (share * (self.0.len().saturating_sub(1)) as f64).round() as usize;
        self.0.get(i).copied().unwrap_or(f64::NAN)
    }

    /// `min / median / max`.
    pub(crate) fn row(&self, digits: usize) -> String {
        format!("{:.d$} | {:.d$} | {:.d$}", self.at(0.0), self.at(0.5), self.at(1.0), d = digits)
    }
}
