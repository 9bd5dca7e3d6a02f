//! Random layers, applied by the importer and by a model that follows the specification word by
//! word.
#![allow(missing_docs)]

use std::collections::BTreeMap;
use std::path::Path;
use weald_builder::{BuildOptions, Silent};
use weald_format::{FileKind, InodeNo};
use weald_image::{Image, OpenOptions};
use weald_ingest::{OciChoice, import_oci};
use weald_testkit::Rng;
use weald_testkit::oci::{Layer, LayoutDir, Tar};
use weald_vfs::{Step, Walker};

/// Random images to import.
const ROUNDS: u64 = 400;

/// An entry: the number of its inode, and its content, target or nothing. Directories have 0.
type Node = (usize, String);
type Tree = BTreeMap<String, Node>;

/// One member of a random layer.
#[derive(Debug, Clone)]
enum Entry {
    Dir(String),
    File(String, String),
    Symlink(String, String),
    Link(String, String),
    Whiteout(String),
    Opaque(String),
}

fn parents(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(at, _)| &path[..at])
}

fn is_below(path: &str, dir: &str) -> bool {
    path.strip_prefix(dir)
        .is_some_and(|rest| rest.starts_with('/'))
}

/// Applies a layer: first what it hides in lower layers, then its members in order.
fn apply(tree: &mut Tree, layer: &[Entry], inode_count: &mut usize) {
    for step in layer {
        match step {
            Entry::Whiteout(path) => tree.retain(|at, _| at != path && !is_below(at, path)),
            Entry::Opaque(dir) if dir.is_empty() => tree.clear(),
            Entry::Opaque(dir) => tree.retain(|at, _| !is_below(at, dir)),
            _ => {}
        }
    }
    for step in layer {
        let (path, node) = match step {
            Entry::Dir(path) => (path, (0, String::new())),
            Entry::File(path, text) => (path, (*inode_count, format!("file {text}"))),
            Entry::Symlink(path, target) => (path, (*inode_count, format!("to {target}"))),
            Entry::Link(path, target) => (path, tree[target].clone()),
            Entry::Whiteout(_) | Entry::Opaque(_) => continue,
        };
        *inode_count += 1;
        for dir in parents(path) {
            if tree.get(dir).is_none_or(|node| node.0 != 0) {
                tree.insert(dir.to_owned(), (0, String::new()));
            }
        }
        if node.0 != 0 {
            tree.retain(|at, _| !is_below(at, path));
        }
        tree.insert(path.clone(), node);
    }
}

fn random_path(rng: &mut Rng) -> String {
    let depth = 1 + rng.below(3);
    let names = (0..depth).map(|_| *rng.pick(&["a", "b", "c!", "c"]));
    names.collect::<Vec<_>>().join("/")
}

/// A layer whose members do not contradict each other, for the tree below it.
fn random_layer(rng: &mut Rng, lower: &Tree) -> Vec<Entry> {
    let mut layer: Vec<Entry> = Vec::new();
    let mut kinds: BTreeMap<String, bool> = BTreeMap::new();
    for _ in 0..rng.below(10) {
        let path = random_path(rng);
        let mut tree = lower.clone();
        apply(&mut tree, &layer, &mut 1);
        let step = match rng.below(8) {
            0 | 1 => Entry::Dir(path.clone()),
            2 | 3 => Entry::File(path.clone(), rng.below(5).to_string()),
            4 => Entry::Symlink(path.clone(), "../x".to_owned()),
            5 => {
                let files: Vec<_> = tree
                    .iter()
                    .filter(|(at, node)| node.0 != 0 && **at != path)
                    .collect();
                if files.is_empty() {
                    continue;
                }
                Entry::Link(path.clone(), rng.pick(&files).0.clone())
            }
            // An entry that the layer hides must not be the target of one of its links.
            6 | 7 if layer.iter().any(|step| matches!(step, Entry::Link(..))) => continue,
            6 => Entry::Whiteout(path.clone()),
            _ => Entry::Opaque(path.clone()),
        };
        let is_dir = matches!(step, Entry::Dir(_));
        if !matches!(step, Entry::Whiteout(_) | Entry::Opaque(_)) {
            let is_clear = parents(&path).all(|dir| kinds.get(dir).is_none_or(|is_dir| *is_dir));
            let has_entries = kinds.keys().any(|at| is_below(at, &path));
            if !is_clear || (has_entries && !is_dir) {
                continue;
            }
            // A link names the file that was at its target at that time, so that it stays.
            let is_target = |step: &Entry| matches!(step, Entry::Link(_, to) if *to == path);
            if layer.iter().any(is_target) {
                continue;
            }
            kinds.insert(path.clone(), is_dir);
        }
        layer.push(step);
    }
    layer
}

