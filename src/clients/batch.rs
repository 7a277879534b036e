//! Many questions, few calls: collects what is asked within a short time and asks it at once.

use crate::runtime::task::{Group, Handle, Kind, Tasks};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

type Asked<Q, A> = (Q, oneshot::Sender<A>);

/// Collects questions into calls. Dropping it ends it and the calls under way.
#[derive(Debug)]
pub struct Batcher<Q, A> {
    sender: mpsc::UnboundedSender<Asked<Q, A>>,
    _task: Handle<()>,
}

/// The batch that held the question died; the question may or may not have reached AWS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the batched call ended without an answer; this is a bug in Ebbtide, please report it with the log")]
pub struct Unanswered;

impl<Q: Send + 'static, A: Send + 'static> Batcher<Q, A> {
    /// Starts a batcher whose calls carry at most `size` questions, the first of which waited at most `linger`.
    ///
    /// `call` answers questions one for one, in their order. Calls don't wait for each other.
    pub fn start<F, C>(tasks: &Tasks, size: usize, linger: Duration, call: C) -> Self
    where
        C: Fn(Vec<Q>) -> F + Send + Sync + 'static,
        F: Future<Output = Vec<A>> + Send + 'static,
    {
        let (sender, asked) = mpsc::unbounded_channel();
        let group = tasks.group(Kind::Batch);
        let task = tasks.spawn(Kind::Batcher, collect(asked, size, linger, group, call));
        Self { sender, _task: task }
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// When the batch died.
    pub async fn ask(&self, question: Q) -> Result<A, Unanswered> {
        let (sender, answer) = oneshot::channel();
        self.sender.send((question, sender)).map_err(|_| Unanswered)?;
        answer.await.map_err(|_| Unanswered)
    }
}

async fn collect<Q, A, F, C>(
    mut asked: mpsc::UnboundedReceiver<Asked<Q, A>>,
    size: usize,
    linger: Duration,
    mut calls: Group<()>,
    call: C,
) where
    Q: Send + 'static,
    A: Send + 'static,
    C: Fn(Vec<Q>) -> F + Send + Sync + 'static,
    F: Future<Output = Vec<A>> + Send + 'static,
{
    // Made in a task of its own: if it panics, the batcher lives on.
    let call = Arc::new(call);
    loop {
        let first = tokio::select! {
            first = asked.recv() => first,
            Some(_) = calls.next() => continue,
        };
        let Some(first) = first else { return };
        let until = Instant::now() + linger;
        let mut batch = Vec::with_capacity(size);
        batch.push(first);
        while batch.len() < size {
            match timeout_at(until, asked.recv()).await {
                Ok(Some(next)) => batch.push(next),
                Ok(None) | Err(_) => break,
            }
        }
        // Who has gone away may have done the opposite since: a lease that is extended after its message was released keeps it from others.
        batch.retain(|(_, taker)| !taker.is_closed());
        if batch.is_empty() {
            continue;
        }
        let (questions, takers): (Vec<Q>, Vec<oneshot::Sender<A>>) = batch.into_iter().unzip();
        let call = Arc::clone(&call);
        calls.spawn(async move {
            for (answer, taker) in call(questions).await.into_iter().zip(takers) {
                // A taker who has gone away no longer wants to know.
                let _ = taker.send(answer);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fact::Facts;
    use std::sync::Mutex;

    #[tokio::test(start_paused = true)]
    async fn fills_batches_and_waits_no_longer_than_it_says() {
        let tasks = Tasks::new(Facts::to(Vec::new()));
        let calls = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&calls);
        let batcher = Batcher::start(&tasks, 3, Duration::from_millis(50), move |questions: Vec<u32>| {
            seen.lock().unwrap().push(questions.clone());
            async move { questions.into_iter().map(|n| n * 2).collect() }
        });
        let begun = Instant::now();
        let answers = futures_util::future::join_all((0..4).map(|n| batcher.ask(n))).await;
        assert_eq!(answers, [Ok(0), Ok(2), Ok(4), Ok(6)]);
        assert_eq!(*calls.lock().unwrap(), [vec![0, 1, 2], vec![3]]);
        assert_eq!(begun.elapsed(), Duration::from_millis(50), "the fourth waited for company");
        drop(batcher);
        tasks.gone(|_| true).await;
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_waits_for_any_more_is_not_asked() {
        let tasks = Tasks::new(Facts::to(Vec::new()));
        let calls = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&calls);
        let batcher = Batcher::start(&tasks, 10, Duration::from_millis(50), move |questions: Vec<u32>| {
            seen.lock().unwrap().push(questions.clone());
            async move { questions.into_iter().map(|n| n * 2).collect() }
        });
        let leaves = |n| tokio::time::timeout(Duration::from_millis(20), batcher.ask(n));
        let (first, second, third, fourth) = tokio::join!(leaves(0), batcher.ask(1), leaves(2), batcher.ask(3));
        assert!(first.is_err() && third.is_err(), "they left before the call was made");
        assert_eq!((second, fourth), (Ok(2), Ok(6)), "the others are given their own answers");
        assert!(leaves(4).await.is_err());
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(*calls.lock().unwrap(), [vec![1, 3]], "there is no call for nobody");
        assert_eq!(batcher.ask(5).await, Ok(10), "and the next is asked");
    }
}
