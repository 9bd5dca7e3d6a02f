//! Steps with snapshots of a simulated run, chosen from a seed.

use super::steps::{OnSnapshots, Step, op, other};
use weald_store::simulated_disk::Random;

fn on_snapshots(random: &mut Random) -> OnSnapshots {
    match random.below(10) {
        0..4 => OnSnapshots::Take {
            number: random.below(6),
        },
        4..6 => OnSnapshots::Remove {
            which: random.next(),
        },
        6..8 => OnSnapshots::Sweep,
        8 => OnSnapshots::RollBack {
            which: random.next(),
            cut_after: random.is_one_in(2).then(|| random.below(40)),
        },
        _ => OnSnapshots::Clone {
            which: random.next(),
            op: op(random),
        },
    }
}

/// Adds steps with snapshots to those of a run.
pub fn with_snapshots(steps: Vec<Step>, random: &mut Random) -> Vec<Step> {
    let mut all = Vec::with_capacity(steps.len() * 2);
    for step in steps {
        all.push(step);
        if random.is_one_in(5) {
            let step = Step::OnSnapshots(on_snapshots(random));
            all.push(if random.is_one_in(4) {
                other(step)
            } else {
                step
            });
        }
    }
    all
}
