//! Names of images: sorted, removed by pattern and by age, moved and replaced.

use crate::ground::Ground;
use std::path::Path;

/// A store with small images of these names, in this order.
fn store_of(names: &[&str]) -> Ground {
    let ground = Ground::with_images();
    ground.weald(&["store", "create", "-q", "store"]);
    for (number, name) in names.iter().enumerate() {
        ground.sh(&format!(
            "mkdir -p tree; echo {number} > tree/number
            $WEALD store add -q store tree --name {name}"
        ));
    }
    ground
}

fn listed(ground: &Ground) -> Vec<String> {
    let images = ground.json(&["store", "ls", "--json", "store"]);
    let name = |image: &serde_json::Value| image["name"].as_str().expect("a name").to_owned();
    images.iter().map(name).collect()
}

/// Would catch: an order by bytes, a date that is missing or wrong, a pattern that means too much
/// or too little, a dry run that removes.
#[test]
fn names_are_sorted_as_versions_and_removed_by_pattern() {
    let ground = store_of(&["t-10", "t-9", "t-2", "u-1", "a[1]"]);
    assert_eq!(listed(&ground), ["a[1]", "t-2", "t-9", "t-10", "u-1"]);
    let first = &ground.json(&["store", "ls", "--json", "store"])[0];
    let added = first["added"].as_i64().expect("a time");
    let now = std::time::SystemTime::now();
    let now = now.duration_since(std::time::UNIX_EPOCH).expect("a time");
    assert!(
        (0..600).contains(&(now.as_secs() as i64 - added)),
        "{first}"
    );
    let text = ground.weald(&["store", "ls", "store"]);
    let date = &text.lines().next().expect("a line")[28..47];
    assert!(
        date.starts_with("20") && date.ends_with(|c: char| c.is_ascii_digit()),
        "{date}"
    );

    ground.refused(
        &["store", "rm", "store", "v*"],
        &["v*: no image of store matches"],
    );
    ground.refused(&["store", "rm", "store", "t-[9"], &["t-[9"]);
    let text = ground.weald(&["store", "rm", "-n", "store", "t-*", "u-1"]);
    let told = ["t-2", "t-9", "t-10", "u-1"].map(|name| format!("store:{name}: would be removed"));
    assert_eq!(text.lines().collect::<Vec<_>>(), told);
    assert_eq!(listed(&ground).len(), 5);
    // The image of this name comes before those that the pattern means.
    ground.weald(&["store", "rm", "store:a[1]"]);
    ground.weald(&["store", "rm", "store:t-?"]);
    assert_eq!(listed(&ground), ["t-10", "u-1"]);
    ground.assert_clean("store");
}

/// Would catch: rules over things that have nothing to do with each other, an image in use or a
/// base image that goes.
#[test]
fn old_versions_are_forgotten_unless_they_are_in_use() {
    let ground = store_of(&["t-1", "u-1", "t-2", "t-3", "u-2", "t-4", "root"]);
    ground.refused(&["store", "forget", "store"], &["name what to keep"]);
    let dir = ground.0.dir("mnt");
    ground.0.mount(Path::new("store:t-1"), &dir, &[]);
    let forget = ["store", "forget", "--keep-last", "1", "store"];
    let text = ground.weald(&[&forget[..], &["--dry-run"]].concat());
    let told = [
        "store:t-1: stays: is mounted or being read",
        "store:t-2: would be removed",
        "store:t-3: would be removed",
        "store:u-1: would be removed",
    ];
    assert_eq!(text.lines().collect::<Vec<_>>(), told);
    ground.weald(&[&forget[..], &["t-*"]].concat());
    assert_eq!(listed(&ground), ["root", "t-1", "t-4", "u-1", "u-2"]);
    ground.0.umount(&dir);
    let text = ground.weald(&[&forget[..], &["--keep-daily", "9"]].concat());
    assert_eq!(
        text.lines().collect::<Vec<_>>(),
        ["store:t-1: removed", "store:u-1: removed"]
    );
    ground.sh(
        "$WEALD build -q --base store:t-4 v2 b-1.weald; cp b-1.weald b-2.weald
        $WEALD store import -q store b-1.weald; $WEALD store add -q store v1 --name t-5",
    );
    let text = ground.weald(&[&forget[..], &["t-*"]].concat());
    assert_eq!(
        text.lines().collect::<Vec<_>>(),
        ["store:t-4: stays: is the base image of one that stays"]
    );
    ground.assert_clean("store");
}

