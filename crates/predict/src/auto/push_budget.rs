//! The account of all offers: their gains, and the loss that they may still make.
//!
//! An offer costs its threshold t and returns 1 when the client requests the offered resource. A
//! hit gains 1 - t and a mistake loses t, in the unit of PushCost. Offers that the balance does not
//! cover are not made, and no moment may stake more than half of it. The sum of all losses
//! therefore stays below a few requests and a small share of the traffic, whatever a site, a robot
//! or a simulation does. A page with a hundred unproven assets is tested with a few of them.
//!
//! A small balance pays for two or three offers, so chance would decide whether a site ever gets
//! more. Offers that the balance does not cover are therefore made on paper: a second balance pays
//! for them and gets their returns, but nothing is pushed. If it triples, the account gets a loan.
//! Where offers do not pay, a balance of 1 reaches 3 in fewer than one of three attempts, provided
//! that outcomes are known before the attempt ends. Later ones count for the next attempt, so that
//! a busy site gets a loan more often. The loan is bounded, and winnings repay it.

/// The loss that offers may make beside their credit, per requested asset.
const SHARE: f64 = 0.003;
/// Credit that traffic earns, and how much of it each asset asked for: little traffic can lose
/// little.
const EARNED: f64 = 6.0;
const EARNING: f64 = 0.002;
/// Part of a balance that one moment may stake.
const STAKE: f64 = 0.5;
/// Winnings are forgotten slowly, so that a long good time does not pay for a long bad one.
const KEPT: f64 = 1.0 - 1.0 / 16_384.0;
/// The balance with which each attempt on paper begins, and the one that proves that offers pay.
const PAPER: f64 = 1.0;
const PROOF: f64 = 3.0;
/// The requests that an attempt on paper lends, and the debt at most.
const LOAN: f64 = 1.0;
const MAX_DEBT: f64 = 2.0;

/// Requests won and lost.
#[derive(Debug)]
pub(super) struct PushBudget {
    /// The loss that offers may make before any gain, and the part of it that is earned.
    credit: f64,
    earned: f64,
    balance: f64,
    /// The balance of the offers on paper.
    paper: f64,
    /// The part of the balance that is lent.
    debt: f64,
}

/// The amounts that one moment may still spend.
#[derive(Debug)]
pub(super) struct Stakes {
    real: f64,
    paper: f64,
}

impl PushBudget {
    /// An account with `credit` requests on it.
    pub(super) fn new(credit: f64) -> Self {
        let earned = credit.max(1.0);
        Self {
            credit: earned.max(EARNED),
            earned,
            balance: earned,
            paper: PAPER,
            debt: 0.0,
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
            let repaid = self.debt.min(self.balance - self.credit);
            self.debt -= repaid;
            self.balance -= repaid;
            self.balance = self.credit + (self.balance - self.credit) * KEPT;
        }
        self.balance += SHARE;
    }

    /// Returns the amounts that may be spent at a moment whose dearest offer costs `threshold`:
    /// enough for one offer, if the balance has as much. On paper it always has.
    pub(super) fn stakes(&mut self, threshold: f64) -> Stakes {
        if self.paper < threshold {
            // This attempt has failed, and the next one begins.
            self.paper = PAPER;
        }
        let stake = |balance: f64| (balance * STAKE).max(1.0).min(balance);
        Stakes {
            real: stake(self.balance),
            paper: stake(self.paper),
        }
    }

    /// Pays `threshold` for an offer out of the stakes. Returns whether it may be made.
    pub(super) fn pay(&mut self, threshold: f64, stakes: &mut Stakes) -> bool {
        let covered = stakes.real >= threshold;
        if covered {
            stakes.real -= threshold;
            self.balance -= threshold;
        }
        covered
    }

    /// Pays `threshold` for an offer on paper. Returns whether its outcome counts.
    pub(super) fn note(&mut self, threshold: f64, stakes: &mut Stakes) -> bool {
        let covered = stakes.paper >= threshold;
        if covered {
            stakes.paper -= threshold;
            self.paper -= threshold;
        }
        covered
    }

    /// Notes that an offered resource was requested.
    pub(super) fn won(&mut self) {
        self.balance += 1.0;
    }

    /// Notes that a resource was requested that was offered on paper. Grants a loan once this
    /// proves that offers pay.
    pub(super) fn won_on_paper(&mut self) {
        self.paper += 1.0;
        if self.paper >= PROOF {
            self.paper = PAPER;
            let loan = LOAN.min(MAX_DEBT - self.debt);
            self.debt += loan;
            self.balance += loan;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREDIT: f64 = 1.0;
    const THRESHOLD: f64 = 0.5;

    /// Makes all covered offers and two on paper, without time between them. Returns both numbers.
    fn offer(budget: &mut PushBudget) -> (usize, usize) {
        let mut stakes = budget.stakes(THRESHOLD);
        let real = (0..1000)
            .filter(|_| budget.pay(THRESHOLD, &mut stakes))
            .count();
        let paper = (0..2)
            .filter(|_| budget.note(THRESHOLD, &mut stakes))
            .count();
        (real, paper)
    }

    #[test]
    fn losses_are_bounded_and_winnings_lift_the_bound() {
        let mut budget = PushBudget::new(CREDIT);
        let mut lost = 0;
        for _ in 0..1000 {
            budget.asked();
            lost += offer(&mut budget).0;
        }
        assert!(
            lost as f64 * THRESHOLD <= CREDIT + 1000.0 * (SHARE + EARNING),
            "{lost} offers in vain"
        );
        for _ in 0..50 {
            budget.won();
        }
        assert!(offer(&mut budget).0 >= 20);
    }

    #[test]
    fn budget_lends_after_wins_on_paper() {
        let mut budget = PushBudget::new(CREDIT);
        assert_eq!(offer(&mut budget), (2, 2), "all credit is spent in vain");
        (0..2).for_each(|_| budget.won_on_paper());
        assert_eq!(offer(&mut budget), (0, 2), "one more proof is needed");
        (0..2).for_each(|_| budget.won_on_paper());
        assert_eq!(offer(&mut budget).0, 2, "the loan covers two offers");
    }

    #[test]
    fn budget_lends_no_more_than_the_bound() {
        // Offers on paper always win, and real ones never.
        let mut budget = PushBudget::new(CREDIT);
        let mut lost = 0;
        for _ in 0..1000 {
            budget.asked();
            let (real, paper) = offer(&mut budget);
            lost += real;
            (0..paper).for_each(|_| budget.won_on_paper());
        }
        let least = CREDIT + MAX_DEBT;
        assert!(lost as f64 * THRESHOLD >= least, "{lost} offers in vain");
        let most = least + 1000.0 * (SHARE + EARNING);
        assert!(lost as f64 * THRESHOLD <= most, "{lost} offers in vain");
    }

    #[test]
    fn winnings_repay_the_loan() {
        let mut budget = PushBudget::new(CREDIT);
        offer(&mut budget);
        (0..4).for_each(|_| budget.won_on_paper());
        assert!(budget.debt > 0.0);
        (0..20).for_each(|_| budget.won());
        budget.asked();
        assert!(budget.debt.abs() < 1e-9, "{}", budget.debt);
    }
}