fn tar_of(layer: &[Entry]) -> Vec<u8> {
    let mark = |path: &str| match path.rsplit_once('/') {
        Some((dir, name)) => format!("{dir}/.wh.{name}"),
        None => format!(".wh.{path}"),
    };
    let mut tar = Tar::default();
    for step in layer {
        tar = match step {
            Entry::Dir(path) => tar.dir(&format!("{path}/")),
            Entry::File(path, text) => tar.file(path, format!("file {text}").as_bytes()),
            Entry::Symlink(path, target) => tar.symlink(path, target),
            Entry::Link(path, target) => tar.hard_link(path, target),
            Entry::Whiteout(path) => tar.file(&mark(path), b""),
            Entry::Opaque(path) => tar.file(&format!("./{path}/.wh..wh..opq"), b""),
        };
    }
    tar.finish()
}

/// Paths with what they are, and which of them are one inode.
fn names_by_inode(tree: &Tree) -> BTreeMap<String, (String, Vec<String>)> {
    let same = |no: usize| {
        let names = tree.iter().filter(|(_, node)| node.0 == no && no != 0);
        names.map(|(path, _)| path.clone()).collect()
    };
    let named = tree
        .iter()
        .map(|(path, node)| (path.clone(), (node.1.clone(), same(node.0))));
    named.collect()
}

fn tree_of(image: &Image) -> Tree {
    let mut tree = Tree::new();
    let mut walker = Walker::new(
        image,
        weald_vfs::resolve(image, b"", weald_vfs::Follow::No).expect("root"),
    );
    while let Some(step) = walker.step().expect("walk") {
        let Step::Enter(visit) = step else { continue };
        let InodeNo(no) = visit.inode.ino;
        let node = match visit.inode.kind {
            FileKind::Directory => (0, String::new()),
            FileKind::Symlink => {
                let target = image.read_link(&visit.inode).expect("target");
                (
                    no as usize,
                    format!("to {}", String::from_utf8_lossy(&target)),
                )
            }
            _ => {
                let data = image.read(&visit.inode, 0, 100).expect("data");
                (no as usize, String::from_utf8_lossy(&data).into_owned())
            }
        };
        let path = String::from_utf8_lossy(walker.path()).into_owned();
        if !path.is_empty() {
            tree.insert(path, node);
        }
    }
    tree
}

fn import(layout: &Path, target: &Path) -> weald_format::Result<Image> {
    let choice = OciChoice {
        tag: None,
        platform: None,
    };
    let mut options = BuildOptions::level(0)?;
    options.threads = 1;
    import_oci(layout, &choice, target, true, &options, &Silent)?;
    Image::open_path(target, 0, &OpenOptions::default())
}

/// Would catch: a whiteout that hides too much or too little, that hides members of its own layer,
/// an opaque mark that counts for upper layers, a directory that replaces a directory instead of
/// changing it, a hard link to a file of a lower layer that is lost or names the wrong file.
#[test]
fn layers_are_applied_as_the_specification_says() {
    let temp = tempfile::tempdir().expect("directory");
    let mut rng = Rng::from_environment();
    let (mut hidden_count, mut linked_count) = (0, 0);
    for round in 0..ROUNDS {
        let (mut tree, mut layers, mut inode_count) = (Tree::new(), Vec::new(), 1);
        for _ in 0..1 + rng.below(4) {
            let layer = random_layer(&mut rng, &tree);
            let before = tree.len();
            apply(&mut tree, &layer, &mut inode_count);
            hidden_count += before.saturating_sub(tree.len());
            layers.push(layer);
        }
        let layout = temp.path().join("layout");
        let written: Vec<Layer> = layers
            .iter()
            .map(|layer| Layer::plain(tar_of(layer)))
            .collect();
        LayoutDir::create(&layout).image(&written);
        let image = import(&layout, &temp.path().join("image"));
        let image = image.unwrap_or_else(|e| panic!("round {round}: {e}: {layers:#?}"));
        let (found, expected) = (names_by_inode(&tree_of(&image)), names_by_inode(&tree));
        assert_eq!(found, expected, "round {round}: {layers:#?}");
        linked_count += expected
            .values()
            .filter(|(_, names)| names.len() > 1)
            .count();
    }
    println!("{ROUNDS} images: {hidden_count} names hidden, {linked_count} names linked");
    assert!(hidden_count > 100 && linked_count > 100);
}
