//! `ebbtide explain`: what would be done about a message, and why. Nothing is changed: the cluster and AWS are only read.
//!
//! What is told is decided by the functions that the service itself decides by, in the order in which it asks them; only the words are
//! made here.
//!
//! ```text
//! input   the message            told    the shape of the answer
//! look    what is read           why     reasons, in words
//! notice  one notice's story     calls   what would be called, how often
//! pods    pods and budgets       budget  which of them block
//! text    the answer for people
//! ```

mod budget;
mod calls;
mod input;
mod look;
mod notice;
mod pods;
mod text;
mod told;
mod why;

pub use told::Told;

use crate::cli::answer::Answer;
use crate::cli::flags::explain::{Explain, Output};
use crate::cli::settings::Settings;
use crate::clients::connect::{Clients, clients_without_region};
use crate::clients::gate::KubeError;
use crate::commands::test_message;
use crate::commands::test_message::GroupHook;
use crate::commands::test_message::{HookError, MessageRequest, TestMessageError};
use crate::pipeline::event;
use crate::pipeline::event::{Kind, Notice, Parsed};
use crate::pipeline::queue::Place;
use crate::runtime::clock::Clock;
use look::Look;
use notice::Story;
use std::fmt;
use told::MessageTold;

/// The group and the hook of a made lifecycle action whose own are not known.
const MADE_UP: (&str, &str) = ("ebbtide-test-group", "ebbtide-test-hook");

/// What is asked, checked.
struct Question {
    asked: Asked,
    settings: Settings,
    output: Output,
}

/// Which message is asked about.
enum Asked {
    /// One that is there.
    Body(String),
    /// One that is to be made for a Node, of this group and hook where they are given.
    Made { kind: Kind, node: String, hook: Option<(String, String)> },
}

/// Explains what the command line asks.
pub async fn explain(flags: Explain) -> Answer {
    let question = match Question::of(flags) {
        Ok(question) => question,
        Err(problems) => return Answer::wrong(&problems),
    };
    let clock = Clock::system();
    // What asks nothing of us needs no cluster.
    if let Some(answer) = question.without_notices(clock) {
        return answer;
    }
    match clients_without_region(clock, Place::region_of(&question.settings.queue_url)).await {
        Ok(clients) => question.answer(&clients, clock).await,
        Err(error) => question.unexplained(clock, &error),
    }
}

/// The same by way of `clients`, at the time that `clock` shows.
pub async fn explain_with(clients: &Clients, clock: Clock, flags: Explain) -> Answer {
    match Question::of(flags) {
        Ok(question) => match question.without_notices(clock) {
            Some(answer) => answer,
            None => question.answer(clients, clock).await,
        },
        Err(problems) => Answer::wrong(&problems),
    }
}

impl Question {
    fn of(flags: Explain) -> Result<Self, String> {
        let Explain { file, kind, node, group, hook, output, run } = flags;
        let settings = Settings::without_queue(run).map_err(|problems| problems.to_string())?;
        let asked = match (kind, node) {
            (Some(kind), Some(node)) => {
                let kind = test_message::kind(&kind).map_err(|error| error.to_string())?;
                Asked::Made { kind, node, hook: group.zip(hook) }
            }
            _ => Asked::Body(input::read(file.as_deref())?),
        };
        Ok(Self { asked, settings, output })
    }

    /// The answer about a message in which there is no notice.
    fn without_notices(&self, clock: Clock) -> Option<Answer> {
        let Asked::Body(body) = &self.asked else { return None };
        let (message, problem) = match event::parse(body) {
            Parsed::Notices(_) => return None,
            Parsed::Ignored(why) => {
                let what = Some(why::ignored(why).to_owned());
                (MessageTold { is: "ignored", reason: Some(why.as_str()), what, ..MessageTold::default() }, None)
            }
            Parsed::Malformed(error) => {
                let problem = format!("the message can't be read: {error}; the service would count it and delete it");
                let (at, what) = (Some(error.at), Some(error.what));
                let reason = Some(error.reason.as_str());
                (MessageTold { is: "malformed", reason, at, what, made: None }, Some(problem))
            }
        };
        let told = Told { error: problem.clone(), ..self.told(clock, message) };
        Some(match (problem, self.output) {
            (Some(problem), Output::Text) => Answer::wrong(&problem),
            (Some(problem), Output::Json) => Answer { said: self.written(&told), ..Answer::wrong(&problem) },
            (None, _) => Answer::well(self.written(&told)),
        })
    }

