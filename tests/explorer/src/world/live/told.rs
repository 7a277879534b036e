//! What messages and Nodes tell.

use super::{Event, Live};
use crate::harness::{instance, node, s};
use crate::oracle::Sent;
use crate::plan::{Kind, Notice, Owner, Target, Teller};
use ebbtide_sim::aws::{Ec2, HookSpec};
use ebbtide_sim::messages;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeCondition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

impl Live<'_> {
    /// Has the Node say what the notice tells.
    fn say(&self, n: usize) {
        let (notice, now) = (&self.plan.notices[n], self.stage.world.clock.now());
        let Target::Node(of) = notice.target else { return };
        if notice.kind == Kind::Condition {
            return self.set_kernel(of, false);
        }
        let at = |after: i64| now + jiff::SignedDuration::from_secs(after);
        if let (Kind::Change(code, after), Teller::Looks) = (notice.kind, notice.teller) {
            let id = format!("event-{n}");
            return self.stage.world.aws.ec2.schedule(&instance(of), (&id, &listed(code)), at(after));
        }
        let value = match notice.kind {
            Kind::Spot(action) => {
                let after = if action == "hibernate" { 0 } else { 120 };
                format!(r#"{{"what":"{action}","at":"{}"}}"#, at(after))
            }
            Kind::Rebalance => format!(r#"{{"what":"rebalance","at":"{now}"}}"#),
            Kind::Change(code, after) => {
                let code = listed(code);
                format!(r#"{{"what":"{code}","at":"{}","id":"instance-event-{n}"}}"#, at(after))
            }
            _ => r#"{"what":"terminate"}"#.to_owned(),
        };
        self.stage.world.kube.update_node(&node(of), |node| {
            node.metadata.annotations.get_or_insert_default().insert(annotation(notice.kind), value);
        });
    }

    /// Sets the condition that the rule names.
    fn set_kernel(&self, of: usize, ready: bool) {
        let condition = NodeCondition {
            type_: "KernelReady".to_owned(),
            status: if ready { "True" } else { "False" }.to_owned(),
            last_transition_time: Some(Time(self.stage.world.clock.now())),
            ..NodeCondition::default()
        };
        self.stage.world.kube.update_node(&node(of), |node| {
            let conditions = node.status.get_or_insert_default().conditions.get_or_insert_default();
            conditions.retain(|it| it.type_ != condition.type_);
            conditions.push(condition);
        });
    }

    pub(super) fn take_back(&self, n: usize) {
        let Notice { kind, target: Target::Node(of), teller, .. } = self.plan.notices[n] else { return };
        let mut seen = self.oracle.seen();
        if seen.sent.iter().any(|sent| sent.notice == n) {
            let at = i64::try_from(self.stage.world.clock.elapsed().as_millis()).unwrap_or_default();
            seen.taken_back.insert(n, at);
            drop(seen);
            if kind == Kind::Condition {
                return self.set_kernel(of, true);
            }
            if teller == Teller::Looks {
                return self.stage.world.aws.ec2.close(&format!("event-{n}"), "Canceled");
            }
            self.stage.world.kube.update_node(&node(of), |node| {
                node.metadata.annotations.get_or_insert_default().remove(&annotation(kind));
            });
        }
    }

    pub(super) fn send(&mut self, n: usize) {
        let (notice, world) = (&self.plan.notices[n], &self.stage.world);
        let is_hook = matches!(notice.kind, Kind::Terminate(..) | Kind::Launch(_));
        if let (true, Target::Node(node)) = (is_hook, notice.target)
            && self.oracle.seen().gone.contains_key(&node)
        {
            return;
        }
        let (now, id) = (world.clock.now(), Self::id(notice.target));
        let at = now - s(notice.age);
        let (event, elapsed) = (format!("event-{n}"), world.clock.elapsed());
        let is_said = notice.teller != Teller::Queue && self.oracle.stands(notice.target);
        let is_first = matches!(notice.teller, Teller::Node | Teller::Looks) || is_said && notice.lag > 0;
        if notice.teller == Teller::Both && !is_said {
            // A Node that has not joined yet reports nothing.
            let at = i64::try_from(elapsed.as_millis()).unwrap_or_default();
            self.oracle.seen().taken_back.insert(n, at);
        }
        // Before the Node says it, so that nobody acts on what the oracle does not know.
        if is_said && is_first {
            let token = self.oracle.seen().waiting.get(&n).cloned();
            self.sent(n, None, token);
        }
        if is_said {
            self.say(n);
            self.oracle.note(format!("{notice:?} is said"));
            self.due.extend(notice.taken_back.map(|after| (elapsed + s(after), Event::TakeBack(n))));
        }
        self.due.extend(notice.called_off.map(|after| (elapsed + s(after), Event::CallOff(n))));
        if is_first {
            if is_said {
                self.follow(n);
            }
            if notice.teller == Teller::Both {
                self.due.insert((elapsed + s(notice.lag), Event::Tell(n)));
            }
            return;
        }
        let mut token = None;
        let is_forged = self.plan.flags.asks_aws() && notice.proof.is_none();
        let mut begin = |terminating: bool, timeout: u64, name: String| {
            let spec = if terminating { HookSpec::terminating(s(timeout)) } else { HookSpec::launching(s(timeout)) };
            world.aws.autoscaling.add_hook("group", &name, spec);
            if terminating && is_forged {
                let made_up = format!("00000000-0000-4000-8000-{n:012}");
                token = Some(made_up.clone());
                return (name, made_up);
            }
            let begun = world.aws.autoscaling.begin("group", &name, &id);
            token = Some(begun.clone());
            (name, begun)
        };
        let body = match notice.kind {
            Kind::Spot(action) => messages::spot(&event, &id, at).replace("\"terminate\"", &format!("\"{action}\"")),
            Kind::Rebalance => messages::rebalance(&event, &id, at),
            Kind::State(state) => messages::state_change(&event, &id, state, at),
            Kind::Change(code, after) => change(n, code, &id, at, at + jiff::SignedDuration::from_secs(after)),
            Kind::Reservation(after) => messages::capacity_reservation(&event, &id, at, at + s(after)),
            Kind::Terminate(timeout, wrapping, owner) => {
                let others = owner == Owner::Others;
                let name = if others { "Terminate-LC-Hook".to_owned() } else { format!("hook-{n}") };
                let (name, token) = begin(true, timeout, name);
                messages::lifecycle(wrapping, true, ("group", &name, &token), &id, at)
            }
            Kind::Launch(timeout) => {
                let (name, token) = begin(false, timeout, format!("launch-{n}"));
                messages::lifecycle(messages::Wrapping::Event, false, ("group", &name, &token), &id, at)
            }
            Kind::Shift(zone, after) => {
                self.due.insert((elapsed + s(after), Event::ShiftEnds(n)));
                shift(n, zone, "Autoshift In Progress", at)
            }
            Kind::Condition => return,
            Kind::Garbage(body) => body.to_owned(),
        };
        if let Kind::Terminate(_, _, Owner::Early(after)) = notice.kind {
            self.due.insert((elapsed + s(after), Event::Complete(n)));
        }
        self.follow(n);
        self.due.extend(notice.proof.map(|after| (elapsed + s(after), Event::Show(n))));
        let message = world.aws.sqs.send(body.clone());
        self.oracle.note(format!("{notice:?} is sent as {message}"));
        self.bodies.insert(n, body);
        self.sent(n, Some(message), token);
    }

    /// Lets the group terminate the instance of a notice.
    pub(super) fn leave(&self, n: usize) {
        let Target::Node(node) = self.plan.notices[n].target else { return };
        if !self.oracle.seen().gone.contains_key(&node) {
            self.stage.world.aws.autoscaling.leave("group", &instance(node));
        }
    }

    /// Lets the instance of a notice wait at a hook, of which no message tells.
    pub(super) fn wait(&mut self, n: usize) {
        let Notice { kind, target: Target::Node(node), hook: Some(hook), .. } = self.plan.notices[n] else { return };
        if self.oracle.seen().gone.contains_key(&node) {
            return;
        }
        let name = if hook.elsewhere { "other" } else { "drain" };
        let token = self.stage.world.aws.autoscaling.begin("group", name, &instance(node));
        self.oracle.note(format!("{} waits at the hook {name}", instance(node)));
        if hook.elsewhere {
            return;
        }
        let mut seen = self.oracle.seen();
        if let Some(sent) = seen.sent.iter_mut().find(|sent| sent.notice == n) {
            sent.token = Some(token.clone());
        }
        seen.waiting.insert(n, token);
        if let Kind::Terminate(_, _, Owner::Early(after)) = kind {
            self.due.insert((self.stage.world.clock.elapsed() + s(after), Event::Complete(n)));
        }
    }

    /// Lets EC2 show what a message says. Its group shows at once that an instance waits.
    pub(super) fn show(&self, n: usize) {
        let (notice, ec2) = (&self.plan.notices[n], &self.stage.world.aws.ec2);
        let (id, mut seen) = (Self::id(notice.target), self.oracle.seen());
        if seen.called_off.contains_key(&n) {
            return;
        }
        seen.shown.insert(n);
        let told_at = self.stage.world.clock.now() - s(notice.proof.unwrap_or_default()) - s(notice.age);
        match notice.kind {
            Kind::Spot(action) => {
                let code = if action == "terminate" { Ec2::INTERRUPTED } else { "marked-for-stop" };
                ec2.set_spot_request(&id, code, action, told_at);
            }
            Kind::State(state) => ec2.set_state(&id, state),
            Kind::Change(code, after) => {
                let start = told_at + jiff::SignedDuration::from_secs(after);
                ec2.schedule(&id, (&format!("event-{n}"), &listed(code)), start);
            }
            _ => {}
        }
    }

    /// Sends the message of a change of which its Node has told first.
    pub(super) fn tell(&mut self, n: usize) {
        let (notice, world) = (&self.plan.notices[n], &self.stage.world);
        let Kind::Change(code, after) = notice.kind else { return };
        let now = world.clock.now();
        let start = now - s(notice.lag) + jiff::SignedDuration::from_secs(after);
        let body = change(n, code, &Self::id(notice.target), now, start);
        let message = self.send_more(n, body.clone());
        self.oracle.note(format!("notice {n} is sent as {message}"));
        self.bodies.insert(n, body);
    }

    /// Sends AWS's message that the change does not come.
    pub(super) fn call_off(&mut self, n: usize) {
        let (notice, now) = (&self.plan.notices[n], self.stage.world.clock.now());
        let (Kind::Change(code, after), Some(off)) = (notice.kind, notice.called_off) else { return };
        let start = now - s(off + notice.age) + jiff::SignedDuration::from_secs(after);
        let body = change(n, code, &Self::id(notice.target), now, start);
        if self.oracle.seen().shown.contains(&n) {
            self.stage.world.aws.ec2.close(&format!("event-{n}"), "Canceled");
        }
        let message = self.send_more(n, body.replace("\"upcoming\"", "\"closed\""));
        self.oracle.note(format!("notice {n} is called off by {message}"));
        self.oracle.seen().called_off.insert(n, message);
    }

    /// Sends AWS's message that a zonal shift is over.
    pub(super) fn end_shift(&self, n: usize) {
        let Kind::Shift(zone, _) = self.plan.notices[n].kind else { return };
        self.oracle.seen().shift_over.insert(n);
        let message = self.send_more(n, shift(n, zone, "Autoshift Completed", self.stage.world.clock.now()));
        self.oracle.note(format!("shift {n} ends by {message}"));
    }

    /// Sends another message of a notice.
    pub(super) fn send_more(&self, n: usize, body: String) -> String {
        let message = self.stage.world.aws.sqs.send(body);
        let mut seen = self.oracle.seen();
        let sent = seen.sent.iter_mut().find(|sent| sent.notice == n).expect("it must have been told before");
        sent.messages.push(message.clone());
        sent.open.insert(message.clone());
        message
    }

    /// Tells the oracle of a notice that is sent now.
    fn sent(&mut self, n: usize, message: Option<String>, token: Option<String>) {
        let at = i64::try_from(self.stage.world.clock.elapsed().as_millis()).unwrap_or_default();
        let (open, messages) = (message.iter().cloned().collect(), message.into_iter().collect());
        self.oracle.seen().sent.push(Sent { notice: n, at, open, messages, token });
        self.due.extend(self.oracle.begins_by(n).map(|by| (by, Event::Begin(n))));
    }
}

/// Returns the code of a change as EC2 lists it, and the metadata tell it.
fn listed(code: &str) -> String {
    code.trim_end_matches("_MAINTENANCE").to_lowercase().replace('_', "-")
}

/// Returns the message of a change of an instance.
fn change(n: usize, code: &str, id: &str, at: Timestamp, start: Timestamp) -> String {
    messages::scheduled_change(&format!("event-{n}"), &format!("AWS_EC2_{code}_SCHEDULED"), &[id], at, start)
}

/// Returns the message of a shift of a load balancer of its own.
fn shift(n: usize, zone: usize, what: &str, at: Timestamp) -> String {
    let resource = format!("arn:aws:elasticloadbalancing:eu-west-1:123456789012:loadbalancer/net/lb/{n}");
    messages::zonal_shift(what, &resource, &zone_id(zone), at)
}

/// Returns the id of a zone, as events and labels name it.
pub(super) fn zone_id(zone: usize) -> String {
    format!("euw1-az{zone}")
}

/// Returns the annotation by which the agent tells of a notice of this kind: docs/agent.md.
fn annotation(kind: Kind) -> String {
    let said = match kind {
        Kind::Spot(_) => "spot",
        Kind::Rebalance => "rebalance",
        Kind::Change(..) => "maintenance",
        _ => "termination",
    };
    format!("ebbtide/says.{said}")
}
