//! Experiment files of any text give an error, or an experiment that can be planned, in bounded
//! time.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem_lab::experiment::Experiment;
use tandem_lab::experiment::plan::{Selection, trials};
use tandem_lab::experiment::report;

fuzz_target!(|input: &[u8]| {
    let Ok(input) = std::str::from_utf8(input) else {
        return;
    };
    let Ok(experiment) = Experiment::parse(input) else {
        return;
    };
    // Larger ones only take longer.
    let values = |sweep: &tandem_lab::experiment::Sweep| {
        sweep
            .axes(true)
            .iter()
            .map(|(_, v)| v.len())
            .product::<usize>()
    };
    if experiment.sweeps.iter().map(values).sum::<usize>() > 1000 {
        return;
    }
    for full in [false, true] {
        for trial in trials(
            &experiment,
            &Selection {
                full,
                ..Selection::default()
            },
        )
        .expect("what was read can be planned")
        {
            trial
                .point
                .conditions("point")
                .expect("what was read was checked");
        }
    }
    assert!(report::html(&experiment, &[], None).ends_with("</html>\n"));
});