/// Would catch: one damaged map that keeps all other versions.
#[test]
fn a_damaged_map_costs_its_own_image_only() {
    let ground = store_of(&["t-1", "t-2", "t-3"]);
    std::fs::write(ground.at("store/images/t-1"), "damage").expect("write");
    let text = ground.weald(&["store", "forget", "--keep-last", "1", "store"]);
    assert_eq!(text.lines().collect::<Vec<_>>(), ["store:t-2: removed"]);
    assert!(ground.at("store/images/t-1").exists());
}

/// Would catch: a name that shows nothing or the old image, an image in use that loses its name, a
/// replacement that is half done.
#[test]
fn names_move() {
    let ground = store_of(&["one", "latest"]);
    let number = |name: &str| ground.weald(&["cat", &format!("store:{name}"), "number"]);
    ground.weald(&["store", "mv", "store:one", "first"]);
    assert_eq!(listed(&ground), ["first", "latest"]);
    assert_eq!(number("first"), "0\n");
    for (args, part) in [
        (["store", "mv", "store:first", "latest"], "exists"),
        (
            ["store", "mv", "store:first", "first"],
            "is its name already",
        ),
        (["store", "mv", "store:gone", "new"], "no such image"),
        (["store", "mv", "store:first", "a/b"], "a/b"),
    ] {
        ground.refused(&args, &[part]);
    }
    assert_eq!(number("latest"), "1\n");
    ground.sh("echo 2 > tree/number");
    ground.refused(
        &["store", "add", "-q", "store", "tree", "--name", "latest"],
        &["latest"],
    );
    let add = [
        "store",
        "add",
        "-q",
        "store",
        "tree",
        "--name",
        "latest",
        "--replace",
    ];
    ground.weald(&add);
    assert_eq!(number("latest"), "2\n");
    for _ in 0..2 {
        ground.sh("$WEALD store import -q --replace store v1.weald v2.weald");
    }
    assert_eq!(listed(&ground), ["first", "latest", "v1", "v2"]);
    for name in ["v1", "v2"] {
        ground.assert_exported("store", name);
    }
    // An image that has the name that is needed for a moment is nobody's to remove.
    ground.weald(&["store", "mv", "store:first", "latest~new"]);
    ground.refused(&add, &["latest~new", "is taken"]);
    assert_eq!(number("latest~new"), "0\n");
    ground.weald(&["store", "gc", "-q", "store"]);
    ground.assert_clean("store");
}

/// Would catch: a command that does not wait, or one that waits for ever.
#[test]
fn commands_wait_for_each_other_if_asked_to() {
    let ground = store_of(&["one"]);
    ground.sh(
        "mkfifo stream; $WEALD store add -q store - --name slow < stream & other=$!
        exec 3> stream
        for try in $(seq 100); do
            $WEALD store rm store:gone 2> said || true
            $WEALD store mv store:one two 2> said && $WEALD store mv store:two one && sleep 0.1 ||
                break
        done
        grep -q 'store add' said
        ! $WEALD store mv --wait 1 store:one two 2> said || exit 1
        grep -q 'store add' said
        (sleep 1; tar -c tree >&3) & exec 3>&-
        $WEALD store mv --wait 60 store:one two
        wait $other",
    );
    assert_eq!(listed(&ground), ["slow", "two"]);
    ground.assert_clean("store");
}
