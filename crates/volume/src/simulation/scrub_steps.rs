//! Scrubs in a simulated run, chosen from a seed.

use super::steps::{Collect, Scrub, Step, collect, op, other};
use weald_store::simulated_disk::Random;

fn beside(random: &mut Random) -> Step {
    match random.below(8) {
        0..2 => Step::Do(op(random)),
        2..4 => Step::Commit(Vec::new()),
        4 => Step::ReturnSpace,
        5 => Step::Sync(Vec::new()),
        _ => Step::Collect(Collect {
            cut_after: None,
            stopped_after: None,
            ..collect(random)
        }),
    }
}

fn scrub(random: &mut Random) -> Scrub {
    let count = random.below(6);
    let between = (0..count).map(|_| (random.below(20), beside(random)));
    let mut between: Vec<(u64, Step)> = between.collect();
    between.sort_by_key(|(after, _)| *after);
    Scrub {
        between,
        cut_after: random.is_one_in(4).then(|| random.below(20)),
        left_after: random.is_one_in(4).then(|| random.below(20)),
    }
}

/// Adds scrubs to the steps of a run.
pub fn with_scrubs(steps: Vec<Step>, random: &mut Random) -> Vec<Step> {
    let mut all = Vec::with_capacity(steps.len() * 2);
    for step in steps {
        all.push(step);
        if random.is_one_in(8) {
            let step = Step::Scrub(scrub(random));
            all.push(if random.is_one_in(4) {
                other(step)
            } else {
                step
            });
        }
    }
    all
}
