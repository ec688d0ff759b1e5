//! Downloads whose sender writes only while few bytes are unsent.

use tandem_link::loss::Loss;

use super::*;

/// A download from a sender that writes late.
fn late(algorithm: Algorithm, link: &LinkConfig) -> Download {
    Download::from_sender(Some(0), algorithm, link, None)
}

/// The sender has something to send whenever it may, also after losses.
#[test]
fn late_sender_keeps_its_rate() {
    for algorithm in [Algorithm::Bbr, Algorithm::Cubic] {
        for loss in [0.0, 0.01] {
            let link = LinkConfig {
                loss: Loss::Independent(loss),
                ..link(20 * MEGA, 100 * MS)
            };
            let mut early = Download::over(algorithm, &link, None);
            let mut late = late(algorithm, &link);
            let time = 200 * MS;
            let (early, late) = (early.run(60 * time), late.run(60 * time));
            let ratio = late as f64 / early as f64;
            assert!(ratio > 0.95, "{algorithm:?}, loss {loss}: {ratio:.3}");
        }
    }
}
