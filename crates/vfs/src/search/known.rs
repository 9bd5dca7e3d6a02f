//! The matches that a search remembers for each template.

use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;

/// Most templates that are remembered, about 64 bytes each.
const KNOWN_TEMPLATE_COUNT_MAX: usize = 1 << 20;
/// Most entry positions that are remembered for all templates together, 8 bytes each.
const ENTRY_POSITIONS_MAX: usize = 1 << 21;

/// The matches in every instance of a template.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Number of matches at any depth.
    pub count: u64,
    /// Positions of the entries that match or lead to a match; `None` if these are too many to
    /// list.
    pub positions: Option<Arc<[u64]>>,
}

/// The answers for all templates, shared by all threads of a search.
#[derive(Default)]
pub struct Known(RwLock<Answers>);

#[derive(Default)]
struct Answers {
    by_template: HashMap<u64, Answer>,
    position_count: usize,
}

impl Known {
    /// The answer for `template`, if it is known.
    pub fn get(&self, template: u64) -> Option<Answer> {
        self.0.read().by_template.get(&template).cloned()
    }

    /// Remembers the answer for `template` if there is space. Two threads may insert the same one.
    pub fn insert(&self, template: u64, count: u64, positions: Option<Vec<u64>>) {
        let mut answers = self.0.write();
        let is_full = answers.by_template.len() >= KNOWN_TEMPLATE_COUNT_MAX;
        if is_full || answers.by_template.contains_key(&template) {
            return;
        }
        let free_count = ENTRY_POSITIONS_MAX - answers.position_count;
        let positions = positions.filter(|positions| positions.len() <= free_count);
        answers.position_count += positions.as_ref().map_or(0, Vec::len);
        let positions = positions.map(Arc::from);
        answers
            .by_template
            .insert(template, Answer { count, positions });
    }
}
