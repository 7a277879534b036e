//! Runs two replicas through weeks of a fleet whose nodes come and go, on a virtual clock, and checks that nothing grows.
//!
//! ```text
//! cargo bench --bench soak                       30 days with daily restarts, then 30 without any
//! cargo bench --bench soak -- daily 2            two days with daily restarts; `never` for none
//! cargo bench --bench soak -- --picture FILE     draws the runs
//! ```
//!
//! A thousand notices come each hour; each takes a node away, and a new one joins under a name that no node had before. Daily restarts
//! would hide what grows within a life, and a life without end what a restart leaves: hence the two runs.
//!
//! From a day on nothing that is counted may grow, from ten days on no byte a notice; before, the history fills. `cargo test --bench soak`
//! runs an hour of each, and checks the counts and that everything ends.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, reason = "a run that goes wrong ends there")]
#![allow(clippy::disallowed_methods, reason = "it measures real time, and its tasks end with it")]
#![allow(clippy::cast_precision_loss, clippy::format_collect, reason = "numbers are small")]

mod fleet;
#[allow(dead_code, reason = "the tests of the service use all of it")]
#[path = "../../tests/service/harness.rs"]
mod harness;
#[allow(dead_code, reason = "the storm measures time, too")]
#[path = "../storm/meter.rs"]
mod meter;
mod picture;
mod run;
mod trend;

use run::{Restarts, Run};
use std::time::Duration;

const DAY: Duration = Duration::from_hours(24);

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let measures = args.iter().any(|arg| arg == "--bench");
    let picture =
        args.iter().position(|arg| arg == "--picture").map(|at| args.get(at + 1).expect("a file must follow"));
    let days: Option<u32> = args.iter().find_map(|arg| arg.parse().ok());
    let wants = |name: &str| {
        let named = |arg: &&String| ["daily", "never"].contains(&arg.as_str());
        args.iter().filter(named).all(|arg| arg == name)
    };
    let length = days.map_or(if measures { 30 * DAY } else { DAY / 24 }, |days| days * DAY);
    let runs = [(Restarts::Daily, "daily"), (Restarts::Never, "never")].into_iter().filter(|(_, name)| wants(name));
    let runs: Vec<Run> = runs.map(|(restarts, _)| run::run(restarts, length)).collect();
    if let Some(file) = picture {
        std::fs::write(file, picture::draw(&runs)).expect("the picture must be written");
    }
    // Checked only now, so that the picture shows what is wrong.
    runs.iter().for_each(Run::check);
}
