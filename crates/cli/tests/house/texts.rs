//! Rules for texts: the length of lines, and existing paths in the map.

use super::root;
use std::fs;
use std::path::{Path, PathBuf};

/// Longest line of code or comment, in bytes (awk counts bytes too).
const CODE_LINE_LEN_MAX: usize = 100;
/// Longest line of Markdown outside tables and code blocks, in characters.
const PROSE_LINE_LEN_MAX: usize = 120;

/// Collects the files below `dir` whose names end in `ending`, except build output.
fn files(dir: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a directory").flatten() {
        let path = entry.path();
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if path.is_dir() && !path.is_symlink() {
            if name != "target" && name != "bench-out" && !name.starts_with('.') {
                files(&path, ending, found);
            }
        } else if name.ends_with(ending) {
            found.push(path);
        }
    }
}

fn texts(ending: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    files(&root(), ending, &mut found);
    assert!(!found.is_empty(), "no file ends in {ending}");
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("text");
        (path, text)
    };
    found.into_iter().map(read).collect()
}

/// Would catch: a line that does not fit in half of a screen.
#[test]
fn lines_of_code_end_at_100_bytes() {
    let mut long = Vec::new();
    for (path, text) in texts(".rs") {
        for (no, line) in (1..).zip(text.lines()) {
            if line.len() > CODE_LINE_LEN_MAX {
                long.push(format!("{}:{no}: {} bytes", path.display(), line.len()));
            }
        }
    }
    assert!(long.is_empty(), "{}", long.join("\n"));
}

/// Would catch: a paragraph that an editor of 120 columns cuts off.
#[test]
fn lines_of_prose_end_at_120_characters() {
    let mut long = Vec::new();
    for (path, text) in texts(".md") {
        let mut is_code = false;
        for (no, line) in (1..).zip(text.lines()) {
            is_code ^= line.trim_start().starts_with("```");
            let is_table = line.trim_start().starts_with('|');
            if !is_code && !is_table && line.chars().count() > PROSE_LINE_LEN_MAX {
                long.push(format!("{}:{no}", path.display()));
            }
        }
    }
    assert!(long.is_empty(), "{}", long.join("\n"));
}

/// Would catch: a path in the map whose file was moved.
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
