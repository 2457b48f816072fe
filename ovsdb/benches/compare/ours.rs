//! This crate.

use std::process::Command;
use std::time::{Duration, Instant};

use ovsdb::{Endpoint, Event, Operation, Session, Value};

use super::setup::{Filled, loaded, status_kib};

/// Time and peak RSS of a load, in a process of its own.
pub fn load(filled: &Filled) -> (Duration, usize) {
    let output = Command::new(std::env::current_exe().unwrap())
        .arg("load")
        .arg(filled.server.socket())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut words = text.split_whitespace();
    let micros: u64 = words.next().unwrap().parse().unwrap();
    let rows: usize = words.next().unwrap().parse().unwrap();
    assert!(rows >= filled.ports);
    (Duration::from_micros(micros), words.next().unwrap().parse().unwrap())
}

/// What that process does.
pub async fn load_alone(socket: &str) {
    let begin = Instant::now();
    let options = super::setup::follow(vec![Endpoint::Unix(socket.into())]);
    let (_session, mut events) = Session::connect(options);
    let replica = loaded(&mut events).await;
    let micros = begin.elapsed().as_micros();
    println!("{micros} {} {}", replica.row_count(), status_kib(std::process::id(), "VmHWM"));
}

/// One port at a time, each once the one before is committed; sorted.
pub async fn single(filled: &Filled, rounds: usize) -> Vec<Duration> {
    let (session, mut events) = Session::connect(filled.options());
    loaded(&mut events).await;
    let follower = tokio::spawn(async move { while events.next().await.is_some() {} });
    let mut times = Vec::new();
    for i in 0..rounds {
        let operations = filled.ports_of(1_000_000 + i, 1);
        let begin = Instant::now();
        session.transact(operations).await.unwrap();
        times.push(begin.elapsed());
    }
    follower.abort();
    times.sort();
    times
}

/// Pipelined, as `submit` does it, until all are committed and visible.
pub async fn batches(filled: &Filled, total: usize, batch: usize) -> Duration {
    let (session, mut events) = Session::connect(filled.options());
    loaded(&mut events).await;
    let begin = Instant::now();
    for first in (0..total).step_by(batch) {
        session.submit(first as u64, filled.ports_of(first, batch));
    }
    let mut left = total.div_ceil(batch);
    while left > 0 {
        if let Event::Reply { result, .. } = events.next().await.unwrap() {
            result.unwrap();
            left -= 1;
        }
    }
    begin.elapsed()
}

/// The server drops every connection; until the content is in sync again. Mean.
pub async fn resume(filled: &Filled, rounds: u32) -> Duration {
    let (_session, mut events) = Session::connect(filled.options());
    loaded(&mut events).await;
    let mut sum = Duration::ZERO;
    for _ in 0..rounds {
        // A connection that lasted counts as good, so there is no back-off.
        tokio::time::sleep(Duration::from_millis(1100)).await;
        let control = filled.server.control_socket();
        ovsdb::unixctl::call(&control, "ovsdb-server/reconnect", &[], Duration::from_secs(9)).await.unwrap();
        while !matches!(events.next().await.unwrap(), Event::Disconnected { .. }) {}
        let begin = Instant::now();
        loaded(&mut events).await;
        sum += begin.elapsed();
    }
    sum / rounds
}

/// Changes one column of so many ports, a hundred a transaction, then sets `nb_cfg`
/// to `mark`.
pub async fn write(filled: &Filled, changes: usize, mark: i64) {
    let (session, mut events) = Session::connect(super::setup::follow(vec![filled.server.endpoint()]));
    let replica = loaded(&mut events).await;
    let ports: Vec<_> = replica.table("Logical_Switch_Port").unwrap().rows().map(|r| r.uuid).collect();
    let uuids: Vec<_> = ports.iter().copied().cycle().take(changes).collect();
    drop(replica);
    for chunk in uuids.chunks(100) {
        let change = |uuid| {
            let option = Value::string_map([("churn", format!("{mark}"))]);
            Operation::update("Logical_Switch_Port").by_uuid(uuid).column("options", option).build()
        };
        session.transact(chunk.iter().map(|&u| change(u)).collect()).await.unwrap();
    }
    let mark = Operation::update("NB_Global").column("nb_cfg", mark).build();
    session.transact(vec![mark]).await.unwrap();
}

/// So many sessions follow a writer; changes a second, summed over them.
pub async fn churn(filled: &Filled, monitors: usize, changes: usize) -> f64 {
    let mark = 100 + monitors as i64;
    let mut followers = Vec::new();
    let (ready, mut wait) = tokio::sync::mpsc::unbounded_channel();
    for _ in 0..monitors {
        let (options, ready) = (filled.options(), ready.clone());
        followers.push(tokio::spawn(async move {
            let (_session, mut events) = Session::connect(options);
            loaded(&mut events).await;
            ready.send(()).unwrap();
            let mut seen = 0;
            loop {
                if let Event::Updated { changes, replica, .. } = events.next().await.unwrap() {
                    seen += changes.len();
                    if replica.table("NB_Global").unwrap().rows().any(|r| r.i64("nb_cfg") == Some(mark)) {
                        return seen;
                    }
                }
            }
        }));
    }
    for _ in 0..monitors {
        wait.recv().await.unwrap();
    }
    let begin = Instant::now();
    write(filled, changes, mark).await;
    let mut seen = 0;
    for follower in followers {
        seen += follower.await.unwrap();
    }
    assert!(seen >= monitors * changes);
    (monitors * changes) as f64 / begin.elapsed().as_secs_f64()
}
