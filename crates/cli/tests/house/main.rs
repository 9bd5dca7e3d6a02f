//! Rules of the project that a program can check: the direction of dependencies, the place of
//! unsafe code, a line in `docs/dependencies.md` for every library, and no circles between the
//! files of a crate.
#![allow(missing_docs)]

mod imports;
mod texts;

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

/// Crates by row, lowest first. A crate depends only on lower rows, so that two crates of one row
/// never use each other. The volume is beside export: it implements a trait of
/// `vfs`.
const ROWS: [&[&str]; 11] = [
    &["format"],
    &["sys"],
    &["codec", "io", "forest", "erofs", "filter"],
    &["remote", "parity"],
    &["store"],
    &["image"],
    &["builder"],
    &["vfs"],
    &["export", "ingest", "views", "volume", "model"],
    &["fuse"],
    &["daemon", "runtime"],
];

/// The crate above all others.
const TOP: &str = "cli";

/// The crates that only tests use.
const TESTS: [&str; 2] = ["testkit", "model"];

/// Readers, which never link the writer.
const READERS: [&str; 7] = [
    "image", "vfs", "export", "views", "fuse", "daemon", "runtime",
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn metadata() -> Metadata {
    let mut command = MetadataCommand::new();
    let manifest = root().join("Cargo.toml");
    command
        .manifest_path(manifest)
        .no_deps()
        .other_options(vec!["--offline".into()]);
    command.exec().expect("cargo metadata")
}

fn crate_name(package: &str) -> Option<&str> {
    package.strip_prefix("weald-")
}

fn row(name: &str) -> usize {
    match name {
        TOP => ROWS.len(),
        "testkit" => 2,
        name => ROWS
            .iter()
            .position(|row| row.contains(&name))
            .unwrap_or_else(|| panic!("{name}: in no row")),
    }
}

/// The crates that `package` links; with `in_tests`, also those that only its tests link.
fn edges(package: &Package, in_tests: bool) -> Vec<&str> {
    let linked = package
        .dependencies
        .iter()
        .filter(|d| in_tests || d.kind != DependencyKind::Development);
    linked
        .filter_map(|dependency| crate_name(&dependency.name))
        .collect()
}

#[test]
fn dependencies_point_down() {
    let metadata = metadata();
    let crates: Vec<&str> = metadata
        .packages
        .iter()
        .filter_map(|package| crate_name(&package.name))
        .collect();
    assert_eq!(
        crates.len(),
        metadata.packages.len(),
        "every package is called weald-CRATE"
    );
    for package in &metadata.packages {
        let from = crate_name(&package.name).expect("a crate");
        for to in edges(package, false) {
            assert!(
                row(to) < row(from),
                "weald-{from} depends on weald-{to}, which is not below it"
            );
            assert!(!TESTS.contains(&to), "weald-{from} links a crate of tests");
        }
    }
}

#[test]
fn readers_do_not_link_the_writer() {
    let metadata = metadata();
    for reader in READERS {
        let mut seen = BTreeSet::from([reader.to_owned()]);
        let mut pending = vec![reader.to_owned()];
        while let Some(next) = pending.pop() {
            assert_ne!(next, "builder", "weald-{reader} links the writer");
            let name = format!("weald-{next}");
            let package = metadata
                .packages
                .iter()
                .find(|p| p.name.as_str() == name)
                .expect("a package");
            pending.extend(
                edges(package, false)
                    .into_iter()
                    .map(str::to_owned)
                    .filter(|name| seen.insert(name.clone())),
            );
        }
    }
}

#[test]
fn only_sys_may_be_unsafe() {
    for package in &metadata().packages {
        let name = crate_name(&package.name).expect("a crate");
        for target in &package.targets {
            let is_code = target.is_lib() || target.is_bin();
            if name == "sys" || !is_code {
                continue;
            }
            let source = fs::read_to_string(&target.src_path).expect("source");
            let path = &target.src_path;
            assert!(
                source.contains("#![forbid(unsafe_code)]"),
                "{path} does not forbid unsafe code"
            );
        }
    }
}

/// Would catch: unsafe code of the C library that is not at its border.
#[test]
fn the_c_library_is_unsafe_in_one_file() {
    let dir = root().join("crates/c/src");
    let files = fs::read_dir(&dir).expect("the sources");
    let is_unsafe = |path: &PathBuf| {
        let source = fs::read_to_string(path).expect("a source");
        let mut code = source
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"));
        code.any(|line| line.contains("unsafe"))
    };
    let paths = files.map(|file| file.expect("a file").path());
    let found: Vec<PathBuf> = paths.filter(is_unsafe).collect();
    assert_eq!(found, [dir.join("lib.rs")]);
}

/// Would catch: two files that use each other, so that neither can be read, tested or moved alone.
#[test]
fn files_do_not_use_each_other_in_circles() {
    let mut wrong = Vec::new();
    for package in &metadata().packages {
        let name = crate_name(&package.name).expect("a crate");
        let files = imports::read_files(&root().join("crates").join(name).join("src"));
        for circle in imports::circles(&files) {
            wrong.push(format!("{name}: these files use each other: {circle:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Would catch: a crate that decides itself on which disk a store lies, so that a store elsewhere
/// could not be opened through it.
#[test]
fn stores_are_opened_from_a_location() {
    let mut wrong = Vec::new();
    for package in &metadata().packages {
        let name = crate_name(&package.name).expect("a crate");
        let files = imports::read_files(&root().join("crates").join(name).join("src"));
        for (file, text) in files.values() {
            if name != "store" && text.contains("HostDisk") {
                wrong.push(format!("{name}: {file} names HostDisk: use StoreLocation"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn dependencies_and_their_lines_agree() {
    let text =
        fs::read_to_string(root().join("docs/dependencies.md")).expect("docs/dependencies.md");
    let row = |line: &'_ str| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned());
    let lines: BTreeSet<String> = text.lines().filter_map(row).collect();
    let metadata = metadata();
    let all = metadata
        .packages
        .iter()
        .flat_map(|package| &package.dependencies);
    let used: BTreeSet<String> = all
        .map(|d| d.name.clone())
        .filter(|name| crate_name(name).is_none())
        .collect();
    let missing: Vec<_> = used.difference(&lines).collect();
    let stale: Vec<_> = lines.difference(&used).collect();
    assert!(
        missing.is_empty() && stale.is_empty(),
        "docs/dependencies.md lacks {missing:?}, has {stale:?} too many"
    );
}

/// Names of the dependencies of each of our crates in a lock file.
fn locked(file: &str) -> BTreeMap<String, BTreeSet<String>> {
    let text = fs::read_to_string(root().join(file)).expect("a lock file");
    let name_of = |line: &str| {
        let quoted = line.split('"').nth(1).expect("a name");
        quoted.split(' ').next().expect("a word").to_owned()
    };
    let mut found = BTreeMap::new();
    for package in text.split("[[package]]").skip(1) {
        let mut lines = package.lines();
        let name = lines.find(|line| line.starts_with("name = "));
        let name = name_of(name.expect("a name"));
        let listed = lines.skip_while(|line| !line.starts_with("dependencies = ["));
        let listed = listed.skip(1).take_while(|line| !line.starts_with(']'));
        if name.starts_with("weald-") {
            found.insert(name, listed.map(name_of).collect());
        }
    }
    found
}

/// Would catch: a dependency that a crate got and the workspaces beside this one do not know, which
/// then do not build with `--locked`.
#[test]
fn lock_files_of_other_workspaces_are_up_to_date() {
    let all = locked("Cargo.lock");
    let metadata = metadata();
    for file in [
        "crates/c/Cargo.lock",
        "crates/python/Cargo.lock",
        "fuzz/Cargo.lock",
    ] {
        let theirs = locked(file);
        assert!(theirs.contains_key("weald-image"), "{file}");
        for package in &metadata.packages {
            let Some(listed) = theirs.get(package.name.as_str()) else {
                continue;
            };
            let used = package.dependencies.iter().filter(|dependency| {
                dependency.kind == DependencyKind::Normal && !dependency.optional
            });
            let used = used.map(|dependency| dependency.name.clone());
            let missing: Vec<String> = used.filter(|name| !listed.contains(name)).collect();
            let gone: Vec<&String> = listed.difference(&all[package.name.as_str()]).collect();
            assert!(
                missing.is_empty() && gone.is_empty(),
                "{file}: {}: {missing:?} are missing, {gone:?} are gone: cargo update --workspace",
                package.name
            );
        }
    }
}
