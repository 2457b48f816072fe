//! Many calls: a burst of pods in bounded memory, and a long row of ADD and
//! DEL that leaves the agent as it was. The agent is the real process.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::time::{Duration, Instant};

use cni::api::CniRequest;
use daemon::kube::PodFacts;
use daemon::sys::Namespace;
use support::agent::Machine;
use support::{new_namespace, path_of};

/// Pod number `n` of many, in 10.16.0.0/16 from 10.16.1.0 on.
fn pod(n: u16) -> PodFacts {
    let [high, low] = n.to_be_bytes();
    let (third, fourth) = (1 + high, low);
    let annotations = [
        ("allocated", "true".to_owned()),
        ("routed", "true".to_owned()),
        ("ip_address", format!("10.16.{third}.{fourth}")),
        ("mac_address", format!("0a:58:0a:10:{third:02x}:{fourth:02x}")),
        ("cidr", "10.16.0.0/16".to_owned()),
        ("gateway", "10.16.0.1".to_owned()),
        ("logical_switch", support::SUBNET.to_owned()),
    ];
    PodFacts {
        namespace: "web".into(),
        name: format!("many-{n}"),
        uid: format!("uid-{n}"),
        annotations: annotations.map(|(key, value)| (crds::keys::pod_key("ovn", key), value)).into(),
        ..PodFacts::default()
    }
}

fn request(pod: &PodFacts, namespace: &Namespace, number: u32) -> CniRequest {
    CniRequest {
        cni_type: "kube-ovn".into(),
        pod_name: pod.name.clone(),
        pod_namespace: pod.namespace.clone(),
        container_id: format!("{number:012x}{:052x}", 0),
        net_ns: path_of(namespace),
        if_name: "eth0".into(),
        provider: "ovn".into(),
        network: "kube-ovn".into(),
        ..CniRequest::default()
    }
}

/// What a process holds.
#[derive(Clone, Copy, Debug)]
struct Held {
    descriptors: usize,
    threads: usize,
    resident_kb: u64,
    peak_kb: u64,
    /// Page faults of child processes that ended: any program that was run left some.
    children: u64,
}

fn held(process: u32) -> Held {
    let path = |file: &str| format!("/proc/{process}/{file}");
    let status = std::fs::read_to_string(path("status")).unwrap();
    let number = |key: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        line.trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap()
    };
    let stat = std::fs::read_to_string(path("stat")).unwrap();
    Held {
        descriptors: std::fs::read_dir(path("fd")).unwrap().count(),
        threads: usize::try_from(number("Threads:")).unwrap(),
        resident_kb: number("VmRSS:"),
        peak_kb: number("VmHWM:"),
        // proc(5): the ninth field after the name in parentheses is cminflt.
        children: stat.rsplit(") ").next().unwrap().split(' ').nth(8).unwrap().parse().unwrap(),
    }
}

