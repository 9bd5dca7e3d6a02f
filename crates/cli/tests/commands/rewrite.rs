//! Tests of `weald rewrite`.
use crate::support::Bench;

/// Would catch: a rewritten image with another tree, a target that is overwritten without
/// `--force`, an image that cannot be rewritten in place.
#[test]
fn an_image_is_rewritten_beside_and_in_place() {
    let bench = Bench::with_image();
    let digest = |bench: &Bench, image: &str| {
        let info = bench.weald(["info", "--json", image]).expect(0, "");
        info.json()[0]["tree_digest"].as_str().unwrap().to_owned()
    };
    let before = digest(&bench, "image");
    let said = bench
        .weald(["rewrite", "--json", "-l", "2", "image", "new.weald"])
        .expect(0, "");
    assert_eq!(said.json()[0]["tree_digest"], before.as_str());
    assert_eq!(digest(&bench, "new.weald"), before);
    bench.weald(["check", "-q", "new.weald"]).expect(0, "");
    bench.weald(["diff", "image", "new.weald"]).expect(0, "");
    let again = ["rewrite", "-q", "--codec", "lz4", "new.weald", "new.weald"];
    let refused = bench.weald(again);
    assert_eq!(refused.code, Some(2));
    assert!(
        refused.stderr.contains("--force replaces it"),
        "{}",
        refused.stderr
    );
    let forced = [
        "rewrite",
        "-q",
        "--force",
        "--codec",
        "lz4",
        "new.weald",
        "new.weald",
    ];
    bench.weald(forced).expect(0, "");
    assert_eq!(digest(&bench, "new.weald"), before);
    bench.weald(["check", "-q", "new.weald"]).expect(0, "");
}

/// Would catch: a requested dictionary that is not made, or an unwanted one that stays.
#[test]
fn a_dictionary_can_be_added_and_removed() {
    let bench = Bench::new();
    let script = "mkdir tree; for i in $(seq 400); do seq -f \"$i: line %g of a file\" 1 $((i * \
     3)) > tree/$i; done";
    bench.sh(script);
    let packed = ["--block-size", "16K", "--codec", "zstd:3"];
    bench
        .weald([&["build", "-q", "tree", "none"][..], &packed].concat())
        .expect(0, "");
    let is_there = |image: &str| {
        let info = bench.weald(["info", "--json", image]).expect(0, "");
        let sections = info.json()[0]["sections"].as_array().unwrap().clone();
        sections
            .iter()
            .any(|s| s["section"] == "data" && s["codec"] == "zstd-dictionary")
    };
    let rewrite = |size: &str, from: &str, to: &str| {
        let words = ["rewrite", "-q", "--dictionary-size", size, from, to];
        bench.weald([&words[..], &packed].concat()).expect(0, "");
        bench.weald(["check", "-q", to]).expect(0, "");
        bench.weald(["diff", "none", to]).expect(0, "");
        is_there(to)
    };
    assert!(!is_there("none"));
    assert!(rewrite("32K", "none", "with"));
    assert!(!rewrite("0", "with", "without"));
}

/// Would catch: options of repacking without effect, a tree digest that changes without a reason or
/// stays although attributes change, an image that cannot be repacked in place.
#[test]
fn an_image_is_repacked() {
    let bench = Bench::with_image();
    let packed = |arguments: &[&str]| {
        let fixed = ["rewrite", "--json", "--force"];
        let arguments: Vec<&str> = fixed.iter().chain(arguments).copied().collect();
        let said = bench.weald(arguments).expect(0, "").json()[0].clone();
        said["tree_digest"].as_str().unwrap().to_owned()
    };
    let before = packed(&["--codec", "lz4", "image", "copy"]);
    for way in [
        ["--repack", "--quiet"].as_slice(),
        &["--order", "name"],
        &["--match-size", "64"],
        &["--dictionary-size", "64K"],
        &["--cluster-size", "4K"],
        &["--categorize", "none"],
        &["--mtime", "keep"],
    ] {
        let arguments = [way, &["image", "new"]].concat();
        if !way.contains(&"--quiet") {
            assert_eq!(packed(&arguments), before, "{way:?}");
        } else {
            let quietly = [&["rewrite", "-f"], arguments.as_slice()].concat();
            bench.weald(quietly).expect(0, "");
        }
        bench.weald(["check", "-q", "new"]).expect(0, "");
        bench.weald(["diff", "image", "new"]).expect(0, "");
    }
    assert_ne!(packed(&["--owner", "5:6", "new", "new"]), before);
    let shown = bench.weald(["stat", "--json", "new", "/"]).expect(0, "");
    assert_eq!(shown.json()[0]["uid"], 5);
    assert_eq!(shown.json()[0]["gid"], 6);
    assert_ne!(packed(&["--exclude", "*", "image", "new"]), before);
    assert!(bench.weald(["ls", "new"]).expect(0, "").stdout.is_empty());
}

