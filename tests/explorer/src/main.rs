//! Runs many random worlds, and tells what they met. A world that breaks a rule is told when it is found; the others go on.
#![allow(clippy::disallowed_methods, reason = "the program measures real time")]

use clap::{Arg, ArgMatches, Command, value_parser};
use ebbtide_explorer::plan::{Kind, Plan, Teller};
use ebbtide_explorer::{shrink, world};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What the worlds met.
#[derive(Default)]
struct Tally {
    worlds: u64,
    replicas: usize,
    kills: u32,
    shutdowns: u32,
    calls: usize,
    lasted: Duration,
    faults: BTreeMap<String, u32>,
    notices: BTreeMap<&'static str, u32>,
    rare: BTreeMap<&'static str, u32>,
    broken: u64,
}

/// Number of worlds between two lines about the progress.
const PROGRESS: u64 = 10_000;

/// Maximum number of worlds that break a rule: making a world smaller takes as long as hundreds of others.
const MAX_BROKEN: u64 = 20;

impl Tally {
    fn add(&mut self, plan: &Plan, outcome: &world::Outcome) {
        self.worlds += 1;
        self.broken += u64::from(outcome.broken.is_some());
        self.replicas += plan.replicas.len();
        self.kills += outcome.ends[0];
        self.shutdowns += outcome.ends[1];
        self.calls += outcome.calls.len();
        for name in plan.rare() {
            *self.rare.entry(name).or_default() += 1;
        }
        self.lasted += outcome.lasted;
        for fault in outcome.calls.iter().filter_map(|call| call.fault) {
            let text = format!("{fault:?}");
            let sort = text.split('(').next().unwrap_or_default();
            *self.faults.entry(sort.to_owned()).or_default() += 1;
        }
        for notice in &plan.notices {
            match notice.teller {
                Teller::Looks => *self.notices.entry("listed by EC2").or_default() += 1,
                Teller::Node | Teller::Both if notice.kind != Kind::Condition => {
                    *self.notices.entry("said by a Node").or_default() += 1;
                }
                _ => {}
            }
            if notice.hook.is_some() {
                *self.notices.entry("with a hook that the settings name").or_default() += 1;
            }
            let kind = match notice.kind {
                Kind::Spot(_) => "spot",
                Kind::Rebalance => "rebalance",
                Kind::State(_) => "state-change",
                Kind::Change(..) => "scheduled-change",
                Kind::Reservation(_) => "capacity-reservation",
                Kind::Terminate(..) => "asg-terminate",
                Kind::Launch(_) => "asg-launch",
                Kind::Condition => "node-condition",
                Kind::Shift(..) => "zonal-shift",
                Kind::Garbage(_) => "garbage",
            };
            *self.notices.entry(kind).or_default() += 1 + u32::try_from(notice.copies.len()).unwrap_or_default();
        }
    }

    fn line(&self) -> String {
        let Self { worlds, replicas, kills, shutdowns, calls, lasted, faults, notices, rare, broken } = self;
        let hours = lasted.as_secs() / 3600;
        format!(
            "{worlds} worlds, of which {broken} broke a rule, {hours} virtual hours, {replicas} replicas, {kills} kills, {shutdowns} shutdowns, {calls} calls, \
             faults met {faults:?}, messages {notices:?}, worlds with {rare:?}"
        )
    }
}

fn number(args: &ArgMatches, name: &str) -> Option<u64> {
    args.get_one::<u64>(name).copied()
}

fn main() -> ExitCode {
    let arg = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_parser(value_parser!(u64)).help(help).value_name("N")
    };
    let args =
        Command::new("ebbtide-explorer")
            .arg(arg("worlds", "Number of worlds; 1000 if not given"))
            .arg(arg("seed", "Seed of the first world; the next have the next numbers"))
            .arg(arg("jobs", "Number of worlds at the same time; 2 if not given"))
            .arg(arg("seconds", "Stop after this time"))
            .arg(arg("story", "Print the story of this world, and end"))
            .arg(Arg::new("with").long("with").value_name("NAME").help(
                "Only the worlds with this: returns, graces, budgets, sqs, away, expired, refusals, reboots, surge, collected, tiers, pools or forged",
            ))
            .get_matches();
    if let Some(seed) = number(&args, "story") {
        println!("{}", shrink::told(&Plan::random(seed), &world::run(&Plan::random(seed))));
        return ExitCode::SUCCESS;
    }
    let worlds = number(&args, "worlds").unwrap_or(1000);
    let first = number(&args, "seed").unwrap_or_default();
    let jobs = number(&args, "jobs").unwrap_or(2);
    let until = number(&args, "seconds").map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let with = args.get_one::<String>("with").map(String::as_str);
    let (tally, next) = (Mutex::new(Tally::default()), AtomicU64::new(0));
    // A world that panics is judged, and shrinking repeats it many times.
    std::panic::set_hook(Box::new(|_| {}));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while until.is_none_or(|until| Instant::now() < until) {
                    let world = next.fetch_add(1, Ordering::Relaxed);
                    if world >= worlds {
                        return;
                    }
                    let plan = Plan::random(first.wrapping_add(world));
                    if with.is_some_and(|name| !plan.rare().contains(&name)) {
                        continue;
                    }
                    let outcome = world::run(&plan);
                    let mut tally = tally.lock();
                    if tally.broken >= MAX_BROKEN {
                        return;
                    }
                    tally.add(&plan, &outcome);
                    if tally.worlds.is_multiple_of(PROGRESS) {
                        println!("{}", tally.line());
                    }
                    drop(tally);
                    if outcome.broken.is_some() {
                        println!("seed {}\n{}", plan.seed, shrink::report(&plan));
                    }
                }
            });
        }
    });
    let tally = tally.into_inner();
    println!("{}", tally.line());
    if tally.broken > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
