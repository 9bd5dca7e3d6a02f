//! What holds for texts: a map whose places exist.

use super::root;
use std::fs;

/// Would catch: a map that leads to files that were moved.
#[test]
fn places_in_the_map_exist() {
    let root = root();
    let text = fs::read_to_string(root.join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let places = text.split('`').filter(|word| {
        let first = word.split('/').next().unwrap_or_default();
        ["crates", "docs", "scripts", "bench", "fuzz"].contains(&first)
            && word.contains('/')
            && !word.contains([' ', '*', '\n'])
    });
    let places: Vec<&str> = places.collect();
    assert!(places.len() > 50, "the map names {} places", places.len());
    let gone: Vec<&&str> = places
        .iter()
        .filter(|place| !root.join(place).exists())
        .collect();
    assert!(
        gone.is_empty(),
        "ARCHITECTURE.md names {gone:?}, which do not exist"
    );
}
