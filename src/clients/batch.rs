//! Batches: questions that are asked within a short time share one call.

use crate::clients::gate::{AwsError, Category, Operation};
use crate::fact::TaskKind;
use crate::runtime::task::{Group, Handle, Tasks};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

/// A question, and the channel for its answer.
type Question<Q, A> = (Q, oneshot::Sender<Result<A, AwsError>>);

/// Collects questions into calls. Dropping the batcher aborts its calls.
#[derive(Debug)]
pub struct Batcher<Q, A> {
    operation: Operation,
    sender: mpsc::UnboundedSender<Question<Q, A>>,
    _task: Handle<()>,
}

impl<Q: Send + 'static, A: Send + 'static> Batcher<Q, A> {
    /// Starts a batcher of calls of `operation`. A call has at most `size` questions, and its first question waits for at most `linger`.
    ///
    /// `call` returns one answer for each question, in the same order. Calls don't wait for each other.
    pub fn start<F, C>(tasks: &Tasks, operation: Operation, size: usize, linger: Duration, call: C) -> Self
    where
        C: Fn(Vec<Q>) -> F + Send + Sync + 'static,
        F: Future<Output = Vec<Result<A, AwsError>>> + Send + 'static,
    {
        let (sender, questions) = mpsc::unbounded_channel();
        let group = tasks.group(TaskKind::Batch);
        let task = tasks.spawn(TaskKind::Batcher, collect(questions, size, linger, group, call));
        Self { operation, sender, _task: task }
    }

    /// Asks a question, and waits for its answer.
    ///
    /// # Errors
    /// That of the question, or of its call. A call that panicked may have reached AWS.
    pub async fn ask(&self, question: Q) -> Result<A, AwsError> {
        let (sender, answer) = oneshot::channel();
        // If the batcher is gone, so is the sender of the answer.
        let _ = self.sender.send((question, sender));
        answer.await.unwrap_or_else(|_| {
            let message = "the call ended without an answer; this is a bug in Ebbtide, please report it with the log";
            Err(AwsError::new(self.operation, "a batch", Category::Unavailable, message.to_owned()))
        })
    }
}

async fn collect<Q, A, F, C>(
    mut questions: mpsc::UnboundedReceiver<Question<Q, A>>,
    size: usize,
    linger: Duration,
    mut calls: Group<()>,
    call: C,
) where
    Q: Send + 'static,
    A: Send + 'static,
    C: Fn(Vec<Q>) -> F + Send + Sync + 'static,
    F: Future<Output = Vec<Result<A, AwsError>>> + Send + 'static,
{
    // Each call is a task: if it panics, the batcher continues.
    let call = Arc::new(call);
    loop {
        let first = tokio::select! {
            first = questions.recv() => first,
            Some(_) = calls.next() => continue,
        };
        let Some(first) = first else { return };
        let until = Instant::now() + linger;
        let mut batch = Vec::with_capacity(size);
        batch.push(first);
        while batch.len() < size {
            match timeout_at(until, questions.recv()).await {
                Ok(Some(next)) => batch.push(next),
                Ok(None) | Err(_) => break,
            }
        }
        // A question that was given up may be out of date: extending a message after its release would keep it from other receivers.
        batch.retain(|(_, answer)| !answer.is_closed());
        if batch.is_empty() {
            continue;
        }
        let (batch, senders): (Vec<Q>, Vec<oneshot::Sender<Result<A, AwsError>>>) = batch.into_iter().unzip();
        let call = Arc::clone(&call);
        calls.spawn(async move {
            for (answer, sender) in call(batch).await.into_iter().zip(senders) {
                // The question may have been given up.
                let _ = sender.send(answer);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fact::Facts;
    use parking_lot::Mutex;

    const OPERATION: Operation = Operation::new("sqs", "DeleteMessageBatch");

    fn doubled(questions: Vec<u32>) -> Vec<Result<u32, AwsError>> {
        questions.into_iter().map(|n| Ok(n * 2)).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn fills_batches_and_waits_no_longer_than_it_says() {
        let tasks = Tasks::new(Facts::to(Vec::new()));
        let calls = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&calls);
        let batcher = Batcher::start(&tasks, OPERATION, 3, Duration::from_millis(50), move |questions: Vec<u32>| {
            seen.lock().push(questions.clone());
            async move { doubled(questions) }
        });
        let begun = Instant::now();
        let answers = futures_util::future::try_join_all((0..4).map(|n| batcher.ask(n))).await.unwrap();
        assert_eq!(answers, [0, 2, 4, 6]);
        assert_eq!(*calls.lock(), [vec![0, 1, 2], vec![3]]);
        assert_eq!(begun.elapsed(), Duration::from_millis(50), "the fourth waited for company");
        drop(batcher);
        tasks.gone(|_| true).await;
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_waits_for_any_more_is_not_asked() {
        let tasks = Tasks::new(Facts::to(Vec::new()));
        let calls = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&calls);
        let batcher = Batcher::start(&tasks, OPERATION, 10, Duration::from_millis(50), move |questions: Vec<u32>| {
            seen.lock().push(questions.clone());
            async move { doubled(questions) }
        });
        let leaves = |n| tokio::time::timeout(Duration::from_millis(20), batcher.ask(n));
        let (first, second, third, fourth) = tokio::join!(leaves(0), batcher.ask(1), leaves(2), batcher.ask(3));
        assert!(first.is_err() && third.is_err(), "they left before the call was made");
        assert_eq!((second.unwrap(), fourth.unwrap()), (2, 6), "the others are given their own answers");
        assert!(leaves(4).await.is_err());
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(*calls.lock(), [vec![1, 3]], "there is no call for nobody");
        assert_eq!(batcher.ask(5).await.unwrap(), 10, "and the next is asked");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_panics_is_an_error_of_its_questions_alone() {
        let tasks = Tasks::new(Facts::to(Vec::new()));
        let batcher = Batcher::start(&tasks, OPERATION, 1, Duration::ZERO, |questions: Vec<u32>| async move {
            assert_ne!(questions, [1], "a test's call that panics");
            doubled(questions)
        });
        let (panicked, other) = tokio::join!(batcher.ask(1), batcher.ask(2));
        let error = panicked.unwrap_err();
        assert_eq!(error.category, Category::Unavailable, "its caller tries again");
        assert!(error.to_string().starts_with("sqs:DeleteMessageBatch for a batch: "), "{error}");
        assert_eq!(other.unwrap(), 4);
    }
}
