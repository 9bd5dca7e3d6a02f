//! Finds which files of a crate use which others, and finds circles.
//!
//! A file uses another if one of its paths leads to a module of that file. Such a path begins with
//! `crate`, `super`, `self`, or the name of a child module. Declarations (`mod …;`), re-exports
//! (`pub use …;`) and tests do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Path of a module: its names from the crate root, whose path is empty.
type Module = Vec<String>;

/// The files of a crate by module: path below `src`, and the text without comments and tests.
pub type Files = BTreeMap<Module, (String, String)>;

/// Reads all files below `src`, except `main.rs` beside a `lib.rs`.
pub fn read_files(src: &Path) -> Files {
    let mut files = Files::new();
    let mut waiting = vec![(src.to_owned(), Module::new())];
    while let Some((dir, module)) = waiting.pop() {
        for entry in fs::read_dir(&dir).expect("a source folder") {
            let path = entry.expect("an entry").path();
            let name = path.file_stem().and_then(|name| name.to_str());
            let name = name.expect("a plain name").to_owned();
            let own: Module = match name.as_str() {
                "lib" | "main" | "mod" => module.clone(),
                _ => module.iter().cloned().chain([name]).collect(),
            };
            if path.is_dir() {
                waiting.push((path, own));
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = fs::read_to_string(&path).expect("source text");
                let file = path.strip_prefix(src).expect("a path in src");
                let file = file.display().to_string();
                let is_lib = !src.join("lib.rs").exists() || file != "main.rs";
                if is_lib {
                    files.insert(own, (file, code(&text)));
                }
            }
        }
    }
    let tests = test_modules(&files);
    files.retain(|module, _| !tests.iter().any(|test| module.starts_with(test)));
    files
}

/// Removes comments and the inline module of tests, which is last in a file.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests {").next();
    let lines = text.unwrap_or("").lines();
    let lines = lines.map(|line| match line.find("//") {
        Some(at) if !line[..at].contains('"') => &line[..at],
        _ => line,
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Modules that are declared only for tests.
fn test_modules(files: &Files) -> Vec<Module> {
    let mut tests = Vec::new();
    for (module, (_, text)) in files {
        for after in text.split("#[cfg(test)]").skip(1) {
            let declared = after.trim_start().strip_prefix("mod ");
            if let Some((name, _)) = declared.and_then(|rest| rest.split_once(';')) {
                tests.push(module.iter().cloned().chain([name.to_owned()]).collect());
            }
        }
    }
    tests
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Lists the paths in a `use` tree: `a::{b, c::{d, e}}` gives `a::b`, `a::c::d`, `a::c::e`.
fn expand(tree: &str, prefix: &str, paths: &mut Vec<String>) {
    let tree = tree.trim();
    let Some(open) = tree.find('{') else {
        let path = tree.split(" as ").next().unwrap_or(tree).trim();
        return paths.push(format!("{prefix}{path}"));
    };
    let inner = tree[open + 1..].trim_end().trim_end_matches('}');
    // The last brace closes this tree; inner braces belong to its parts.
    let closes = tree[open..].matches('}').count() - 1;
    let inner = format!("{inner}{}", "}".repeat(closes.min(missing_braces(inner))));
    let prefix = format!("{prefix}{}", &tree[..open]);
    let (mut depth, mut start) = (0, 0);
    for (at, byte) in inner.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            b',' if depth == 0 => {
                expand(&inner[start..at], &prefix, paths);
                start = at + 1;
            }
            _ => {}
        }
    }
    if !inner[start..].trim().is_empty() {
        expand(&inner[start..], &prefix, paths);
    }
}

fn missing_braces(text: &str) -> usize {
    text.matches('{').count() - text.matches('}').count()
}

/// Lists the paths in `text`: all imports, and paths in code that begin with one of `roots`.
fn paths(text: &str, roots: &[&str]) -> Vec<String> {
    let (mut paths, mut rest) = (Vec::new(), String::new());
    let mut statements = text.split_inclusive('\n').peekable();
    while let Some(line) = statements.next() {
        let trimmed = line.trim_start();
        let is_import = trimmed.starts_with("use ");
        let is_export = trimmed.starts_with("pub use ") || trimmed.starts_with("pub(crate) use ");
        if !is_import && !is_export {
            rest.push_str(line);
            continue;
        }
        let mut statement = trimmed.to_owned();
        while !statement.contains(';') {
            statement.push_str(statements.next().expect("the end of an import"));
        }
        if is_import {
            let tree = statement.trim_start_matches("use ");
            expand(tree.split(';').next().unwrap_or(""), "", &mut paths);
        }
    }
    for root in roots {
        let root = format!("{root}::");
        for (at, _) in rest.match_indices(&root) {
            let before = at.checked_sub(1).map(|before| rest.as_bytes()[before]);
            if before.is_some_and(|byte| is_word(byte) || byte == b':') {
                continue;
            }
            let is_path = |byte: &u8| is_word(*byte) || *byte == b':';
            let len = rest[at..].bytes().take_while(|byte| is_path(byte)).count();
            paths.push(rest[at..at + len].to_owned());
        }
    }
    paths
}

/// The module of a file to which `path` leads from `module`; `None` for other crates.
fn resolve(files: &Files, module: &Module, path: &str) -> Option<Module> {
    let mut names = path.split("::").filter(|name| !name.is_empty()).peekable();
    let mut at = match *names.peek()? {
        "crate" => Module::new(),
        "super" | "self" => module.clone(),
        child => {
            let own: Module = module.iter().cloned().chain([child.to_owned()]).collect();
            files.contains_key(&own).then(|| module.clone())?
        }
    };
    for name in names {
        match name {
            "crate" | "self" => {}
            "super" => drop(at.pop()),
            _ => {
                at.push(name.to_owned());
                if !files.contains_key(&at) {
                    at.pop();
                    break;
                }
            }
        }
    }
    files.contains_key(&at).then_some(at)
}

/// For each file, the files that it uses.
pub fn edges(files: &Files) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut edges = BTreeMap::new();
    for (module, (file, text)) in files {
        let children = files
            .keys()
            .filter(|other| other.len() == module.len() + 1 && other.starts_with(module));
        let children = children.filter_map(|child| child.last().map(String::as_str));
        let roots: Vec<&str> = ["crate", "super", "self"]
            .into_iter()
            .chain(children)
            .collect();
        let used = paths(text, &roots);
        let used = used.iter().filter_map(|path| resolve(files, module, path));
        let used: BTreeSet<&str> = used
            .filter_map(|used| files.get_key_value(&used))
            .map(|(_, (used, _))| used.as_str())
            .filter(|used| used != file)
            .collect();
        edges.insert(file.as_str(), used);
    }
    edges
}

