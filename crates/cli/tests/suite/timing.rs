//! Tests of the lab's timing client and server through the pair: the tunnels are streams of one
//! session.

use std::time::Duration;

use tandem::transport::registry::Transports;
use tandem_lab::timing::client::{Direction, TimingPlan, WarmUp, run};
use tandem_lab::timing::report::TimingReport;
use tandem_lab::timing::server::TimingServer;
use tokio::task::LocalSet;

use crate::harness::{Pair, block_on};

fn measured(via: impl Fn(&Pair) -> String, session: &str, direction: Direction) -> TimingReport {
    let (scheme, transports) = (format!("{session}+tcp"), Transports::default());
    let pair = Pair::over(&scheme, &transports, |_| {}, |_| {});
    let via = via(&pair).parse().unwrap();
    block_on(LocalSet::new().run_until(async {
        let server = TimingServer::bind("127.0.0.1:0".parse().unwrap())
            .await
            .unwrap();
        let plan = TimingPlan {
            server: server.address().unwrap().to_string(),
            via,
            streams: 2,
            direction,
            interval: Duration::from_millis(50),
            fresh: Some(Duration::from_millis(250)),
            base: Duration::from_secs(1),
            warm_up: WarmUp::For(Duration::from_secs(1)),
            time: Duration::from_secs(2),
        };
        tokio::select! {
            report = run(&plan, |_| {}) => report.unwrap(),
            () = server.run() => unreachable!("it serves for as long as it is polled"),
        }
    }))
}

fn holds(report: &TimingReport) {
    assert!(
        report.throughput_mbit.is_some_and(|rate| rate.mean > 0.0),
        "{report:?}"
    );
    let base = report.base.as_ref().unwrap();
    assert_eq!(
        (
            base.round_trip.count,
            base.round_trip.unanswered,
            base.failed
        ),
        (20, 0, 0),
        "{report:?}"
    );
    assert_eq!(
        (report.measured.round_trip.count, report.measured.failed),
        (40, 0),
        "{report:?}"
    );
    assert!(
        report
            .measured
            .fresh
            .is_some_and(|fresh| fresh.count == 8 && fresh.unanswered == 0),
        "{report:?}"
    );
}

#[test]
fn timing_client_measures_through_connect() {
    holds(&measured(
        |pair| format!("http://{}", pair.http),
        "h2",
        Direction::Down,
    ));
}

#[test]
fn timing_client_measures_through_socks() {
    holds(&measured(
        |pair| format!("socks5://user:password@{}", pair.socks),
        "spdy3.1",
        Direction::Up,
    ));
}
