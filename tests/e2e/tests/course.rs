//! The networking course's lab, done with our executable (`docs/course-lab.md`):
//! the page's commands are carried out and their output is compared.

use anyhow::{Context, Result, ensure};
use e2e::cluster::{Cluster, SYSTEM};
use e2e::document;
use lab::progress::say;

/// Whatever a step failed at: the agents run everywhere, and the shipped configuration alone is there.
struct Restore<'a>(&'a Cluster);

impl Drop for Restore<'_> {
    fn drop(&mut self) {
        let back = r#"{"spec":{"template":{"spec":{"affinity":null}}}}"#;
        let restored = (|| -> Result<()> {
            self.0.kubectl(&[
                "-n",
                SYSTEM,
                "patch",
                "daemonset",
                "kube-ovn-cni",
                "--type=merge",
                "-p",
                back,
            ])?;
            let nodes = self.0.nodes()?;
            self.0.wait_system("kube-ovn-cni", nodes.len())?;
            // While its configuration is there, or the runtime forgets to forget the pods.
            self.0.kubectl(&["delete", "namespace", "course", "--ignore-not-found", "--timeout=120s"])?;
            for node in &nodes {
                self.0.sh(node, "rm -rf /etc/cni/net.d/00-course.conflist /tmp/course")?;
                self.0.sh(node, "ip netns del course-nobody 2>/dev/null || true")?;
            }
            self.0
                .kubectl(&["delete", "namespace", "course", "--ignore-not-found", "--timeout=120s"])
                .map(drop)
        })();
        if let Err(error) = restored {
            eprintln!("the cluster is not as before the course: {error:#}");
        }
    }
}

#[test]
fn course_lab_is_done_as_the_page_says() -> Result<()> {
    let cluster = Cluster::open()?;
    let family = cluster.lab.plan.family;
    if !family.v4() {
        // Its URLs and routes are written for IPv4, as the course's are; `families` and `lab show` cover IPv6.
        say("the course's page is for clusters with IPv4: not carried out here");
        return Ok(());
    }
    let page = lab::workspace_folder().join("docs/course-lab.md");
    let page = std::fs::read_to_string(&page).with_context(|| format!("cannot read {}", page.display()))?;
    let steps = document::steps(&page)?;
    ensure!(steps.len() > 20, "only {} steps in the page", steps.len());
    let _restore = Restore(&cluster);
    for step in &steps {
        document::run(&cluster, step)?;
    }
    say(format!("{} steps of the course's lab done", steps.len()));
    Ok(())
}
