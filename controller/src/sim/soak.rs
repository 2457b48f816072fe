//! Everything at once: pods, nodes and hands on the database, two controllers that
//! are suspended, fenced, killed and elected, lost transactions and failed writes.
//! At the end all is as if nothing had happened.

use super::Bench;
use super::bench::Faults;
use super::churn::{check_pods, inventory, same_inventory};
use super::orders::{random_change, seeds};
use crate::facts::{Kind, ObjectRef};
use crate::io::Input;

struct Election {
    leader: usize,
    standby: usize,
}

impl Election {
    /// Something happens to the leader; the standby takes over.
    fn turn(&mut self, bench: &mut Bench) {
        match bench.rng.below(4) {
            // A clean hand-over.
            0 => bench.input(self.leader, Input::Deposed),
            // Suspended; it wakes up some time after the hand-over, or never.
            1 | 2 => bench.processes[self.leader].paused = true,
            // The lease is lost, which the old leader learns from the fence only.
            _ => {}
        }
        std::mem::swap(&mut self.leader, &mut self.standby);
        bench.elect(self.leader);
    }

    /// A process that is fenced exits and is started anew; one that was suspended
    /// may wake up.
    fn tend(&mut self, bench: &mut Bench) {
        if bench.processes[self.standby].paused && bench.rng.chance(5) {
            bench.processes[self.standby].paused = false;
        }
        for process in [&mut self.leader, &mut self.standby] {
            if bench.processes[*process].fenced {
                bench.processes[*process].paused = true;
                bench.processes[*process].fenced = false;
                *process = bench.start();
            }
        }
    }
}

#[test]
fn after_any_trouble_all_is_as_if_nothing_had_happened() {
    for seed in seeds(25) {
        let mut bench = Bench::cluster(5000 + seed);
        let empty = inventory(&bench);
        let standby = bench.start();
        let mut election = Election { leader: 0, standby };
        bench.faults = Faults { lost: 3, relist: 3, write: 4 };
        for _ in 0..80 {
            random_change(&mut bench);
            for _ in 0..bench.rng.below(15) {
                bench.step();
                election.tend(&mut bench);
            }
            if bench.rng.chance(8) {
                election.turn(&mut bench);
            }
        }
        bench.faults = Faults::default();
        // The last leader dies as well; a fresh one takes over.
        for process in [election.leader, election.standby] {
            bench.processes[process].paused = true;
        }
        let last = bench.start();
        bench.elect(last);
        bench.pass(60_000);
        let context = format!("seed {seed}");
        assert!(bench.core().quiet(), "{context}: {}", bench.core().status());
        // Pods on a node that is gone, or bound to a subnet that this version does not
        // serve, have no network; everybody else does.
        bench.api.delete(&ObjectRef::cluster(Kind::Subnet, "extra"), 0);
        for object in bench.api.names(Kind::Pod) {
            let value = bench.api.get(&object).unwrap();
            let alive = value["status"]["phase"] != "Failed" && value["spec"]["nodeName"] != "n-3";
            if !alive {
                bench.api.remove(&object);
            }
        }
        bench.pass(60_000);
        check_pods(&bench, &context);
        for kind in [Kind::Pod, Kind::Node, Kind::Subnet] {
            for object in bench.api.names(kind) {
                if kind == Kind::Pod || ["n-3", "extra"].contains(&&*object.name) {
                    bench.api.delete(&object, 0);
                    bench.api.grace_over(&object);
                }
            }
        }
        bench.pass(60_000);
        same_inventory(&bench, &empty, &context);
    }
}
