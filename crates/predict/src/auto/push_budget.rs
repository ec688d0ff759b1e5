//! The account of all offers: their gains, and the loss that they may still make.
//!
//! An offer costs its threshold t and returns 1 when the client requests the offered resource. A
//! hit gains 1 - t and a mistake loses t, in the unit of PushCost. Offers that the balance does not
//! cover are not made, and no moment may stake more than half of it. The sum of all losses
//! therefore stays below a few requests and a small share of the traffic, whatever a site, a robot
//! or a simulation does. A page with a hundred unproven assets is tested with a few of them.

/// The loss that offers may make beside their credit, per requested asset.
const SHARE: f64 = 0.003;
/// Credit that traffic earns, and how much of it each asset asked for: little traffic can lose
/// little.
const EARNED: f64 = 6.0;
const EARNING: f64 = 0.002;
/// Part of the balance that one moment may stake.
const STAKE: f64 = 0.5;
/// Winnings are forgotten slowly, so that a long good time does not pay for a long bad one.
const KEPT: f64 = 1.0 - 1.0 / 16_384.0;

/// Requests won and lost.
#[derive(Debug)]
pub(super) struct PushBudget {
    /// The loss that offers may make before any gain, and the part of it that is earned.
    credit: f64,
    earned: f64,
    balance: f64,
}

impl PushBudget {
    /// An account with `credit` requests on it.
    pub(super) fn new(credit: f64) -> Self {
        let earned = credit.max(1.0);
        Self {
            credit: earned.max(EARNED),
            earned,
            balance: earned,
        }
    }

    /// Grants the full credit: knowledge from elsewhere has earned it there.
    pub(super) fn trust(&mut self) {
        self.balance += self.credit - self.earned;
        self.earned = self.credit;
    }

    /// An asset was asked for.
    pub(super) fn asked(&mut self) {
        if self.earned < self.credit {
            self.earned += EARNING;
            self.balance += EARNING;
        }
        if self.balance > self.credit {
            self.balance = self.credit + (self.balance - self.credit) * KEPT;
        }
        self.balance += SHARE;
    }

    /// Returns the amount that may be spent at this moment: enough for one offer, if the balance
    /// has as much.
    pub(super) fn stake(&self) -> f64 {
        (self.balance * STAKE).max(1.0).min(self.balance)
    }

    /// Pays `threshold` for an offer out of a stake. Returns whether it may be made.
    pub(super) fn pay(&mut self, threshold: f64, stake: &mut f64) -> bool {
        let covered = *stake >= threshold;
        if covered {
            *stake -= threshold;
            self.balance -= threshold;
        }
        covered
    }

    /// Notes that an offered resource was requested.
    pub(super) fn won(&mut self) {
        self.balance += 1.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_bounded_and_winnings_lift_the_bound() {
        const CREDIT: f64 = 1.0;
        let mut budget = PushBudget::new(CREDIT);
        let offer = |budget: &mut PushBudget| {
            let mut stake = budget.stake();
            (0..1000).filter(|_| budget.pay(0.5, &mut stake)).count()
        };
        let mut lost = 0;
        for _ in 0..1000 {
            budget.asked();
            lost += offer(&mut budget);
        }
        assert!(
            lost as f64 * 0.5 <= CREDIT + 1000.0 * (SHARE + EARNING),
            "{lost} offers in vain"
        );
        for _ in 0..50 {
            budget.won();
        }
        assert!(offer(&mut budget) >= 20);
    }
}