/// A function of the shell for commands that must fail: `!` would not end the script.
const FAILS: &str = "fails() { if \"$@\"; then exit 1; fi; }\n";

/// Writes an image of the tree of `image` that claims the tree digest `claimed`.
fn write_forged(bench: &Bench, image: &str, name: &str, claimed: &str) {
    let bytes = std::fs::read(bench.at(image)).expect("read");
    let claimed = weald_format::Digest::from_hex(claimed).expect("a digest");
    std::fs::write(
        bench.at(name),
        crate::parts::with_tree_digest(&bytes, claimed),
    )
    .expect("write");
}

fn tree_digest(bench: &Bench, image: &str) -> String {
    let info = bench.weald(["info", "--json", image]).expect(0, "").json();
    info[0]["tree_digest"]
        .as_str()
        .expect("a digest")
        .to_owned()
}

/// Would catch: an append that does nothing because the image claims to have the tree already, a
/// rewrite that keeps the claim, and a store that takes it over in silence.
#[test]
fn a_claimed_tree_digest_is_not_believed() {
    let bench = Bench::new();
    bench.sh(
        "mkdir good bad; echo good > good/tool; $WEALD build -q good good.weald
              echo evil > bad/tool; $WEALD build -q bad bad.weald",
    );
    let claimed = tree_digest(&bench, "good.weald");
    write_forged(&bench, "bad.weald", "evil", &claimed);
    let right = tree_digest(&bench, "bad.weald");
    bench.sh(&format!(
        "{FAILS}cp evil appended
              $WEALD build --append good appended > said
              fails grep -q 'nothing has changed' said
              test \"$($WEALD cat appended tool)\" = good; $WEALD check -q appended
              test $($WEALD generations appended | wc -l) = 2
              $WEALD build --append good appended | grep -q 'nothing has changed'"
    ));
    for options in ["--codec lz4", "-l 9", "--repack"] {
        bench.sh(&format!(
            "{FAILS}fails $WEALD check -q evil; $WEALD rewrite {options} -f evil new > said 2>&1
             $WEALD check -q new; $WEALD diff evil new"
        ));
        assert_eq!(tree_digest(&bench, "new"), right, "{options}");
        let said = std::fs::read_to_string(bench.at("said")).expect("said");
        let warning = format!("claims the tree digest {claimed}, which its tree does not have");
        assert_eq!(said.contains(&warning), options != "--repack", "{said}");
    }
    bench.sh(&format!(
        "{FAILS}$WEALD store create -q s; fails $WEALD store import s evil 2> said
              grep -q 'claims the tree digest' said; test -z \"$($WEALD store ls s)\"
              $WEALD store import -q --no-verify s evil; $WEALD store import -q s new"
    ));
}

/// Would catch: older generations that a rewrite in place drops without a word.
#[test]
fn generations_are_dropped_only_where_asked_for() {
    let bench = Bench::new();
    bench.sh(&format!(
        "{FAILS}mkdir g1 g2; echo 1 > g1/one; echo 2 > g2/two
              $WEALD build -q -a g1 g; $WEALD build -q -a --allow-removal g2 g; cp g before
              fails $WEALD rewrite -l 9 --force g g 2> said
              grep -q 'has 2 generations' said; grep -q -e --drop-generations said; cmp g before
              ln g link; fails $WEALD rewrite --repack --force g link 2> said; cmp g before; rm link
              $WEALD rewrite -l 9 g other | grep -q '^generations *2 -> 1$'
              $WEALD rewrite -l 9 --force --drop-generations g g > said
              grep -q '^generations *2 -> 1$' said; test $($WEALD generations g | wc -l) = 1
              $WEALD rewrite -q -l 1 --force g g"
    ));
}

