//! A straight line through points.

/// The line through equally spaced points with the least squares, and its ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trend {
    pub first: f64,
    pub last: f64,
    /// Growth from one point to the next.
    pub slope: f64,
}

impl Trend {
    pub fn of(points: &[f64]) -> Self {
        let count = points.len() as f64;
        let (middle, mean) = ((count - 1.0) / 2.0, points.iter().sum::<f64>() / count);
        let from_middle = || points.iter().enumerate().map(|(at, point)| (at as f64 - middle, point - mean));
        let spread: f64 = from_middle().map(|(x, _)| x * x).sum();
        let slope = from_middle().map(|(x, y)| x * y).sum::<f64>() / spread.max(f64::MIN_POSITIVE);
        Self { first: mean - slope * middle, last: mean + slope * middle, slope }
    }
}
