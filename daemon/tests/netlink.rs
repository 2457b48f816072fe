//! The netlink wrapper against a real kernel, in namespaces of its own.
#![allow(clippy::unwrap_used)]

use std::net::IpAddr;
use std::time::Duration;

use daemon::hostnet::HostNet;
use daemon::netlink::{Change, Netlink, Route, Rule, Veth};
use daemon::sys::Namespace;
use nix::sched::{CloneFlags, unshare};

fn new_namespace() -> Namespace {
    std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        Namespace::current().unwrap()
    })
    .join()
    .unwrap()
}

async fn pair(here: &Netlink, there: &Namespace) {
    let veth = Veth {
        name: "host-end",
        peer: "eth0",
        peer_mac: Some("0a:00:00:00:00:05".parse().unwrap()),
        peer_namespace: Some(there),
        mtu: Some(1400),
    };
    here.add_veth(&veth).await.unwrap();
}

#[tokio::test]
async fn one_request_makes_a_pair_across_namespaces() {
    let (here, there) = (new_namespace(), new_namespace());
    let (host, inside) = (HostNet::open(here).await.unwrap(), Netlink::in_namespace(&there).await.unwrap());
    pair(&host.netlink, &there).await;
    let near = host.netlink.require_link("host-end").await.unwrap();
    let far = inside.require_link("eth0").await.unwrap();
    assert!(near.up && !far.up);
    assert_eq!((near.mtu, far.mtu, near.tx_queue_len), (1400, 1400, 1000));
    assert_eq!(far.mac.unwrap().to_string(), "0a:00:00:00:00:05");
    assert_eq!((near.peer, far.peer), (Some(far.index), Some(near.index)));
    assert_eq!(near.kind.as_deref(), Some("veth"));
    host.ethtool.tx_checksum_off("host-end").unwrap();
    assert!(!host.ethtool.tx_checksum("host-end").unwrap());
    host.netlink.delete_link("host-end").await.unwrap();
    host.netlink.delete_link("host-end").await.unwrap();
    assert_eq!(inside.link("eth0").await.unwrap(), None);
}

#[tokio::test]
async fn addresses_routes_and_rules_are_written_and_read_back() {
    let (here, there) = (new_namespace(), new_namespace());
    let (host, inside) = (HostNet::open(here).await.unwrap(), Netlink::in_namespace(&there).await.unwrap());
    pair(&host.netlink, &there).await;
    let link = inside.require_link("eth0").await.unwrap();
    inside.set_up(link.index).await.unwrap();
    for net in ["10.16.0.5/16", "fd00::5/112"] {
        inside.add_address(link.index, net.parse().unwrap(), true).await.unwrap();
        inside.add_address(link.index, net.parse().unwrap(), true).await.unwrap();
    }
    let addresses = inside.addresses(Some(link.index)).await.unwrap();
    let v6 = addresses.iter().find(|address| address.net.to_string() == "fd00::5/112").unwrap();
    assert!(!v6.tentative && v6.permanent && !v6.link_scope);
    for gateway in ["10.16.0.1", "fd00::1"] {
        let route = Route { link: Some(link.index), ..Route::default_via(gateway.parse().unwrap()) };
        inside.replace_route(&route).await.unwrap();
        inside.replace_route(&route).await.unwrap();
        let gateway: Option<IpAddr> = gateway.parse().ok();
        let routes = inside.routes().await.unwrap();
        let defaults: Vec<&Route> =
            routes.iter().filter(|r| r.is_default() && r.gateway == gateway).collect();
        assert_eq!(defaults.len(), 1, "{routes:?}");
        inside.delete_route(defaults[0]).await.unwrap();
        inside.delete_route(defaults[0]).await.unwrap();
        assert!(!inside.routes().await.unwrap().iter().any(|r| r.is_default() && r.gateway == gateway));
    }
    let rule = Rule {
        ipv6: false,
        priority: 1000,
        source: Some("10.16.0.0/16".parse().unwrap()),
        destination: None,
        mark: None,
        mask: None,
        input: None,
        table: 20_001,
        protocol: 0,
    };
    inside.add_rule(&rule).await.unwrap();
    assert!(inside.rules().await.unwrap().contains(&rule));
    inside.delete_rule(&rule).await.unwrap();
    inside.delete_rule(&rule).await.unwrap();
    assert!(!inside.rules().await.unwrap().contains(&rule));
    inside.delete_address(link.index, "10.16.0.5/16".parse().unwrap()).await.unwrap();
    inside.delete_address(link.index, "10.16.0.5/16".parse().unwrap()).await.unwrap();
}

