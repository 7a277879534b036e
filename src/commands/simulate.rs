//! `ebbtide simulate`: what the service would do about a message, and why. It only reads the cluster and AWS.
//!
//! The service's own functions decide, in the order of its own steps; only the words are made here.
//!
//! ```text
//! input      reads the message           narration  goes through a notice's steps
//! reader     reads the cluster, and AWS  reasons    reasons, in words
//! pods       a node's pods               budget     the budgets that hold them back
//! view       the answer's shape          text       the answer as text
//! marks      the marks on a Node         waits      what is waited for
//! target_groups  those of the instance
//! ```

mod budget;
mod input;
mod marks;
mod narration;
mod pods;
mod reader;
mod reasons;
mod target_groups;
mod text;
mod view;
mod waits;

use crate::cli::answer::Answer;
use crate::cli::flags::borrowed::ServiceFlags;
use crate::cli::flags::simulate::Simulate;
use crate::cli::output::Output;
use crate::cli::settings::{Settings, SettingsError, lifecycle_hook};
use crate::clients::connect::{Clients, ClusterChoice, clients_without_region};
use crate::clients::gate::KubeError;
use crate::commands::cluster::chosen;
use crate::commands::test_message;
use crate::commands::test_message::GroupHook;
use crate::commands::test_message::{HookError, MessageRequest, TestMessageError};
use crate::pipeline::event;
use crate::pipeline::event::{
    Detail, Identity, IgnoreReason, InstanceId, Notice, NoticeKind, NoticeTime, Notices, Parsed,
};
use crate::pipeline::queue::QueueUrl;
use crate::runtime::clock::Clock;
use narration::Narration;
use reader::Reader;
use std::fmt;
use view::{MessageClass, MessageView, NoticeView, Simulation, ZONAL_SHIFT};

/// Group and hook of a made lifecycle action, if the instance has none.
const MADE_UP: (&str, &str) = ("ebbtide-test-group", "ebbtide-test-hook");

/// The command line, checked.
struct Question {
    source: MessageSource,
    settings: Settings,
    output: Output,
    cluster: ClusterChoice,
}

/// The message to simulate.
enum MessageSource {
    /// A message's body.
    Body(String),
    /// A message that is made for a Node, with this group and hook, if they are given.
    Made { kind: NoticeKind, node: String, hook: Option<(String, String)> },
}

/// The reason why a command line is no question.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("{0}")]
    Settings(SettingsError),
    #[error(transparent)]
    NoMessage(#[from] input::NoMessage),
}

/// Answers the command line.
pub async fn simulate(flags: Simulate) -> Answer {
    let question = match Question::new(flags) {
        Ok(question) => question,
        Err(refusal) => return Answer::wrong(&refusal),
    };
    let clock = Clock::system();
    // A message without a notice needs no cluster.
    if let Some(answer) = question.without_notices(clock) {
        return answer;
    }
    let region = QueueUrl::region_of(&question.settings.queue_url);
    match clients_without_region(clock, region, &question.cluster).await {
        Ok(clients) => question.answer(&clients, clock).await,
        Err(error) => question.unanswered(clock, &error),
    }
}

/// Answers the command line with these clients, at the time that `clock` shows.
pub async fn simulate_with(clients: &Clients, clock: Clock, flags: Simulate) -> Answer {
    match Question::new(flags) {
        Ok(question) => match question.without_notices(clock) {
            Some(answer) => answer,
            None => question.answer(clients, clock).await,
        },
        Err(refusal) => Answer::wrong(&refusal),
    }
}

impl Question {
    fn new(flags: Simulate) -> Result<Self, Refusal> {
        let Simulate { file, kind, node, group, hook, borrowed } = flags;
        let ServiceFlags { output, cluster, run, .. } = borrowed;
        let settings = Settings::without_queue(run).map_err(Refusal::Settings)?;
        let source = match (kind, node) {
            (Some(kind), Some(node)) => {
                let hook = lifecycle_hook(kind, group, hook).map_err(Refusal::Settings)?;
                MessageSource::Made { kind, node, hook }
            }
            _ => MessageSource::Body(input::read(file.as_deref())?),
        };
        Ok(Self { source, settings, output, cluster: chosen(cluster) })
    }

