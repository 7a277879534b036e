//! Plans with one thing less.

use super::added::plain_node;
use super::{AtHook, Budget, Flags, Kind, NodePlan, Plan, Source, Target, Teller};

impl Plan {
    /// Returns plans with one thing less.
    #[must_use]
    pub fn smaller(&self) -> Vec<Self> {
        let mut all = Vec::new();
        let mut with = |change: &dyn Fn(&mut Self)| {
            let mut plan = self.clone();
            change(&mut plan);
            all.push(plan);
        };
        for of in [2, 4] {
            // Halves first: a long story becomes short in few steps.
            for part in 0..of {
                let drop = |len: usize, n: usize| len >= of && n * of / len == part;
                let len = self.notices.len();
                if len >= of {
                    with(&|plan| plan.notices = kept(&plan.notices, |n| !drop(len, n)));
                }
            }
        }
        for n in 0..self.notices.len() {
            with(&|plan| drop(plan.notices.remove(n)));
            if !self.notices[n].copies.is_empty() {
                with(&|plan| plan.notices[n].copies.clear());
            }
            if self.notices[n].teller != Teller::Queue {
                if self.flags.source != Source::Nodes && self.notices[n].kind != Kind::Condition {
                    with(&|plan| plan.notices[n].teller = Teller::Queue);
                }
                with(&|plan| plan.notices[n].taken_back = None);
                with(&|plan| plan.notices[n].lag = 0);
            }
            if self.notices[n].called_off.is_some() {
                with(&|plan| plan.notices[n].called_off = None);
            }
            if let Some(AtHook { waits: Some(waits), .. }) = self.notices[n].hook {
                let now = AtHook { shown: 0, waits: Some(waits.min(0)), elsewhere: false };
                with(&|plan| plan.notices[n].hook = Some(now));
            }
            if self.notices[n].age > 0 {
                with(&|plan| plan.notices[n].age = 0);
            }
        }
        for n in 0..self.faults.len() {
            with(&|plan| _ = plan.faults.remove(n));
        }
        if self.replicas.len() > 1 {
            for n in 0..self.replicas.len() {
                with(&|plan| drop(plan.replicas.remove(n)));
            }
        }
        for n in 0..self.replicas.len() {
            for end in 0..self.replicas[n].len() {
                with(&|plan| _ = plan.replicas[n].remove(end));
            }
        }
        if self.nodes.len() > 1 {
            for n in 0..self.nodes.len() {
                with(&|plan| plan.remove_node(n));
            }
        }
        for n in 0..self.nodes.len() {
            for pod in 0..self.nodes[n].pods.len() {
                with(&|plan| _ = plan.nodes[n].pods.remove(pod));
                with(&|plan| plan.nodes[n].pods[pod].returns = None);
                with(&|plan| plan.nodes[n].pods[pod].grace = 30);
                with(&|plan| plan.nodes[n].pods[pod].budget = Budget::Free);
            }
            with(&|plan| plan.nodes[n] = NodePlan { pods: plan.nodes[n].pods.clone(), ..plain_node() });
            with(&|plan| plan.nodes[n].lost = None);
        }
        for n in 0..self.deployments.len() {
            with(&|plan| drop(plan.deployments.remove(n)));
            with(&|plan| plan.deployments[n].nodes.truncate(1));
            with(&|plan| plan.deployments[n].pod.budget = Budget::Free);
        }
        for n in 0..self.flags.others.len() {
            if self.flags.others[n].starts_with("--") {
                let values = self.flags.others[n + 1..].iter().take_while(|value| !value.starts_with("--")).count();
                with(&|plan| drop(plan.flags.others.drain(n..=n + values)));
            }
        }
        with(&|plan| {
            let Flags { source, before, condition, shift, looks, node_hook, limit, shapes, .. } = plan.flags;
            let Flags { tiers, surge, .. } = plan.flags;
            let others = plan.flags.others.clone();
            let kept = Flags { source, before, condition, shift, looks, node_hook, limit, shapes, ..Flags::default() };
            plan.flags = Flags { tiers, surge, others, ..kept };
        });
        with(&|plan| plan.flags.before = None);
        with(&|plan| plan.flags.tiers = &[]);
        with(&|plan| plan.flags.surge = None);
        with(&|plan| plan.flags.limit = None);
        with(&|plan| plan.flags.shapes = false);
        with(&|plan| plan.clock_ahead = 0);
        all
    }

    fn remove_node(&mut self, n: usize) {
        self.nodes.remove(n);
        self.notices.retain(|notice| notice.target != Target::Node(n));
        for notice in &mut self.notices {
            if let Target::Node(of) = &mut notice.target
                && *of > n
            {
                *of -= 1;
            }
        }
        for deployment in &mut self.deployments {
            deployment.nodes.retain(|of| *of != n);
            deployment.nodes.iter_mut().filter(|of| **of > n).for_each(|of| *of -= 1);
        }
        self.deployments.retain(|deployment| !deployment.nodes.is_empty());
    }

    /// Returns the size of the plan, which shrinking must reduce.
    #[must_use]
    pub fn size(&self) -> usize {
        format!("{self:?}").len()
    }
}

fn kept<T: Clone>(all: &[T], keep: impl Fn(usize) -> bool) -> Vec<T> {
    all.iter().enumerate().filter(|(n, _)| keep(*n)).map(|(_, one)| one.clone()).collect()
}
