//! Rules for texts: the length of lines, existing paths, links and targets, and subjects.

use super::root;
use std::collections::BTreeMap;
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

/// Would catch: a table with names of other users' mounts, groups or processes that is taken for
/// empty, or ends a test, because one of them is no UTF-8.
#[test]
fn tables_of_the_kernel_with_names_are_read_as_bytes() {
    let tables = ["mounts\"", "mountinfo", "cgroup", "cmdline"];
    let mut found = Vec::new();
    for (path, text) in texts(".rs") {
        for (no, line) in (1..).zip(text.lines()) {
            let is_strict = line.contains("read_to_string(\"/proc")
                || line.contains("read_to_string(format!(\"");
            if is_strict && tables.iter().any(|table| line.contains(table)) {
                found.push(format!("{}:{no}", path.display()));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
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

/// Folders whose files the documents name by their path from the root.
const FOLDERS: [&str; 6] = ["crates", "docs", "scripts", "bench", "fuzz", "lab"];

/// The documents: those at the root and those below `docs`, without code blocks.
fn documents() -> Vec<(PathBuf, String)> {
    let texts = texts(".md").into_iter();
    let texts = texts.filter(|(path, _)| {
        let path = path.strip_prefix(root()).expect("a path below the root");
        path.components().count() == 1 || path.starts_with("docs")
    });
    let prose = |text: &str| text.split("```").step_by(2).collect::<String>();
    texts.map(|(path, text)| (path, prose(&text))).collect()
}

/// Would catch: a path in a document whose file was moved.
#[test]
fn paths_in_documents_exist() {
    let root = root();
    let (mut count, mut gone) = (0, Vec::new());
    for (document, text) in documents() {
        let paths = text.split('`').skip(1).step_by(2).filter(|word| {
            let first = word.split('/').next().unwrap_or_default();
            FOLDERS.contains(&first)
                && word.contains('/')
                && !word.contains([' ', '*', '\n', '{', '='])
        });
        for path in paths {
            count += 1;
            if !root.join(path).exists() {
                gone.push(format!("{}: {path}", document.display()));
            }
        }
    }
    assert!(count > 100, "the documents name {count} paths");
    assert!(gone.is_empty(), "do not exist:\n{}", gone.join("\n"));
}

/// The anchors of a document's headings, as web pages of Git servers make them.
fn anchors(text: &str) -> Vec<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        let words = words.replace(' ', "-");
        words
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_'))
            .collect()
    };
    headings.map(anchor).collect()
}

/// Would catch: a link to a document that was moved, or to a heading that was renamed.
#[test]
fn links_in_documents_lead_somewhere() {
    let (mut count, mut dead) = (0, Vec::new());
    for (document, text) in documents() {
        let links = text.split("](").skip(1);
        let links = links.filter_map(|link| link.split(')').next());
        for link in links.filter(|link| !link.contains("://")) {
            count += 1;
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match path {
                "" => document.clone(),
                path => document.with_file_name(path),
            };
            let is_there = match anchor {
                "" => target.exists(),
                anchor => fs::read_to_string(&target)
                    .is_ok_and(|t| anchors(&t).iter().any(|a| a == anchor)),
            };
            if !is_there {
                dead.push(format!("{}: {link}", document.display()));
            }
        }
    }
    assert!(count > 20, "the documents have {count} links");
    assert!(dead.is_empty(), "lead nowhere:\n{}", dead.join("\n"));
}

/// Would catch: a command in a document whose target the Makefile no longer has.
#[test]
fn make_targets_in_documents_exist() {
    let makefile = fs::read_to_string(root().join("Makefile")).expect("Makefile");
    let (mut count, mut gone) = (0, Vec::new());
    for (document, text) in documents() {
        for word in text.split('`').skip(1).step_by(2) {
            let Some(target) = word.strip_prefix("make ") else {
                continue;
            };
            let target = target.split(' ').next().unwrap_or_default();
            count += 1;
            if !makefile.contains(&format!("\n{target}:")) {
                gone.push(format!("{}: make {target}", document.display()));
            }
        }
    }
    assert!(count > 20, "the documents name {count} targets");
    assert!(gone.is_empty(), "do not exist:\n{}", gone.join("\n"));
}

/// Would catch: a word that fits everything as the name of several types, so that a reader must
/// look where each file has it from.
#[test]
fn words_that_fit_everything_name_one_type_each() {
    const WORDS: [&str; 7] = [
        "Found", "Part", "Place", "Run", "Segment", "Source", "State",
    ];
    let mut named = BTreeMap::<&str, Vec<String>>::new();
    for (path, text) in texts(".rs") {
        if !path.components().any(|part| part.as_os_str() == "src") {
            continue;
        }
        for line in text.lines() {
            let line = line.trim_start();
            let line = ["pub ", "pub(crate) ", "pub(super) "]
                .iter()
                .find_map(|word| line.strip_prefix(word))
                .unwrap_or(line);
            let kinds = ["struct ", "enum ", "trait ", "type ", "union "];
            let Some(name) = kinds.iter().find_map(|kind| line.strip_prefix(kind)) else {
                continue;
            };
            let end = name.find(|c: char| !c.is_alphanumeric() && c != '_');
            let name = &name[..end.unwrap_or(name.len())];
            if let Some(word) = WORDS.iter().find(|&&word| word == name) {
                named
                    .entry(word)
                    .or_default()
                    .push(path.display().to_string());
            }
        }
    }
    // A word that names nothing any more leaves the list.
    assert_eq!(named.keys().copied().collect::<Vec<_>>(), WORDS);
    for (word, paths) in named {
        assert_eq!(
            paths.len(),
            1,
            "{word} is the name of several types: {paths:#?}"
        );
    }
}

/// Would catch: a command in a test's script that should fail and may do what it likes: the shell
/// goes on after `! command` whatever came of it. `! command || exit 1` ends the script.
#[test]
fn commands_that_should_fail_end_their_scripts_if_they_do_not() {
    let mut unchecked = Vec::new();
    for (path, text) in texts(".rs") {
        if !path.components().any(|part| part.as_os_str() == "tests") {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            let mut is_quoted = false;
            let ends = |c: char| {
                is_quoted ^= c == '\'';
                c == ';' && !is_quoted
            };
            let mut statements = line.split(ends).peekable();
            while let Some(statement) = statements.next() {
                let words = statement.trim_start().trim_start_matches("do ");
                let words = words.rsplit("sh(\"").next().unwrap_or(words);
                let words = words.trim_start_matches(['"', ' ']);
                let is_checked = ["||", "&&"].iter().any(|word| words.contains(word));
                // The status of the last command is that of the script.
                let is_last = words.contains('"')
                    && statements.peek().is_none_or(|next| next.trim().is_empty());
                let is_condition = statements
                    .peek()
                    .is_some_and(|next| next.trim_start().starts_with("then"));
                if words.starts_with("! ") && !is_checked && !is_last && !is_condition {
                    unchecked.push(format!("{}:{}: {words}", path.display(), number + 1));
                }
            }
        }
    }
    assert!(unchecked.is_empty(), "{unchecked:#?}");
}

/// Would catch: unit tests that nothing runs. The targets of a crate are its library and its
/// programs; crates outside the workspace say that they have none.
#[test]
fn unit_tests_are_run() {
    let script = texts(".sh").into_iter();
    let script = script.filter(|(path, _)| path.ends_with("scripts/lib.sh"));
    let runs: Vec<String> = script
        .flat_map(|(_, text)| text.lines().map(str::to_owned).collect::<Vec<_>>())
        .filter(|line| line.contains("cargo test --workspace"))
        .collect();
    assert!(
        runs.iter().any(|run| run.ends_with("--lib --bins")),
        "{runs:#?}"
    );
    for (path, text) in texts("Cargo.toml") {
        let is_own_workspace = text.lines().any(|line| line == "[workspace]");
        let says_no = text.lines().any(|line| line == "test = false");
        let sources = path.with_file_name("src");
        let has_tests = texts(".rs").iter().any(|(source, text)| {
            source.starts_with(&sources) && text.lines().any(|line| line.trim() == "#[test]")
        });
        assert!(
            !has_tests || !(is_own_workspace || says_no),
            "{}: its unit tests are not run",
            path.display()
        );
    }
}