#[tokio::test]
async fn neighbours_answer_or_not() {
    let (here, there) = (new_namespace(), new_namespace());
    let (host, inside) = (HostNet::open(here).await.unwrap(), Netlink::in_namespace(&there).await.unwrap());
    pair(&host.netlink, &there).await;
    let far = inside.require_link("eth0").await.unwrap();
    inside.set_up(far.index).await.unwrap();
    let near = host.netlink.require_link("host-end").await.unwrap();
    for (mine, theirs) in [("10.16.0.1/16", "10.16.0.5/16"), ("fd00::1/112", "fd00::5/112")] {
        host.netlink.add_address(near.index, mine.parse().unwrap(), true).await.unwrap();
        inside.add_address(far.index, theirs.parse().unwrap(), true).await.unwrap();
    }
    // Entries grow old at once, so that the later questions meet old ones.
    host.namespace
        .run(|| {
            for family in ["ipv4", "ipv6"] {
                let key = format!("net/{family}/neigh/host-end/base_reachable_time_ms");
                daemon::sys::write_sysctl(&key, "10").unwrap();
            }
        })
        .unwrap();
    let mut reach = host.reachability().await.unwrap();
    for address in ["10.16.0.5", "fd00::5"] {
        for pause in [0, 0, 300] {
            tokio::time::sleep(Duration::from_millis(pause)).await;
            let mac =
                reach.resolve(near.index, address.parse().unwrap(), Duration::from_secs(10)).await.unwrap();
            assert_eq!(mac.map(|mac| mac.to_string()).as_deref(), Some("0a:00:00:00:00:05"), "{address}");
        }
    }
    let nobody = reach.resolve(near.index, "10.16.0.9".parse().unwrap(), Duration::from_millis(100)).await;
    assert_eq!(nobody.unwrap(), None);
}

#[tokio::test]
async fn changes_are_reported() {
    let (here, there) = (new_namespace(), new_namespace());
    let host = HostNet::open(here).await.unwrap();
    let mut monitor = host.monitor().await.unwrap();
    pair(&host.netlink, &there).await;
    let near = host.netlink.require_link("host-end").await.unwrap();
    host.netlink.add_address(near.index, "10.16.0.1/16".parse().unwrap(), true).await.unwrap();
    host.netlink.delete_link("host-end").await.unwrap();
    let (mut made, mut addressed) = (false, false);
    loop {
        let change = tokio::time::timeout(Duration::from_secs(10), monitor.next()).await.unwrap().unwrap();
        match change {
            Change::LinkChanged(link) if link.name == "host-end" => made = true,
            Change::Address(address) if address.net.to_string() == "10.16.0.1/16" => addressed = true,
            Change::LinkGone(link) if link.name == "host-end" => break,
            _ => {}
        }
    }
    assert!(made && addressed);
}

/// The kernel runs one dump per socket: one that nobody waits for any more goes on there, and the next has to wait for
/// it. Enough addresses that the kernel tells them in many parts.
#[tokio::test]
async fn a_dump_that_nobody_waits_for_any_more_does_not_disturb_the_next() {
    let (here, there) = (new_namespace(), new_namespace());
    let (host, inside) = (HostNet::open(here).await.unwrap(), Netlink::in_namespace(&there).await.unwrap());
    pair(&host.netlink, &there).await;
    let link = inside.require_link("eth0").await.unwrap();
    for n in 0..2000 {
        let net = format!("10.{}.{}.1/32", 16 + n / 250, n % 250);
        inside.add_address(link.index, net.parse().unwrap(), true).await.unwrap();
    }
    let mut unfinished = 0;
    for polls in 0..200 {
        let mut given_up = Box::pin(inside.addresses(None));
        for _ in 0..polls % 8 {
            if futures::poll!(given_up.as_mut()).is_ready() {
                unfinished -= 1;
                break;
            }
            // Or given up before the question has left: then it and the next one leave together.
            if polls % 3 != 0 {
                tokio::task::yield_now().await;
            }
        }
        unfinished += 1;
        drop(given_up);
        let found = inside.addresses(None).await.unwrap();
        assert!(found.len() >= 2000, "{polls}: {}", found.len());
    }
    assert!(unfinished > 50, "most were given up: {unfinished}");
}
