//! Draws runs: the heap, tasks and open files over time.

use crate::DAY;
use crate::run::{Restarts, Run, Sample};
use std::fmt::Write;

const WIDTH: f64 = 1000.0;
const LEFT: f64 = 176.0;
const RIGHT: f64 = 948.0;
const ROW: f64 = 74.0;
const FONT: &str = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif";
// Colours of `docs/timeline.py`.
const INK: &str = "#1f2933";
const SOFT: &str = "#52606d";
const LINE: &str = "#cbd2d9";
const PAPER: &str = "#fbfcfd";
const BLUE: &str = "#2f6fb0";

/// A name, its unit, and a value.
type Row = (&'static str, &'static str, fn(&Sample) -> f64);

/// Rows of a run.
const ROWS: [Row; 3] = [
    ("Heap", "MiB", |sample| sample.heap / f64::from(1 << 20)),
    ("Tasks", "of both replicas", |sample| sample.tasks),
    ("Open files", "of the process", |sample| sample.files),
];

/// Returns the runs as an SVG picture.
pub fn draw(runs: &[Run]) -> String {
    let panel = 70.0 + ROW * 3.0;
    let height = panel * runs.len() as f64 + 20.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"{FONT}\" role=\"img\">\n<title>Two replicas over weeks: heap, tasks and open files</title>\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"{PAPER}\"/>\n"
    );
    for (number, run) in runs.iter().enumerate() {
        draw_run(&mut svg, run, panel * number as f64);
    }
    svg + "</svg>\n"
}

fn draw_run(svg: &mut String, run: &Run, top: f64) {
    let days = run.length.as_secs_f64() / DAY.as_secs_f64();
    let title = match run.restarts {
        Restarts::Daily => "Each replica restarts daily",
        Restarts::Never => "No restarts",
    };
    let notices = run.notices;
    let _ = writeln!(
        svg,
        "<text x=\"20\" y=\"{}\" font-size=\"16\" font-weight=\"600\" fill=\"{INK}\">{title}<tspan font-size=\"13\" font-weight=\"400\" \
         fill=\"{SOFT}\" dx=\"10\">two replicas, {notices} notices in {days:.0} days; the heap includes the simulation's</tspan></text>",
        top + 34.0
    );
    let x = |at: f64| LEFT + (RIGHT - LEFT) * at / days;
    let step = (days / 6.0).ceil().max(1.0);
    let (first, last) = (top + 62.0, top + 52.0 + 3.0 * ROW);
    for tick in (0..).map(|n| f64::from(n) * step).take_while(|at| *at <= days) {
        let x = x(tick);
        let _ = writeln!(svg, "<path d=\"M{x:.1} {first}V{last}\" stroke=\"{LINE}\"/>");
        text(svg, (x, top + 56.0), "middle", SOFT, &format!("day {tick:.0}"));
    }
    for (row, (name, unit, value)) in ROWS.iter().enumerate() {
        let bottom = top + 46.0 + ROW * (row as f64 + 1.0);
        let most = run.samples.iter().map(value).fold(0.0, f64::max).max(1.0);
        let y = |value: f64| bottom - (ROW - 20.0) * value / most;
        text(svg, (20.0, bottom - 30.0), "start", INK, name);
        text(svg, (20.0, bottom - 14.0), "start", SOFT, unit);
        text(svg, (LEFT - 8.0, y(most) + 4.0), "end", SOFT, &format!("{most:.0}"));
        text(svg, (LEFT - 8.0, bottom), "end", SOFT, "0");
        let _ = writeln!(svg, "<path d=\"M{LEFT} {bottom}H{RIGHT}\" stroke=\"{LINE}\"/>");
        // A vertical stroke for each group of samples, from its least to its greatest value: a line through all would be a megabyte.
        let mut path = String::new();
        for samples in run.samples.chunks(run.samples.len().div_ceil(360).max(1)) {
            let values = || samples.iter().map(value);
            let (least, greatest) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
            let x = x(samples[0].at.as_secs_f64() / DAY.as_secs_f64());
            let _ = write!(path, "M{x:.1} {:.1}V{:.1}", y(least) + 0.6, y(greatest) - 0.6);
        }
        let _ = writeln!(svg, "<path d=\"{path}\" stroke=\"{BLUE}\" stroke-width=\"2.2\"/>");
    }
}

fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, fill: &str, words: &str) {
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y}\" font-size=\"12\" text-anchor=\"{anchor}\" fill=\"{fill}\">{words}</text>"
    );
}
