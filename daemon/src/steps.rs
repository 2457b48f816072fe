//! Where a call can die: after every single change that it made to the kernel
//! or to the switch.
//!
//! In production [`done`] is one look at an empty task-local. A test runs a
//! call under [`dying`] and lets it end for good after any step, as a process
//! that is killed there would: no destructor rolls back, nothing follows. The
//! changes themselves pass through [`crate::netlink`] and [`crate::ovs`], so
//! those two say when one is done; callers need not know.

use std::sync::Arc;

/// Told of each step by name; `true` means that the process dies here.
pub type Death = Arc<dyn Fn(&str) -> bool + Send + Sync>;

tokio::task_local! {
    static DEATH: Death;
}

/// Runs `work` so that it never gets past a step at which `death` says so.
pub async fn dying<T>(death: Death, work: impl Future<Output = T>) -> T {
    DEATH.scope(death, work).await
}

/// Work for a task of its own that dies with the one that starts it.
pub(crate) fn inherited<T>(work: impl Future<Output = T>) -> impl Future<Output = T> {
    let death = DEATH.try_with(Clone::clone).ok();
    async move {
        match death {
            Some(death) => DEATH.scope(death, work).await,
            None => work.await,
        }
    }
}

/// A change was made.
pub(crate) async fn done(step: &str) {
    if DEATH.try_with(|death| death(step)).unwrap_or(false) {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    use futures::FutureExt;

    #[tokio::test]
    async fn nothing_follows_the_step_at_which_the_process_dies() {
        done("outside of a test").await;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = seen.clone();
        let death: Death = Arc::new(move |step| {
            log.lock().unwrap().push(step.to_owned());
            step == "second"
        });
        let work = async {
            for step in ["first", "second", "third"] {
                done(step).await;
            }
        };
        assert!(dying(death, work).now_or_never().is_none(), "it never ends");
        assert_eq!(*seen.lock().unwrap(), ["first", "second"]);
    }
}
