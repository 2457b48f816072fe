"""What the bench measures of the Python binding of OVS (package ovs)."""

import sys
import time

import ovs.db.idl
import ovs.poller

COLUMNS = {
    "NB_Global": ["nb_cfg"],
    "Logical_Switch": ["name", "ports", "other_config", "external_ids"],
    "Logical_Switch_Port": [
        "name", "type", "addresses", "port_security", "options", "external_ids",
    ],
}


def connect(socket):
    remote = "unix:" + socket
    error, stream = ovs.stream.Stream.open_block(ovs.stream.Stream.open(remote), 60000)
    assert not error, error
    rpc = ovs.jsonrpc.Connection(stream)
    request = ovs.jsonrpc.Message.create_request("get_schema", ["OVN_Northbound"])
    error, reply = rpc.transact_block(request)
    assert not error, error
    rpc.close()
    helper = ovs.db.idl.SchemaHelper(schema_json=reply.result)
    for table, columns in COLUMNS.items():
        helper.register_columns(table, columns)
    return ovs.db.idl.Idl(remote, helper, leader_only=False, probe_interval=0)


def wait(idls, condition):
    while not condition():
        poller = ovs.poller.Poller()
        for idl in idls:
            idl.wait(poller)
        poller.timer_wait(1000)
        poller.block()
        for idl in idls:
            idl.run()


def synced(idl):
    wait([idl], idl.has_ever_connected)
    return idl


def peak():
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmHWM"):
                return line.split()[1]


def switch(idl):
    return next(iter(idl.tables["Logical_Switch"].rows.values()))


def add(idl, first, count):
    txn = ovs.db.idl.Transaction(idl)
    parent = switch(idl)
    for i in range(first, first + count):
        row = txn.insert(idl.tables["Logical_Switch_Port"])
        address = "02:02:00:00:%02x:%02x 10.201.%d.%d" % (i // 256 % 256, i % 256, i // 256 % 256, i % 256)
        row.name = "python-%d" % i
        row.addresses = [address]
        row.port_security = [address]
        row.external_ids = {"ls": "s", "pod": "namespace/pod-%d" % i, "vendor": "kube-ovn"}
        parent.addvalue("ports", row.uuid)
    status = txn.commit_block()
    assert status == ovs.db.idl.Transaction.SUCCESS, (status, txn.get_error())


def main(socket, what, *args):
    if what == "load":
        begin = time.perf_counter()
        synced(connect(socket))
        print(time.perf_counter() - begin, peak())
    elif what == "single":
        idl = synced(connect(socket))
        for i in range(int(args[0])):
            begin = time.perf_counter()
            add(idl, 1000000 + i, 1)
            print(time.perf_counter() - begin)
    elif what == "batches":
        total, batch = map(int, args)
        idl = synced(connect(socket))
        begin = time.perf_counter()
        for first in range(0, total, batch):
            add(idl, first, batch)
        print(time.perf_counter() - begin)
    elif what == "resume":
        idl = synced(connect(socket))
        total = 0
        for _ in range(int(args[0])):
            begin = time.perf_counter()
            idl.force_reconnect()
            idl.run()
            wait([idl], lambda: idl.state != ovs.db.idl.Idl.IDL_S_MONITORING)
            wait([idl], lambda: idl.state == ovs.db.idl.Idl.IDL_S_MONITORING)
            total += time.perf_counter() - begin
        print(total / int(args[0]))
    elif what == "churn":
        idls = [synced(connect(socket)) for _ in range(int(args[0]))]
        print("ready", flush=True)
        mark = int(args[1])

        def seen(idl):
            return any(r.nb_cfg == mark for r in idl.tables["NB_Global"].rows.values())

        wait(idls, lambda: all(seen(idl) for idl in idls))
        print("done", flush=True)


main(*sys.argv[1:])
