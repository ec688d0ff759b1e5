//! The results of a measurement: times of each site by each approach, and the findings of each
//! visit.

use std::fmt::Write as _;

use serde::Serialize;

use super::{Approach, Visit};
use crate::bench::ratios;
use tandem_net::stats::{Summary, median};

/// The pages of a site that a measurement compares, by their numbers.
const PAGES: [(&str, &[usize]); 3] = [("first", &[0]), ("second", &[1]), ("both", &[0, 1])];

/// A whole measurement.
#[derive(Clone, Debug, Serialize)]
pub struct DiscoveryReport {
    /// A row for each site and page.
    pub rows: Vec<DiscoveryRow>,
    /// The times of a client that discovers gateways, as shares of those without.
    pub shares: Vec<Shares>,
    /// Every visit, in order.
    pub visits: Vec<Visit>,
}

/// The loads of a page of one site.
#[derive(Clone, Debug, Serialize)]
pub struct DiscoveryRow {
    /// The number of the site, from 1.
    pub site: usize,
    /// The number of the page, from 1.
    pub page: usize,
    /// True if the site has a gateway.
    pub has_gateway: bool,
    /// Median seconds of a client that discovers gateways.
    pub discovering_s: Option<f64>,
    /// Median seconds of a client that does not.
    pub solo_s: Option<f64>,
    /// Median seconds of tor alone.
    pub tor_s: Option<f64>,
    /// The median of requests that went through the gateway.
    pub through_gateway: Option<f64>,
}

/// The time of some pages of some sites, pass by pass.
#[derive(Clone, Debug, Serialize)]
pub struct Shares {
    /// True for the sites with a gateway.
    pub has_gateway: bool,
    /// The pages: `first`, `second` or `both`.
    pub pages: &'static str,
    /// As a share of the time of a client without discovery.
    pub of_solo: Option<Summary>,
    /// As a share of the time of tor alone.
    pub of_tor: Option<Summary>,
}

impl DiscoveryReport {
    /// Compares the visits.
    pub(super) fn of(gateways: &[bool], visits: Vec<Visit>) -> Self {
        let mut rows = Vec::new();
        for (site, &has_gateway) in gateways.iter().enumerate() {
            for page in 0..2 {
                let of = |approach| median(&times(&visits, approach, site, page));
                let discovering = of_approach(&visits, Approach::Discovering);
                let loads = discovering.filter_map(|visit| visit.sites.get(site)?.get(page));
                let through: Vec<f64> = loads.map(|load| load.through_gateway as f64).collect();
                rows.push(DiscoveryRow {
                    site: site + 1,
                    page: page + 1,
                    has_gateway,
                    discovering_s: of(Approach::Discovering),
                    solo_s: of(Approach::Solo),
                    tor_s: of(Approach::Tor),
                    through_gateway: median(&through),
                });
            }
        }
        let mut shares = Vec::new();
        for has_gateway in [true, false] {
            let sites: Vec<usize> = (0..gateways.len())
                .filter(|&site| gateways[site] == has_gateway)
                .collect();
            for (pages, numbers) in PAGES {
                let of = |approach| totals(&visits, approach, &sites, numbers);
                let discovering = of(Approach::Discovering);
                shares.push(Shares {
                    has_gateway,
                    pages,
                    of_solo: ratios(&discovering, &of(Approach::Solo)),
                    of_tor: ratios(&discovering, &of(Approach::Tor)),
                });
            }
        }
        Self {
            rows,
            shares,
            visits,
        }
    }

    /// Returns the findings of all visits that must not be.
    pub fn faults(&self) -> impl Iterator<Item = &str> {
        let faults = self.visits.iter().flat_map(|visit| &visit.faults);
        faults.map(String::as_str)
    }

