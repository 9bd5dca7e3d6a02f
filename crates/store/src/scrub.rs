//! The scrub: reads every byte of a store in steps, beside its volumes, and goes on where it was.
//!
//! `record` has the two files that say what is wanted and how far it is, `policy` the one that says
//! how often; `view` the tables of one
//! commit, for passes beside the writer; `blocks` chooses and reads blocks; `counts` recounts
//! references; `steps` has the steps, and the trait of who performs them.
//! `docs/design/0037-scrub.md` has the reasons.
//!
//! Invariant: a finding about a block was confirmed by the writer, between two commits, when row
//! and bytes belong together.

mod blocks;
mod counts;
mod policy;
mod record;
mod steps;
mod view;

pub use policy::{PolicyRun, ScrubPolicy};
pub use record::{
    FINDINGS_MAX, LastScrub, ScrubFinding, ScrubPlace, ScrubReport, ScrubUser, ScrubWish, WHOLE,
};
pub use steps::{Scrub, ScrubHost};
pub use view::{IsOver, TablesView};