/// Would catch: a generation that is kept under another tree, one that is not removed, data of
/// removed ones that stays, a mode or a file that is lost on the way.
#[test]
fn chosen_generations_are_kept() {
    let bench = Bench::new();
    bench.sh(&format!(
        "{FAILS}for i in 1 2 3 4 5; do
            mkdir t$i; head -c 300000 /dev/urandom > t$i/of-$i; seq $((i * 1000)) > t$i/all
            $WEALD build -q -a --allow-removal t$i g; done; chmod 640 g; cp -p g before
        $WEALD rewrite -q --generations last:2 g two; $WEALD check -q two
        test $($WEALD generations two | wc -l) = 2
        $WEALD diff two@1 t4; $WEALD diff two@2 t5
        test $(stat -c %s two) -lt $(($(stat -c %s g) / 2))
        $WEALD rewrite --generations 1,4-5 g some | grep -q '^generations *5 -> 3$'
        $WEALD diff some@1 t1; $WEALD diff some@2 t4; $WEALD diff some@3 t5; $WEALD check -q some
        $WEALD rewrite -q --generations all -l 3 --exclude 'of-*' g all
        test $($WEALD generations all | wc -l) = 5
        $WEALD diff --exclude 'of-*' --ignore mtime all@2 t2
        fails $WEALD cat all@3:/of-3; fails $WEALD rewrite -q --generations last:2 g two
        for wrong in 6 4-6 0 x; do fails $WEALD rewrite --generations $wrong g new 2> said; done
        fails $WEALD rewrite --generations 6 g new 2> said
        grep -q 'there is no generation 6: the image has 1 to 5' said
        fails $WEALD rewrite --generations all g - 2> said; grep -q 'name a file' said
        cmp g before; test -z \"$(ls -A | grep weald-)\"; test ! -e new
        $WEALD rewrite -q --force --generations last g g; $WEALD diff g t5
        test $(stat -c %a g) = 640; test $($WEALD generations g | wc -l) = 1"
    ));
    bench.sh(&format!(
        "{FAILS}for i in 1 2 3 4 5; do
            $WEALD build -q -a --allow-removal --keep-last 2 --owner 7:8 t$i kept
            test $($WEALD generations kept | wc -l) = $((i < 2 ? 1 : 2))
            $WEALD diff --ignore uid,gid t$i kept; done
        $WEALD diff --ignore uid,gid kept@1 t4; $WEALD check -q kept
        test \"$($WEALD find kept --uid 7 --count)\" = 3
        test $(stat -c %s kept) -lt 700000
        fails $WEALD build --keep-last 2 t1 other; fails $WEALD build -a --keep-last 0 t1 kept"
    ));
}

/// Levels of the deep tree. With time by the square of the depth, each command of the test takes
/// minutes of CPU time.
const LEVEL_COUNT: usize = 20_000;

/// Would catch: a walk that looks for each directory from the root.
#[test]
fn deep_trees_take_time_by_their_depth() {
    let bench = Bench::new();
    std::fs::create_dir(bench.at("deep")).expect("mkdir");
    let mut at = weald_sys::open_dir(&bench.at("deep")).expect("open");
    for _ in 0..LEVEL_COUNT {
        weald_sys::make_dir_at(&at, b"d", 0o755).expect("mkdir");
        at = weald_sys::open_place_at(&at, b"d").expect("open");
    }
    bench.sh("$WEALD build -q deep a");
    // rm(1) would take a minute.
    for _ in 0..LEVEL_COUNT {
        at = weald_sys::open_place_at(&at, b"..").expect("open");
        weald_sys::remove_dir_at(&at, b"d").expect("rmdir");
    }
    let start = std::time::Instant::now();
    for command in [
        "rewrite -q --codec lz4 a b",
        "diff a b",
        "export erofs -q a e.img",
        "rewrite -q --repack a c",
        "export composefs -q a --image c.img",
    ] {
        bench.sh(&format!("timeout 100 $WEALD {command}"));
        println!("{command}: {:.1?}", start.elapsed());
    }
}