    /// Formats the report for people.
    pub fn table(&self) -> String {
        let mut out = String::from(
            "| site | gateway | page | discovering, s | solo, s | tor alone, s | through the gateway |\n\
             |---:|---|---:|---:|---:|---:|---:|\n",
        );
        let seconds =
            |value: Option<f64>| value.map_or_else(|| "-".into(), |it| format!("{it:.2}"));
        for row in &self.rows {
            let _ = writeln!(
                out,
                "| {} | {} | {} | {} | {} | {} | {} |",
                row.site,
                if row.has_gateway { "yes" } else { "no" },
                row.page,
                seconds(row.discovering_s),
                seconds(row.solo_s),
                seconds(row.tor_s),
                row.through_gateway.map_or(0.0, f64::round),
            );
        }
        for shares in &self.shares {
            let sites = if shares.has_gateway {
                "with"
            } else {
                "without"
            };
            for (without, share) in [("solo", &shares.of_solo), ("tor alone", &shares.of_tor)] {
                let Some(share) = share else { continue };
                let _ = writeln!(
                    out,
                    "{} pages, sites {sites} a gateway: {:.3} of the time of {without} (median of \
                     {} passes, {:.3} to {:.3})",
                    shares.pages, share.median, share.count, share.min, share.max
                );
            }
        }
        for visit in &self.visits {
            let _ = writeln!(out, "{}", visit.line());
        }
        for fault in self.faults() {
            let _ = writeln!(out, "FAULT: {fault}");
        }
        out
    }
}

fn of_approach(visits: &[Visit], approach: Approach) -> impl Iterator<Item = &Visit> {
    visits
        .iter()
        .filter(move |visit| visit.approach == approach)
}

/// Returns the seconds of a page in each visit.
fn times(visits: &[Visit], approach: Approach, site: usize, page: usize) -> Vec<f64> {
    let loads = of_approach(visits, approach).filter_map(|visit| visit.sites.get(site)?.get(page));
    loads.map(|load| load.time_s).collect()
}

/// Returns the seconds of some pages of some sites in each visit.
fn totals(visits: &[Visit], approach: Approach, sites: &[usize], pages: &[usize]) -> Vec<f64> {
    let of_page = |site: usize| {
        let pages = pages.iter();
        pages.map(move |&page| times(visits, approach, site, page))
    };
    let all: Vec<Vec<f64>> = sites.iter().flat_map(|&site| of_page(site)).collect();
    let passes = all.iter().map(Vec::len).min().unwrap_or(0);
    let total = |pass: usize| all.iter().map(|times| times[pass]).sum();
    (0..passes).map(total).collect()
}

#[cfg(test)]
mod tests {
    use super::super::PageLoad;
    use super::*;

    #[test]
    fn report_compares_sums_of_a_pass() {
        let visit = |approach, times: [[f64; 2]; 3]| Visit {
            approach,
            sites: times
                .map(|pages| {
                    pages
                        .map(|time_s| PageLoad {
                            time_s,
                            requests: 9,
                            through_gateway: 5,
                        })
                        .to_vec()
                })
                .to_vec(),
            ..Visit::default()
        };
        let (discovering, solo) = (Approach::Discovering, Approach::Solo);
        let visits = vec![
            visit(discovering, [[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]]),
            visit(solo, [[4.0, 5.0], [2.0, 1.0], [4.0, 4.0]]),
            visit(solo, [[6.0, 6.0], [6.0, 6.0], [4.0, 4.0]]),
            visit(discovering, [[3.0, 2.0], [3.0, 1.0], [5.0, 2.0]]),
        ];
        let report = DiscoveryReport::of(&[true, true, false], visits);
        let found: Vec<_> = report
            .shares
            .iter()
            .map(|it| it.of_solo.as_ref().map(|summary| summary.median))
            .collect();
        let expected = [0.5, 0.375, 0.4375, 1.125, 0.75, 0.9375];
        assert_eq!(found, expected.map(Some));
        assert!(report.shares.iter().all(|it| it.of_tor.is_none()));
        assert_eq!(report.rows[1].solo_s, Some(5.5));
    }
}