    async fn answer(&self, clients: &Clients, clock: Clock) -> Answer {
        let mut look = Look::new(clients, clock, &self.settings);
        let told = match &self.asked {
            Asked::Body(body) => self.of_body(&mut look, body).await.map_err(TestMessageError::Kube),
            Asked::Made { kind, node, hook } => {
                let hook = hook.as_ref().map(|(group, hook)| (&**group, &**hook));
                let (queue_url, ignored_hooks) = (&self.settings.queue_url, &self.settings.policy.ignored_hooks);
                let request = MessageRequest { kind: *kind, node, hook, ignored_hooks, queue_url, sent: false };
                self.of_made(&mut look, request).await
            }
        };
        match told {
            Ok(told) => Answer::well(self.written(&told)),
            Err(error) => self.unexplained(clock, &error),
        }
    }

    /// The cluster is in the way. Who reads JSON is told so in JSON, too.
    fn unexplained(&self, clock: Clock, error: &impl fmt::Display) -> Answer {
        let answer = Answer::failed(error);
        if self.output == Output::Text {
            return answer;
        }
        let message = MessageTold { is: "unexplained", ..MessageTold::default() };
        let told = Told { error: Some(answer.problems.clone()), ..self.told(clock, message) };
        Answer { said: self.written(&told), ..answer }
    }

    /// An answer without notices.
    fn told(&self, clock: Clock, message: MessageTold) -> Told {
        let dry_run = self.settings.policy.dry_run;
        Told { now: clock.now(), message, dry_run, notices: Vec::new(), error: None }
    }

    async fn of_made(&self, look: &mut Look<'_>, request: MessageRequest<'_>) -> Result<Told, TestMessageError> {
        let mut made_up = None;
        let fallback = |error: HookError| {
            made_up = Some(error);
            Ok(GroupHook { group: MADE_UP.0.to_owned(), hook: MADE_UP.1.to_owned() })
        };
        let message = test_message::make(&look.sources(), request, look.clock.now(), fallback).await?;
        look.know(message.node);
        let mut told = self.of_body(look, &message.body).await?;
        told.message.made = serde_json::from_str(&message.body).ok();
        if let (Some(why), Some(notice)) = (made_up, told.notices.first_mut()) {
            notice.notes.push(format!("{why}: the group and the hook are made up; --group and --hook name others"));
        }
        Ok(told)
    }

    async fn of_body(&self, look: &mut Look<'_>, body: &str) -> Result<Told, KubeError> {
        let mut notices = Vec::new();
        if let Parsed::Notices(found) = event::parse(body) {
            for notice in found {
                notices.push(self.story(look, &notice).await?);
            }
        }
        let message = MessageTold { is: "notices", ..MessageTold::default() };
        Ok(Told { notices, ..self.told(look.clock, message) })
    }

    async fn story(&self, look: &mut Look<'_>, notice: &Notice) -> Result<told::NoticeTold, KubeError> {
        let node = look.node_of(&notice.instance).await?;
        let mut story = Story::new(notice, node, &self.settings, look.clock);
        story.tell(look).await?;
        Ok(story.told())
    }

    fn written(&self, told: &Told) -> String {
        match self.output {
            Output::Text => text::of(told),
            Output::Json => serde_json::to_string_pretty(told).map(|json| json + "\n").unwrap_or_default(),
        }
    }
}
