//! Routes, policies and what features leave in the database.

use super::*;

impl Legacy {
    pub(super) fn routes(&mut self) {
        let mut route =
            |class, what: &str, prefix, nexthop, policy: Option<&str>, marked: bool, more: Columns| {
                let mut columns = vec![("ip_prefix", text(prefix)), ("nexthop", text(nexthop))];
                columns.push(("policy", Value::optional(policy)));
                if marked {
                    columns.push(ids(&[]));
                }
                columns.extend(more);
                self.child(class, ROUTE, what, (LR, "ovn-cluster", "static_routes"), columns);
            };
        let dst = Some("dst-ip");
        let src = Some("src-ip");
        route(Ours, "default", "0.0.0.0/0", "100.64.0.1", dst, true, vec![]);
        route(Leftover, "old default", "0.0.0.0/0", "100.64.0.254", dst, true, vec![]);
        let table = vec![("route_table", text("old"))];
        route(Leftover, "default of a table no longer named", "0.0.0.0/0", "100.64.0.1", dst, true, table);
        route(Leftover, "spec default", "0.0.0.0/0", "172.16.0.1", dst, true, vec![]);
        route(Ours, "spec route", "10.0.0.0/8", "100.64.0.1", dst, true, vec![]);
        route(Foreign, "nat source", "10.16.0.5", "172.16.0.1", src, true, vec![]);
        route(Foreign, "by hand", "0.0.0.0/0", "100.64.0.7", dst, false, vec![]);
        let learned = vec![("external_ids", map(&[("ic-learned-route", "uuid")]))];
        route(Foreign, "learned", "10.99.0.0/16", "169.254.100.2", None, false, learned);
        let source = vec![
            ("ip_prefix", text("10.18.0.0/16")),
            ("nexthop", text("10.18.0.1")),
            ("policy", Value::optional(src)),
            ids(&[]),
        ];
        // The spec has no route: only by this one what leaves comes to the policies.
        self.child(Machine, ROUTE, "source", (LR, "vpc-1", "static_routes"), source);
    }

