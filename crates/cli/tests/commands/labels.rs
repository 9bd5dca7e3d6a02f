//! Labels of generations: given by whatever writes an image, shown by whatever lists one.

use crate::support::Bench;
use serde_json::Value;

fn bench() -> Bench {
    let bench = Bench::new();
    bench.sh("mkdir tree; seq 2000 > tree/numbers; echo one > tree/version");
    bench
}

/// The labels that `weald generations` shows, newest first.
fn labels(bench: &Bench, image: &str) -> Vec<Value> {
    let lines = bench.weald(["generations", "--json", image]).expect(0, "");
    lines
        .json()
        .iter()
        .map(|line| line["label"].clone())
        .collect()
}

/// Would catch: a label that is lost, is shown by one command and not by another, or changes the
/// identity of the tree; a generation that is not made because only its label is new.
#[test]
fn labels_are_kept_and_shown() {
    let bench = bench();
    let text = "before the upgrade — ü";
    bench
        .weald(["build", "-q", "--label", text, "tree", "image"])
        .expect(0, "");
    bench.weald(["build", "-q", "tree", "plain"]).expect(0, "");
    let digests = |image: &str| {
        let info = bench.weald(["info", "--json", image]).expect(0, "").json();
        let of = |key: &str| info[0][key].clone();
        (of("tree_digest"), of("image_digest"), of("label"))
    };
    let (labelled, plain) = (digests("image"), digests("plain"));
    assert_eq!(labelled.0, plain.0);
    assert_ne!(labelled.1, plain.1);
    assert_eq!((labelled.2, plain.2), (text.into(), Value::Null));
    for command in ["info", "generations"] {
        let shown = bench.weald([command, "image"]).expect(0, "").text();
        assert!(shown.contains(text), "{shown}");
        let shown = bench.weald([command, "plain"]).expect(0, "").text();
        assert!(!shown.contains("label"), "{shown}");
    }
    // A label alone makes a generation; the same one, or none, does not.
    bench.sh("$WEALD build -q --append --label second tree image
         $WEALD build -q --append --label second tree image
         $WEALD build -q --append tree image
         echo two > tree/version; $WEALD build -q --append tree image");
    assert_eq!(
        labels(&bench, "image"),
        [Value::Null, "second".into(), text.into()]
    );
    bench.weald(["check", "image"]).expect(0, "");
    bench.sh("$WEALD rewrite -q --generations all image all
         $WEALD rewrite -q --generations 1-2 --label new image two
         $WEALD rewrite -q --level 1 two copied
         $WEALD rewrite -q --repack two packed
         $WEALD rewrite -q --level 1 --label other two renamed
         cp image kept; echo three > tree/version
         $WEALD build -q --append --keep-last 3 --label last tree kept
         tar -c tree | $WEALD build -q --label stream - stream");
    let wanted: [(&str, &[Value]); 7] = [
        ("all", &[Value::Null, "second".into(), text.into()]),
        ("two", &["new".into(), text.into()]),
        ("copied", &["new".into()]),
        ("packed", &["new".into()]),
        ("renamed", &["other".into()]),
        ("kept", &["last".into(), Value::Null, "second".into()]),
        ("stream", &["stream".into()]),
    ];
    for (image, wanted) in wanted {
        assert_eq!(labels(&bench, image), wanted, "{image}");
    }
}

/// Would catch: a store that loses labels, and one that shows no image for one without its base.
#[test]
fn stores_show_labels() {
    let bench = bench();
    bench.sh("$WEALD store create -q store
         $WEALD store add -q store tree --name v1 --label 'the first'
         $WEALD build -q --label imported tree image; $WEALD store import -q store image --name v2
         $WEALD store add -q store tree --name v3
         mkdir more; seq 3000 > more/numbers; $WEALD build -q --base image more based
         mv image gone; $WEALD store rm store:v2
         $WEALD store import -q store gone --name v2; $WEALD store import -q store based; rm gone
         $WEALD store rm --force store:v2; $WEALD build -q --label imported tree image
         $WEALD store import -q store image --name v2");
    let listed = bench
        .weald(["store", "ls", "--json", "store"])
        .expect(0, "")
        .json();
    let found: Vec<_> = listed
        .iter()
        .map(|image| (&image["name"], &image["label"]))
        .collect();
    let wanted: [(Value, Value); 4] = [
        ("based".into(), Value::Null),
        ("v1".into(), "the first".into()),
        ("v2".into(), "imported".into()),
        ("v3".into(), Value::Null),
    ];
    assert_eq!(
        found,
        wanted.iter().map(|(a, b)| (a, b)).collect::<Vec<_>>()
    );
    let text = bench.weald(["store", "ls", "store"]).expect(0, "").text();
    assert!(
        text.contains("  v1  the first\n") && text.contains("  v3\n"),
        "{text}"
    );
}

/// Would catch: labels that break a listing into lines, move the cursor of a terminal, or have no
/// end.
#[test]
fn bad_labels_are_refused() {
    let bench = bench();
    let longer = "x".repeat(201);
    for label in ["", "two\nlines", "\u{1b}[2J", "\u{85}", &longer] {
        for args in [
            ["build", "-q", "--label", label, "tree", "bad"].as_slice(),
            &["rewrite", "-q", "--label", label, "tree", "bad"],
            &[
                "store", "add", "-q", "store", "tree", "--name", "bad", "--label", label,
            ],
        ] {
            let said = bench.weald(args);
            assert_eq!(said.code, Some(2), "{said:?}");
            assert!(said.stderr.contains("label: expected"), "{said:?}");
        }
    }
    let longest = "x".repeat(200);
    bench
        .weald(["build", "-q", "--label", &longest, "tree", "good"])
        .expect(0, "");
    assert_eq!(labels(&bench, "good"), [Value::from(longest)]);
}

/// Would catch: a comment or a command line that is lost by a rewrite, kept without being asked
/// for, or changes the identity of the tree, and one that steers a terminal.
#[test]
fn comments_and_command_lines_are_kept_and_shown() {
    let bench = bench();
    let remarks = |image: &str| {
        let info = bench.weald(["info", "--json", image]).expect(0, "").json();
        let of = |key: &str| info[0][key].clone();
        (of("comment"), of("history"), of("label"), of("tree_digest"))
    };
    bench.weald(["build", "-q", "tree", "plain"]).expect(0, "");
    bench.sh("$WEALD build -q --comment $'two\\nlines' --history tree image");
    let (plain, image) = (remarks("plain"), remarks("image"));
    assert_eq!((&plain.0, &plain.1), (&Value::Null, &Value::Null));
    assert_eq!(image.0, "two\nlines");
    let line = "weald build -q --comment $'two\\x0alines' --history tree image";
    assert_eq!(image.1, Value::from(vec![line]));
    assert_eq!((image.2, image.3), (Value::Null, plain.3));
    let shown = bench.weald(["info", "image"]).expect(0, "").text();
    // Backslashes are shown as in names.
    let shown_line = line.replace('\\', "\\\\");
    let expected = format!(
        "{:<20}two\n{:<20}lines\n{:<20}{shown_line}\n",
        "comment", "", "made by"
    );
    assert!(shown.contains(&expected), "{shown}");
    bench.sh(
        "$WEALD rewrite -q --level 1 image copied; $WEALD rewrite -q --repack image packed
        $WEALD rewrite -q --generations all image all
        $WEALD rewrite -q --label l --history image named
        $WEALD build -q --append --comment more tree image
        $WEALD rewrite -q --repack --comment other named last; $WEALD check -q last",
    );
    for name in ["copied", "packed", "all"] {
        let found = remarks(name);
        assert_eq!(found.0, "two\nlines", "{name}");
        assert_eq!(found.1, Value::from(vec![line]), "{name}");
    }
    let named = remarks("named");
    let second = "weald rewrite -q --label l --history image named";
    assert_eq!(named.1, Value::from(vec![line, second]));
    assert_eq!((named.2, remarks("image").0), ("l".into(), "more".into()));
    let last = remarks("last");
    assert_eq!((last.0, last.1), ("other".into(), named.1));
    for bad in ["", "\u{1b}[2J", "a\rb", &"x".repeat(4097)] {
        let said = bench.weald(["build", "-q", "--comment", bad, "tree", "bad"]);
        assert_eq!(said.code, Some(2), "{said:?}");
        assert!(said.stderr.contains("comment: expected"), "{said:?}");
    }
}