    /// Answers about a message in which there is no notice.
    fn without_notices(&self, clock: Clock) -> Option<Answer> {
        let MessageSource::Body(body) = &self.source else { return None };
        let (message, problem) = match event::parse(body) {
            Parsed::Notices(_) | Parsed::Block(_) => return None,
            Parsed::Shift(shift)
                if shift.resources.iter().any(|name| self.settings.policy().waits.zonal_shift.has(name)) =>
            {
                let what = Some(reasons::shift(&shift));
                (MessageView { reason: Some(ZONAL_SHIFT), what, ..MessageView::of(MessageClass::Ignored) }, None)
            }
            Parsed::Shift(_) => {
                let (why, what) =
                    (IgnoreReason::OtherShift, Some(reasons::ignored(IgnoreReason::OtherShift).to_owned()));
                (MessageView { reason: Some(why.as_str()), what, ..MessageView::of(MessageClass::Ignored) }, None)
            }
            Parsed::Ignored(why) => {
                let what = Some(reasons::ignored(why).to_owned());
                (MessageView { reason: Some(why.as_str()), what, ..MessageView::of(MessageClass::Ignored) }, None)
            }
            Parsed::Malformed(error) => {
                let problem = format!("the message can't be read: {error}; the service would count it and delete it");
                let (at, what) = (Some(error.at), Some(error.what));
                let reason = Some(error.reason.as_str());
                (MessageView { is: MessageClass::Malformed, reason, at, what, made: None }, Some(problem))
            }
        };
        let simulation = Simulation { error: problem.clone(), ..self.simulation(clock, message) };
        Some(match (problem, self.output) {
            (Some(problem), Output::Table) => Answer::wrong(&problem),
            (Some(problem), _) => Answer { output: self.written(&simulation), ..Answer::wrong(&problem) },
            (None, _) => Answer::well(self.written(&simulation)),
        })
    }

    async fn answer(&self, clients: &Clients, clock: Clock) -> Answer {
        let mut reader = Reader::new(clients, clock, &self.settings);
        let simulation = match &self.source {
            MessageSource::Body(body) => {
                let notices = match event::parse(body) {
                    Parsed::Notices(notices) => notices,
                    Parsed::Block(block) => match reader.in_reservation(&block.reservation).await {
                        Ok(instances) => block.notices(instances),
                        Err(error) => return self.unanswered(clock, &error),
                    },
                    Parsed::Shift(_) | Parsed::Ignored(_) | Parsed::Malformed(_) => Notices::default(),
                };
                self.simulate_notices(&mut reader, notices).await.map_err(TestMessageError::Kube)
            }
            MessageSource::Made { kind, node, hook } => {
                let hook = hook.as_ref().map(|(group, hook)| (&**group, &**hook));
                let (queue_url, ignored_hooks) = (&self.settings.queue_url, &self.settings.policy().ignored_hooks);
                let request = MessageRequest { kind: *kind, node, hook, ignored_hooks, queue_url, sent: false };
                self.simulate_made(&mut reader, request).await
            }
        };
        match simulation {
            Ok(simulation) => Answer::well(self.written(&simulation)),
            Err(error) => self.unanswered(clock, &error),
        }
    }

    /// Answers that the cluster could not be read; in JSON, too, if JSON is wanted.
    fn unanswered(&self, clock: Clock, error: &impl fmt::Display) -> Answer {
        let answer = Answer::failed(error);
        if self.output == Output::Table {
            return answer;
        }
        let message = MessageView::of(MessageClass::Unanswered);
        let simulation = Simulation { error: Some(answer.problems.clone()), ..self.simulation(clock, message) };
        Answer { output: self.written(&simulation), ..answer }
    }

    /// A simulation without notices.
    fn simulation(&self, clock: Clock, message: MessageView) -> Simulation {
        let dry_run = self.settings.policy().dry_run;
        Simulation { now: clock.now(), message, dry_run, notices: Vec::new(), error: None }
    }

