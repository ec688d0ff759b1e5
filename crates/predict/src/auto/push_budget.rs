//! The account of all offers: their gains, and the loss that they may still make.
//!
//! An offer costs its threshold t and returns 1 when the client requests the offered resource and
//! the offer was of use. A hit gains 1 - t and a mistake loses t, in the unit of PushCost. Offers
//! that the balance does not cover are not made, and no moment may stake more than half of it. The
//! balance never falls below zero. The loss of all offers is therefore at most the credit and a
//! small share of the requested assets, at each moment of any traffic: of a site, a robot or a
//! simulation. PushCost has the same assets as its denominator, so without credit it is at most
//! 1 + [`SHARE`] on every log and on every part of it. A page with a hundred unproven assets is
//! tested with a few of them.
//!
//! A small balance pays for one or two offers, so chance would decide whether a site ever gets
//! more: a slightly other omega would change all of its pushes. While the balance is small, only
//! offers that are nearly certain are made.

/// The loss that offers may make beside their credit, per requested asset.
const SHARE: f64 = 0.003;
/// The credit of knowledge from elsewhere, which has shown there that offers pay.
const TRUSTED: f64 = 6.0;
/// Part of a balance that one moment may stake.
const STAKE: f64 = 0.5;
/// The part of the way from its threshold to certainty that an offer's probability must have gone
/// if the balance is empty. A balance of [`AMPLE`] requires none.
const CAUTION: f64 = 0.9;
const AMPLE: f64 = 4.0;
/// Winnings are forgotten slowly, so that a long good time does not pay for a long bad one.
const KEPT: f64 = 1.0 - 1.0 / 16_384.0;

/// Requests won and lost.
#[derive(Debug)]
pub(super) struct PushBudget {
    /// The loss that offers may make before any gain.
    credit: f64,
    balance: f64,
}

impl PushBudget {
    /// An account with `credit` requests on it.
    pub(super) const fn new(credit: f64) -> Self {
        Self {
            credit,
            balance: credit,
        }
    }

    /// Raises the credit, because knowledge from elsewhere has been taken in.
    pub(super) const fn trust(&mut self) {
        let credit = self.credit.max(TRUSTED);
        self.balance += credit - self.credit;
        self.credit = credit;
    }

    /// An asset was asked for: a request that PushCost counts as one.
    pub(super) fn asked(&mut self) {
        if self.balance > self.credit {
            self.balance = self.credit + (self.balance - self.credit) * KEPT;
        }
        self.balance += SHARE;
    }

    /// Returns the probability above which an offer with this threshold may be made.
    pub(super) fn least_probability(&self, threshold: f64) -> f64 {
        let lack = (1.0 - self.balance / AMPLE).clamp(0.0, 1.0);
        threshold + (1.0 - threshold) * CAUTION * lack
    }

    /// Returns the amount that may be spent at a moment whose dearest offer costs `dearest`: enough
    /// for one offer, if the balance has as much.
    pub(super) fn stake(&self, dearest: f64) -> f64 {
        (self.balance * STAKE).max(dearest).min(self.balance)
    }

    /// Pays `threshold` for an offer out of the stake. Returns whether it may be made.
    pub(super) fn pay(&mut self, threshold: f64, stake: &mut f64) -> bool {
        let covered = *stake >= threshold;
        if covered {
            *stake -= threshold;
            self.balance -= threshold;
        }
        covered
    }

    /// Notes that an offer was of use.
    pub(super) fn won(&mut self) {
        self.balance += 1.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THRESHOLD: f64 = 0.5;

    /// Makes all covered offers, without time between them. Returns their number.
    fn offer(budget: &mut PushBudget) -> usize {
        let mut stake = budget.stake(THRESHOLD);
        (0..1000)
            .filter(|_| budget.pay(THRESHOLD, &mut stake))
            .count()
    }

    #[test]
    fn losses_are_bounded_and_winnings_lift_the_bound() {
        for credit in [0.0, 1.0, 9.0] {
            let mut budget = PushBudget::new(credit);
            let mut lost = 0;
            for asked in 1..=1000 {
                budget.asked();
                lost += offer(&mut budget);
                let bound = credit + f64::from(asked) * SHARE + 1e-9;
                assert!(lost as f64 * THRESHOLD <= bound, "{lost} offers in vain");
            }
            assert!(lost > 0, "what the traffic has earned is spent");
            (0..50).for_each(|_| budget.won());
            assert!(offer(&mut budget) >= 20);
        }
    }

    #[test]
    fn knowledge_from_elsewhere_raises_a_small_credit() {
        for (credit, offers) in [(0.0, 6), (9.0, 9)] {
            let mut budget = PushBudget::new(credit);
            budget.trust();
            budget.trust();
            assert_eq!(offer(&mut budget), offers, "half of the credit");
        }
    }

    #[test]
    fn small_balance_takes_nearly_certain_offers_only() {
        for (credit, least) in [(0.0, 0.95), (2.0, 0.725), (4.0, 0.5), (1000.0, 0.5)] {
            let found = PushBudget::new(credit).least_probability(THRESHOLD);
            assert!((found - least).abs() < 1e-9, "{found} with {credit}");
        }
    }

    #[test]
    fn winnings_are_forgotten_slowly() {
        let [without, with] = [0, 100].map(|wins| {
            let mut budget = PushBudget::new(0.0);
            (0..wins).for_each(|_| budget.won());
            (0..16_384).for_each(|_| budget.asked());
            budget.balance
        });
        let kept = with - without;
        assert!((36.0..38.0).contains(&kept), "{kept} of 100 requests");
    }
}