/// Waits until the agent has no more than `least` descriptors: sockets of the last calls are closed by tasks.
async fn settled(process: u32, least: usize) -> Held {
    for _ in 0..500 {
        let now = held(process);
        if now.descriptors <= least {
            return now;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    held(process)
}

/// Waits until no program was run for a few seconds: the kernel reports the agent's first writes to it, which looks at
/// them once more.
async fn resting(process: u32) -> Held {
    let (mut last, mut since) = (held(process), Instant::now());
    while since.elapsed() < Duration::from_secs(4) {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let now = held(process);
        if now.children != last.children {
            since = Instant::now();
        }
        last = now;
    }
    last
}

async fn cycles(count: u32) {
    let machine = Machine::boot().await;
    let agent = machine.start_agent();
    machine.wait_ready().await;
    let namespace = new_namespace();
    let run = async |numbers: std::ops::Range<u32>| {
        for number in numbers {
            let pod = pod(u16::try_from(number % 200).unwrap());
            machine.route_pod(&pod);
            let request = request(&pod, &namespace, number);
            machine.add(&request).await;
            machine.del(&request).await;
            machine.api.delete("pods", &pod.namespace, &pod.name);
        }
    };
    // Pools and caches fill, and the first verification is over.
    run(0..50).await;
    let before = settled(agent.0.id(), 0).await;
    let begin = Instant::now();
    run(50..50 + count).await;
    let took = begin.elapsed();
    let after = settled(agent.0.id(), before.descriptors).await;
    println!("{count} cycles in {took:.1?}: {before:?} then {after:?}");
    assert!(after.descriptors <= before.descriptors + 2, "{before:?} {after:?}");
    assert!(after.threads <= before.threads + 2, "{before:?} {after:?}");
    // A leak of one kilobyte a cycle would be seen over a thousand of them.
    let allowed = 1024 + u64::from(count);
    assert!(after.resident_kb <= before.resident_kb + allowed, "{before:?} {after:?}");
    assert!(machine.ovs.view().interfaces().all(|interface| !interface.is_pod_port()));
    // The verification of the host's firewall, once a minute in a pause, is no call's.
    if count < 500 {
        assert_eq!(before.children, after.children, "no program was run");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_adds_and_dels_leave_the_agent_as_it_was() {
    cycles(150).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: make soak"]
async fn soak_a_thousand_adds_and_dels() {
    cycles(1000).await;
}

/// U57: hundreds of pods at once on one node. No child process, memory that
/// does not grow with the number of calls, all of them succeed.
async fn burst(count: u16) {
    let machine = Machine::boot().await;
    let agent = machine.start_agent();
    machine.wait_ready().await;
    machine.ask_gateway_alone();
    let pods: Vec<_> = (0..count).map(|n| (pod(n), new_namespace())).collect();
    let requests: Vec<_> =
        pods.iter().enumerate().map(|(n, (pod, namespace))| request(pod, namespace, n as u32)).collect();
    let before = resting(agent.0.id()).await;
    // The calls come first: all of them wait for the controller.
    let begin = Instant::now();
    let adds = futures::future::join_all(requests.iter().map(|request| machine.add(request)));
    let route = async {
        for (pod, _) in &pods {
            machine.route_pod(pod);
            tokio::task::yield_now().await;
        }
    };
    tokio::join!(adds, route);
    let added = begin.elapsed();
    let during = held(agent.0.id());
    let begin = Instant::now();
    futures::future::join_all(requests.iter().map(|request| machine.del(request))).await;
    println!("{count} pods: ADD {added:.1?}, DEL {:.1?}; {before:?} then {during:?}", begin.elapsed());
    assert_eq!(before.children, during.children, "no program was run");
    // 128 interfaces at a time, whatever the number of calls.
    assert!(during.peak_kb < before.resident_kb + 65_536, "{before:?} {during:?}");
    assert!(machine.ovs.view().interfaces().all(|interface| !interface.is_pod_port()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn u_57_two_hundred_pods_at_once() {
    burst(200).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: make soak"]
async fn soak_u_57_five_hundred_pods_at_once() {
    burst(500).await;
}

/// Prints what the agent holds with 110 pods, at rest. `WEIR_AGENT`: the executable that is measured, as
/// `target/dist/kube-ovn-daemon`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn measure_the_memory_with_110_pods() {
    let machine = Machine::boot().await;
    let agent = machine.start_agent();
    machine.wait_ready().await;
    let pods: Vec<_> = (0..110).map(|n| (pod(n), new_namespace())).collect();
    for (n, (pod, namespace)) in pods.iter().enumerate() {
        machine.route_pod(pod);
        machine.add(&request(pod, namespace, n as u32)).await;
    }
    // It gives memory back ten seconds after the last change.
    tokio::time::sleep(Duration::from_secs(13)).await;
    let process = agent.0.id();
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    for line in status.lines().filter(|line| {
        ["VmRSS", "RssAnon", "RssFile", "VmHWM", "Threads"].iter().any(|key| line.starts_with(key))
    }) {
        println!("{line}");
    }
    // What of the files is whose: mappings of the same name together.
    let maps = std::fs::read_to_string(format!("/proc/{process}/smaps")).unwrap();
    let (mut name, mut held) = (String::new(), std::collections::BTreeMap::<String, u64>::new());
    for line in maps.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["Rss:", kb, "kB"] => *held.entry(name.clone()).or_default() += kb.parse::<u64>().unwrap(),
            [range, access, ..] if range.contains('-') => {
                name = format!("{access} {}", words.get(5).unwrap_or(&"(its own)"));
            }
            _ => {}
        }
    }
    for (name, kb) in held.iter().filter(|(_, kb)| **kb >= 256) {
        println!("{kb:>7} kB {name}");
    }
}