    async fn simulate_made(
        &self,
        reader: &mut Reader<'_>,
        mut request: MessageRequest<'_>,
    ) -> Result<Simulation, TestMessageError> {
        // Without a queue only the Node reports it, and no hook.
        let is_hint = request.kind == NoticeKind::AsgTerminate && !self.settings.sources.queue;
        if is_hint {
            request.hook = Some(MADE_UP);
        }
        let mut made_up = None;
        let fallback = |error: HookError| {
            made_up = Some(error);
            Ok(GroupHook { group: MADE_UP.0.to_owned(), hook: MADE_UP.1.to_owned() })
        };
        let made = test_message::make(&reader.sources(), request, reader.clock.now(), fallback).await?;
        let instance = made.node.instance.clone();
        reader.know(made.node);
        if is_hint || request.kind.is_repair() {
            return Ok(self.simulate_without_message(reader, request.kind, &instance).await?);
        }
        let notices = match event::parse(&made.body) {
            Parsed::Notices(notices) => notices,
            _ => Notices::default(),
        };
        let mut simulation = self.simulate_notices(reader, notices).await?;
        simulation.message.made = serde_json::from_str(&made.body).ok();
        if let (Some(why), Some(notice)) = (made_up, simulation.notices.first_mut()) {
            notice.notes.push(format!("{why}: the group and the hook are made up; --group and --hook name others"));
        }
        Ok(simulation)
    }

    /// Simulates what would be done if the Node reported its termination, or were unhealthy: for each condition with a rule, or for a status
    /// check.
    async fn simulate_without_message(
        &self,
        reader: &mut Reader<'_>,
        kind: NoticeKind,
        instance: &InstanceId,
    ) -> Result<Simulation, KubeError> {
        let now = reader.clock.now();
        let of_rules = self.settings.policy().conditions.iter();
        let details: Vec<Detail> = match kind {
            NoticeKind::NodeCondition => of_rules.map(|rule| Detail::Condition(rule.name.to_string())).collect(),
            NoticeKind::AsgTerminate => {
                vec![Detail::AsgTermination { sought: self.settings.policy().node_hook().is_some() }]
            }
            _ => vec![Detail::StatusCheck("instance")],
        };
        let mut notices = Vec::new();
        for detail in details {
            let identity = match &detail {
                Detail::Condition(name) => Identity::Condition { condition: name.clone(), instance: instance.clone() },
                Detail::AsgTermination { .. } => Identity::Agent { kind, at: None, instance: instance.clone() },
                _ => Identity::StatusCheck { check: "instance", since: None, instance: instance.clone() },
            };
            let notice = Notice::new(identity, instance.clone(), NoticeTime::Seen(now), detail);
            let mut view = self.simulate_notice(reader, &notice).await?;
            if let (Detail::AsgTermination { .. }, Some(name)) = (&notice.detail, self.settings.policy().node_hook()) {
                view.notes.push(format!("where the instance waits at the lifecycle hook {name}, that is kept alive and completed, and its timeout is the deadline"));
            }
            notices.push(view);
        }
        let what =
            notices.is_empty().then(|| "there is no --on-condition: no condition of a Node is acted on".to_owned());
        let (class, reason) = match what {
            Some(_) => (MessageClass::Ignored, Some(kind.as_str())),
            None => (MessageClass::Notices, None),
        };
        let message = MessageView { reason, what, ..MessageView::of(class) };
        Ok(Simulation { notices, ..self.simulation(reader.clock, message) })
    }

    async fn simulate_notices(&self, reader: &mut Reader<'_>, found: Notices) -> Result<Simulation, KubeError> {
        let mut notices = Vec::new();
        for notice in found {
            notices.push(self.simulate_notice(reader, &notice).await?);
        }
        if notices.is_empty() {
            let why = IgnoreReason::EmptyReservation;
            let what = Some(reasons::ignored(why).to_owned());
            let message = MessageView { reason: Some(why.as_str()), what, ..MessageView::of(MessageClass::Ignored) };
            return Ok(self.simulation(reader.clock, message));
        }
        let message = MessageView::of(MessageClass::Notices);
        Ok(Simulation { notices, ..self.simulation(reader.clock, message) })
    }

    async fn simulate_notice(&self, reader: &mut Reader<'_>, notice: &Notice) -> Result<NoticeView, KubeError> {
        let node = reader.node_of(&notice.instance).await?;
        let shift = match &node {
            Some(node) => reader.shift(node).await?,
            None => None,
        };
        Narration::new(notice, (node, shift), &self.settings, reader.clock).into_view(reader).await
    }

    fn written(&self, simulation: &Simulation) -> String {
        self.output.of(simulation, || text::of(simulation))
    }
}
