//! How many tests ran, read from the closing lines of test programs.

use std::{fmt, ops::AddAssign};

const CLOSING: &str = "test result: ";

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Counts {
    pub(super) passed: u64,
    pub(super) failed: u64,
    pub(super) skipped: u64,
}

pub(super) fn is_closing(line: &str) -> bool {
    line.starts_with(CLOSING)
}

impl Counts {
    pub(super) fn any(self) -> bool {
        self != Self::default()
    }

    pub(super) fn of(closing_lines: &[String]) -> Self {
        let mut sum = Self::default();
        for line in closing_lines {
            sum += Self::of_line(line);
        }
        sum
    }

    /// `test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.02s`
    fn of_line(line: &str) -> Self {
        let words: Vec<_> = line.split([' ', ';']).filter(|w| !w.is_empty()).collect();
        let before = |name: &str| {
            let pair = words.windows(2).find(|pair| pair[1] == name);
            pair.and_then(|pair| pair[0].parse().ok()).unwrap_or(0)
        };
        Self { passed: before("passed"), failed: before("failed"), skipped: before("ignored") }
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_are_added_up() {
        let lines = [
            "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.02s".to_owned(),
            "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 7 filtered out; finished in 1.00s"
                .to_owned(),
        ];
        assert!(lines.iter().all(|l| is_closing(l)));
        assert_eq!(Counts::of(&lines), Counts { passed: 15, failed: 2, skipped: 1 });
        assert_eq!(Counts::of(&lines).to_string(), "15 passed, 2 failed, 1 skipped");
    }

    #[test]
    fn other_lines_close_nothing() {
        assert!(!is_closing("test x ... ok"));
        assert_eq!(Counts::of_line("test result: strange"), Counts::default());
    }
}