/// The circles: sets of files each of which uses all others, directly or through others.
pub fn circles(files: &Files) -> Vec<BTreeSet<String>> {
    let edges = edges(files);
    let reached: BTreeMap<&str, BTreeSet<&str>> = edges
        .keys()
        .map(|&file| {
            let (mut seen, mut waiting) = (BTreeSet::new(), vec![file]);
            while let Some(next) = waiting.pop() {
                let used = edges[next].iter().copied();
                waiting.extend(used.filter(|used| seen.insert(*used)));
            }
            (file, seen)
        })
        .collect();
    let circle = |file: &str| {
        let others = reached[file]
            .iter()
            .filter(|other| reached[**other].contains(file));
        others
            .map(|other| (*other).to_owned())
            .collect::<BTreeSet<_>>()
    };
    let circles: BTreeSet<_> = edges.keys().map(|file| circle(file)).collect();
    circles
        .into_iter()
        .filter(|circle| !circle.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(texts: &[(&str, &str)]) -> Files {
        let file = |(module, text): &(&str, &str)| {
            let names = module.split("::").filter(|name| !name.is_empty());
            let module: Module = names.map(str::to_owned).collect();
            let file = format!("{}.rs", module.join("/"));
            (module, (file, code(text)))
        };
        texts.iter().map(file).collect()
    }

    /// Would catch: paths that the parser misses, and declarations, re-exports, comments or tests
    /// that it counts as uses.
    #[test]
    fn uses_are_seen_in_imports_and_in_code() {
        let files = files(&[
            ("", "mod a;\npub use a::X;\n"),
            ("a", "mod b;\nuse std::fs;\nfn f() { b::g(); }\n"),
            (
                "a::b",
                "use crate::{\n    c::{self, D as E},\n    d::F,\n};\n// crate::e::H\n",
            ),
            ("c", "fn f() -> super::d::F { crate::e::f() }\n"),
            ("d", "#[cfg(test)]\nmod tests {\n    use crate::c::D;\n}\n"),
            ("e", "use super::X;\n"),
        ]);
        let edges = edges(&files);
        let used = |file: &str| edges[file].iter().copied().collect::<Vec<_>>().join(" ");
        assert_eq!(used(".rs"), "");
        assert_eq!(used("a.rs"), "a/b.rs");
        assert_eq!(used("a/b.rs"), "c.rs d.rs");
        assert_eq!(used("c.rs"), "d.rs e.rs");
        assert_eq!(used("d.rs"), "");
        assert_eq!(used("e.rs"), ".rs");
        assert!(circles(&files).is_empty());
    }

    /// Would catch: a missed circle through several files, or between a parent and its child.
    #[test]
    fn circles_are_found() {
        let files = files(&[
            ("a", "mod b;\nuse b::X;\n"),
            ("a::b", "use super::Y;\n"),
            ("c", "use crate::d::X;\n"),
            ("d", "use crate::e::X;\n"),
            ("e", "use crate::{a::Y, c::X};\n"),
        ]);
        let found: Vec<String> = circles(&files)
            .into_iter()
            .map(|circle| circle.into_iter().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(found, ["a.rs a/b.rs", "c.rs d.rs e.rs"]);
    }
}
