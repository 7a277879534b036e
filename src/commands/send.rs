//! `ebbtide send`: puts a test message on the queue, for a Node that allows it.
//!
//! It is sent with the caller's credentials: the service's own role can't send. What it says is as AWS would say it, so it is acted on
//! as AWS's own; only its identity tells that it is a test.

use crate::cli::answer::Answer;
use crate::cli::flags::EKS_HOOKS;
use crate::cli::flags::send::Send;
use crate::cli::settings;
use crate::clients::connect::{Clients, clients};
use crate::clients::gate::{AwsError, Category, Gate};
use crate::commands::test_message;
use crate::commands::test_message::{Trial, Unmade, Wanted, brief};
use crate::fact::Facts;
use crate::pipeline::event::Kind;
use crate::pipeline::node::label::Selector;
use crate::pipeline::queue::Place;
use crate::runtime::clock::Clock;

/// Sends what the command line asks for.
pub async fn send(flags: Send) -> Answer {
    let checked = match Checked::of(flags) {
        Ok(checked) => checked,
        Err(problems) => return Answer::wrong(&problems),
    };
    let clock = Clock::system();
    match clients(clock, Place::region_of(&checked.queue_url)).await {
        Ok(clients) => checked.send(&clients, clock).await,
        Err(error) => Answer::failed(&error),
    }
}

/// The same by way of `clients`, at the time that `clock` shows.
pub async fn send_with(clients: &Clients, clock: Clock, flags: Send) -> Answer {
    match Checked::of(flags) {
        Ok(checked) => checked.send(clients, clock).await,
        Err(problems) => Answer::wrong(&problems),
    }
}

struct Checked {
    kind: Kind,
    node: String,
    queue_url: String,
    hook: Option<(String, String)>,
}

impl Checked {
    fn of(flags: Send) -> Result<Self, String> {
        let Send { kind, node, queue_url, group, hook } = flags;
        let kind = test_message::kind(&kind)?;
        let queue_url = settings::queue_url(queue_url).map_err(|problems| problems.to_string())?;
        Ok(Self { kind, node, queue_url, hook: group.zip(hook) })
    }

    async fn send(&self, clients: &Clients, clock: Clock) -> Answer {
        let facts = Facts::to(Vec::new());
        let gate = Gate::new(facts.clone());
        let hook = self.hook.as_ref().map(|(group, hook)| (&**group, &**hook));
        let ignored_hooks: Vec<String> = EKS_HOOKS.split(',').map(str::to_owned).collect();
        let wanted = Wanted {
            kind: self.kind,
            node: &self.node,
            hook,
            ignored_hooks: &ignored_hooks,
            queue_url: &self.queue_url,
            sent: true,
        };
        let reading = (&facts, &gate, &Selector::default());
        // A group that does not exist would make the service fail, and say nothing of what is to be tried.
        let named = |why| Err(Unmade::NoHook(why));
        let trial = match test_message::make(clients, reading, wanted, (clock.now(), named)).await {
            Ok(trial) => trial,
            Err(error) => return Answer::failed(&error),
        };
        match test_message::send(&clients.aws.sqs, &facts, &self.queue_url, &trial.body).await {
            Ok(message) => Answer::well(self.sent(&trial, &message)),
            Err(error) => Answer::failed(&self.unsent(&error)),
        }
    }

    fn sent(&self, trial: &Trial, message: &str) -> String {
        let (kind, node) = (self.kind, &trial.node);
        let mut said = format!(
            "Sent a test notice of kind {kind} for Node {} ({}).\n\n  message ID  {message}\n  identity    {}\n  queue       {}\n\n\
             The service acts on it as on AWS's own. Watch:\n\n  kubectl get node {0} --watch\n  kubectl get pods --all-namespaces --field-selector spec.nodeName={0} --watch\n\n\
             Its log lines carry message_id={message}. Afterwards kubectl uncordon {0} gives the Node back,\nand the service takes its marks off.\n",
            node.name, node.instance, trial.identity, self.queue_url
        );
        if matches!(kind, Kind::AsgTerminate | Kind::AsgLaunch) {
            said.push_str(
                "\nThe lifecycle action is made up: AWS answers \"No active Lifecycle Action found\" when the service\n\
                 completes it, which counts as done. No instance is terminated by this.\n",
            );
        }
        if kind == Kind::AsgLaunch {
            said.push_str("\nBy default asg-launch is ignored: nothing happens without --on asg-launch=ready.\n");
        }
        said
    }

    fn unsent(&self, error: &AwsError) -> String {
        let said = brief(error);
        match error.category {
            _ if error.lacks_credentials() => format!(
                "{said}; give credentials of yours that may send to the queue: by AWS_PROFILE, aws sso login or aws login"
            ),
            Category::Denied => format!(
                "{said}; ebbtide send needs credentials of yours that allow sqs:SendMessage on {} (and its KMS key), the service's own role can't send",
                self.queue_url
            ),
            Category::NotFound => format!("{said}; check --queue-url, and that AWS_REGION is the queue's"),
            _ => format!("{said}; nothing was sent that is known of, try again"),
        }
    }
}
