//! The agent's tasks: none of them ends unnoticed.
//!
//! A panic ends one task, not the process, so a loop that died would leave a node whose probes are well and of which
//! nothing is kept. Whoever runs the agent waits for a [`Tasks::fault`] beside the signals and ends the process then: the
//! next one begins with a look at everything.

use std::collections::HashMap;

use anyhow::Context;
use tokio::task::{Id, JoinSet};

/// Tasks by name; they end with it.
#[derive(Debug, Default)]
pub struct Tasks {
    set: JoinSet<()>,
    names: HashMap<Id, (&'static str, bool)>,
}

impl Tasks {
    /// One that goes on until the agent is stopped.
    pub fn keep(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.add(name, true, task);
    }

    /// One that may come to its end.
    pub fn once(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.add(name, false, task);
    }

    fn add(&mut self, name: &'static str, lasts: bool, task: impl Future<Output = ()> + Send + 'static) {
        let id = self.set.spawn(task).id();
        self.names.insert(id, (name, lasts));
    }

    /// Waits for a task that panics, or that ends and should not have. Pending for ever as long as all is well.
    pub async fn fault(&mut self) -> anyhow::Error {
        while let Some(ended) = self.set.join_next_with_id().await {
            let id = match &ended {
                Ok((id, ())) => *id,
                Err(error) => error.id(),
            };
            let (name, lasts) = self.names.remove(&id).unwrap_or(("a task", true));
            match ended {
                Err(error) => return anyhow::anyhow!("{name} broke off: {error}"),
                Ok(_) if lasts => return anyhow::anyhow!("{name} ended by itself"),
                Ok(_) => {}
            }
        }
        std::future::pending().await
    }

    /// Waits until all have ended. A panic of one is in the log.
    pub async fn end(&mut self) {
        while self.set.join_next().await.is_some() {}
    }
}

/// Waits until the agent is asked to end, or can't go on: a server or a task broke off, and nothing would do its work.
///
/// # Errors
/// What broke off.
pub async fn until_end(
    asked: impl Future<Output = ()>,
    servers: &mut JoinSet<std::io::Result<()>>,
    tasks: &mut Tasks,
    last: &mut Tasks,
) -> anyhow::Result<()> {
    tokio::select! {
        () = asked => Ok(()),
        Some(ended) = servers.join_next() => {
            ended.context("a server ended")?.context("a server ended")?;
            anyhow::bail!("a server ended")
        }
        fault = tasks.fault() => Err(fault),
        fault = last.fault() => Err(fault),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};

    use futures::FutureExt;

    #[tokio::test]
    async fn a_task_that_panics_or_ends_too_early_is_told_and_others_are_not() {
        let mut tasks = Tasks::default();
        tasks.keep("the host's loop", pending());
        tasks.once("a look", ready(()));
        tokio::task::yield_now().await;
        assert!(tasks.fault().now_or_never().is_none(), "all is well");
        tasks.once("the pods' loop", async { panic!("no such pod") });
        let fault = tasks.fault().await.to_string();
        assert!(fault.starts_with("the pods' loop broke off") && fault.contains("no such pod"), "{fault}");
        tasks.keep("the underlay's loop", ready(()));
        assert_eq!(tasks.fault().await.to_string(), "the underlay's loop ended by itself");
    }

    #[tokio::test]
    async fn a_task_that_panics_ends_the_process_with_an_error() {
        let (mut servers, mut tasks, mut last) = (JoinSet::new(), Tasks::default(), Tasks::default());
        servers.spawn(pending());
        last.keep("the loop of the port in an external network", pending());
        until_end(ready(()), &mut servers, &mut tasks, &mut last).await.unwrap();
        tasks.keep("the host's loop", async { panic!("a test") });
        let error = until_end(pending(), &mut servers, &mut tasks, &mut last).await.unwrap_err();
        assert!(error.to_string().starts_with("the host's loop broke off"), "{error}");
        servers.spawn(async { panic!("a test") });
        let error = until_end(pending(), &mut servers, &mut tasks, &mut last).await.unwrap_err();
        assert_eq!(error.to_string(), "a server ended");
    }
}