    pub(super) fn policies(&mut self) {
        let default: [(&str, &str); 2] = [("subnet", "ovn-default"), ("node", "n-1")];
        let gone: [(&str, &str); 2] = [("subnet", "ovn-default"), ("node", "gone")];
        let u2o: [(&str, &str); 2] = [("subnet", "underlay1"), ("isU2ORoutePolicy", "true")];
        let node: [(&str, &str); 2] = [("node", "n-1"), ("address-family", "4")];
        let node_gone: [(&str, &str); 2] = [("node", "gone"), ("address-family", "4")];
        let dns = [("node", "n-1"), ("address-family", "4"), ("isLocalDnsCache", "true")];
        let veg: [(&str, &str); 2] = [("vpc-egress-gateway", "web/veg-1"), ("af", "4")];
        let nat: [(&str, &str); 2] = [("vpc-nat-gateway", "gw1"), ("af", "4")];
        let no_lb = [
            ("subnet", "ovn-default"),
            ("isU2ONoLBRoutePolicy", "true"),
            ("node", "n-1"),
            ("svcCidr", "10.96.0.0/12"),
        ];
        let join = "100.64.0.2";
        let rows: [(Class, i64, &str, &str, Ids<'_>); 33] = [
            (Ours, 31000, "ip4.dst == 10.16.0.0/16", "", &[("subnet", "ovn-default")]),
            (Ours, 31000, "ip4.dst == 100.64.0.0/16", "", &[("subnet", "join")]),
            (Ours, 30000, "ip4.dst == 192.0.2.11", join, &node),
            (Ours, 29000, "ip4.src == $ovn.default.n.1_ip4", join, &default),
            (Leftover, 31000, "ip4.dst == 10.15.0.0/16", "", &[("subnet", "ovn-default")]),
            (Leftover, 30000, "ip4.dst == 192.0.2.99", "100.64.0.9", &node_gone),
            (Leftover, 29000, "ip4.src == $ovn.default.gone_ip4", "100.64.0.9", &gone),
            (Leftover, 29000, "ip6.src == $ovn.default.n.1_ip6", "fd00:100:64::2", &default),
            (Ours, 31000, "ip4.dst == 10.17.0.0/16", "", &[("subnet", "sub1")]),
            (
                Foreign,
                31000,
                "ip4.dst == $underlay1.u2o_exclude_ip.ip4 && ip4.src == 10.19.0.0/16",
                "10.19.0.1",
                &u2o,
            ),
            (Foreign, 30060, "ip4.src == 10.19.0.0/16 && ip4.dst == 10.19.0.0/16", "", &u2o),
            (Foreign, 30050, "ip4.src == 10.19.0.0/16", "10.19.0.1", &u2o),
            (Leftover, 30000, "ip4.src == $node.n.1_ip4 && ip4.dst == 169.254.20.10", join, &dns),
            (Foreign, 30000, "ip4.dst == 169.254.20.11", join, &dns),
            (Foreign, 29500, "ip4.dst == 10.99.0.0/16", "", &[("origin", "connected")]),
            (Foreign, 29400, "ip4.dst == 10.19.0.0/16", "", &u2o),
            (
                Foreign,
                29400,
                "ip4.src == $ovn.cluster.u2o_overlay_cidrs.ip4 && ip4.dst == 10.19.0.0/16",
                "",
                &u2o,
            ),
            (Foreign, 29400, "ip4.src == $ovn.default.n.1_ip4 && ip4.dst == 10.96.0.0/12", join, &no_lb),
            (Foreign, 29250, "ip4.src == 10.16.0.5", "172.16.0.1", &[("subnet", "ovn-default")]),
            (Foreign, 29200, "ip4.src == 10.16.0.0/16", "10.16.0.77", &nat),
            (Foreign, 29190, "ip4.src == 10.16.0.0/16", "", &nat),
            (
                Foreign,
                29150,
                "ip4.src == $node.n.1_ip4 && ip4.src == $VEG.0123456789ab.ipv4",
                "10.16.0.78",
                &veg,
            ),
            (Foreign, 29100, "ip4.src == $VEG.0123456789ab_ip4", "10.16.0.78", &veg),
            (Foreign, 29090, "ip4.src == $VEG.0123456789ab_ip4", "", &veg),
            (Ours, 29000, "ip4.src == $sub1.n.1_ip4", join, &[("subnet", "sub1"), ("node", "n-1")]),
            (
                Leftover,
                29000,
                "ip4.src == 10.16.0.0/16",
                join,
                &[("subnet", "ovn-default"), ("n-1", "100.64.0.2")],
            ),
            (Foreign, 29000, "ip4.src == 10.19.0.0/16", "10.19.0.1", &u2o),
            // spec.policyRoutes of the default VPC, also with numbers and matches like ours.
            (Ours, 100, "ip4.src == 10.16.0.0/24", "172.16.0.1", &[]),
            (Leftover, 31000, "ip4.dst == 10.20.0.0/16", "", &[]),
            (Leftover, 30000, "ip4.dst == 192.0.2.50", join, &[]),
            (Leftover, 29000, "ip4.src == $by_hand_ip4", join, &[]),
            (Foreign, 29500, "ip4.dst == 10.98.0.0/16", "", &[]),
            (Foreign, 28000, "ip4.dst == 10.21.0.0/16", "", &[("subnet", "ovn-default")]),
        ];
        for (class, priority, matching, nexthop, marks) in rows {
            self.policy(class, "ovn-cluster", priority, matching, nexthop, vec![ids(marks)]);
        }
        self.policy(Foreign, "ovn-cluster", 31000, "ip4.dst == 10.22.0.0/16", "", vec![]);
        self.policy(Foreign, "ovn-cluster", 30000, "ip4.dst == 192.0.2.60", join, vec![]);
        self.policy(Ours, "vpc-1", 31000, "ip4.dst == 10.18.0.0/16", "", vec![ids(&[("subnet", "sub2")])]);
    }

    fn policy(
        &mut self,
        class: Class,
        router: &str,
        priority: i64,
        matching: &str,
        nexthop: &str,
        more: Columns,
    ) {
        let action = match (nexthop, priority) {
            ("", 29190 | 29090) => "drop",
            ("", _) => "allow",
            _ => "reroute",
        };
        let mut columns =
            vec![("priority", Value::integer(priority)), ("match", text(matching)), ("action", text(action))];
        if !nexthop.is_empty() {
            columns.push(("nexthops", Value::strings([nexthop])));
        }
        columns.extend(more);
        self.child(class, POLICY, &format!("{priority} {matching}"), (LR, router, "policies"), columns);
    }

    /// Tables that no unit of this version writes.
    pub(super) fn features(&mut self) {
        let version = map(&[("kube-ovn-version", "v0.1.0")]);
        let options = map(&[
            ("use_ct_inv_match", "false"),
            ("ls_dnat_mod_dl_dst", "true"),
            ("ls_ct_skip_dst_lport_ips", "true"),
            ("northd-backoff-interval-ms", "150"),
            ("mac_prefix", "0a:00:01"),
            ("svc_monitor_mac", "0a:00:01:00:00:01"),
        ]);
        let columns = vec![
            ("external_ids", version),
            ("options", options),
            ("name", text("az1")),
            ("nb_cfg", Value::integer(7)),
        ];
        self.root(Ours, "NB_Global", "global", columns);
        let balancer = vec![
            ("name", text("cluster-tcp-loadbalancer")),
            ("protocol", Value::optional(Some("tcp"))),
            ("vips", map(&[("10.96.0.20:80", "10.16.0.5:8080")])),
            ids(&[]),
        ];
        let balancer = self.root(Foreign, "Load_Balancer", "tcp", balancer);
        let switch = self.uuid(LS, "ovn-default");
        let attach = Operation::mutate(LS).by_uuid(switch);
        self.operations.push(attach.insert_set("load_balancer", Value::uuids([balancer])).build());
        let peers = "p.1.web.ingress.allow.IPv4.0";
        let columns = vec![
            ("name", text(peers)),
            ids(&[("np", "web/p-1/ingress")]),
            ("addresses", set(&["10.16.0.5"])),
        ];
        self.root(Foreign, "Address_Set", peers, columns);
        let nat = vec![
            ("type", text("dnat_and_snat")),
            ("external_ip", text("172.16.0.5")),
            ("logical_ip", text("10.16.0.5")),
        ];
        self.child(Foreign, "NAT", "fip", (LR, "ovn-cluster", "nat"), nat);
        let mut dhcp = |class, subnet: &'static str, cidr, options: Ids<'_>, more: Ids<'_>| {
            let marks: Vec<_> =
                [("ls", subnet), ("protocol", "IPv4")].into_iter().chain(more.iter().copied()).collect();
            let columns = vec![("cidr", text(cidr)), ("options", map(options)), ids(&marks)];
            self.root(class, "DHCP_Options", &format!("{subnet} {more:?}"), columns)
        };
        dhcp(Leftover, "ovn-default", "10.16.0.0/16", &[("lease_time", "3600")], &[]);
        // Of a port that asks for its own: whose port it is can't be told.
        dhcp(Foreign, "ovn-default", "10.16.0.0/16", &[("lease_time", "60")], &[("port", "vm-1.web")]);
        let options = [
            ("lease_time", "3600"),
            ("router", "10.17.0.1"),
            ("server_id", "169.254.0.254"),
            ("server_mac", "0a:00:00:00:00:17"),
            ("mtu", "1400"),
        ];
        let served = dhcp(Ours, "sub1", "10.17.0.0/16", &options, &[]);
        let port = self.uuid(LSP, "sub1 b-0.web");
        let refer = Operation::update(LSP).by_uuid(port).column("dhcpv4_options", Value::uuids([served]));
        self.operations.push(refer.build());
        let mut acl = |class,
                       what: &str,
                       switch: &'static str,
                       (priority, action, matching): (i64, &str, &str),
                       more: Columns| {
            let mut columns = vec![
                ("action", text(action)),
                ("direction", text("to-lport")),
                ("priority", Value::integer(priority)),
                ("match", text(matching)),
                ("tier", Value::integer(2)),
            ];
            columns.extend(more);
            self.child(class, "ACL", what, (LS, switch, "acls"), columns);
        };
        let logged = || {
            vec![
                ("log", Value::boolean(true)),
                ("severity", Value::optional(Some("warning"))),
                ("name", Value::optional(Some("sub1"))),
                ids(&[("parent", "sub1")]),
            ]
        };
        acl(
            Leftover,
            "private",
            "ovn-default",
            (1000, "drop", "ip"),
            vec![ids(&[("parent", "ovn-default")])],
        );
        acl(Foreign, "by hand", "ovn-default", (900, "drop", "icmp4"), vec![]);
        acl(Ours, "wall", "sub1", (1000, "drop", "ip"), logged());
        let within = "ip4.src == 10.17.0.0/16 && ip4.dst == 10.17.0.0/16";
        for (priority, matching) in [(1001, within), (3000, "ip4.src == 100.64.0.0/16")] {
            acl(
                Ours,
                matching,
                "sub1",
                (priority, "allow-related", matching),
                vec![ids(&[("parent", "sub1")])],
            );
        }
        let bfd = vec![("logical_port", text("bfd@ovn-cluster")), ("dst_ip", text("10.16.0.78"))];
        // Goes with its port: northd can't do with one whose port is gone.
        self.root(Leftover, "BFD", "bfd", bfd);
        let bfd = vec![("logical_port", text("ovn-cluster-external")), ("dst_ip", text("172.16.0.1"))];
        self.root(Foreign, "BFD", "external bfd", bfd);
    }
}
