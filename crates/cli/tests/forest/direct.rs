//! Forests that are written into an image or a stream, without files.

use super::*;

/// Output of the program with these arguments in `scratch`.
#[track_caller]
fn weald_in(scratch: &Scratch, args: &[&str]) -> String {
    let mut command = Command::new(weald_bin());
    let output = command.args(args).current_dir(scratch.path()).output();
    let output = output.unwrap();
    assert_eq!(
        output.status.code(),
        Some(0),
        "{args:?}: {}",
        stderr(&output)
    );
    String::from_utf8(output.stdout).unwrap()
}

const WITH_ALL: [&str; 10] = [
    "--symlinks",
    "0.1",
    "--xattrs",
    "0.2",
    "--sparse",
    "0.1",
    "--duplicates",
    "0.3",
    "--owners",
    "0:0,7:8",
];

const SHAPES: [&[&str]; 5] = [
    &["--fanout", "6x7x50"],
    &["--fanout", "6x7x50", "--times", "affine:1700000000:1000"],
    &[
        "--fanout",
        "40x50",
        "--names",
        "hex",
        "--times",
        "random:1600000000:86400",
    ],
    &["--fanout", "300"],
    &[
        "--fanout",
        "5x9x20",
        "--names",
        "words",
        "--sizes",
        "log-normal:2K:2",
        "--versions",
        "3",
        "--content-changes",
        "0.1",
        "--name-changes",
        "0.1",
    ],
];

/// Would catch: an image that differs from the image of a directory with the same forest.
#[test]
fn a_direct_image_equals_one_through_a_directory() {
    let scratch = Scratch::new("512m");
    let weald = |args: &[&str]| weald_in(&scratch, args);
    let digest = |image: &str| {
        let info: serde_json::Value =
            serde_json::from_str(&weald(&["info", "--json", image])).unwrap();
        info["tree_digest"].as_str().unwrap().to_owned()
    };
    for (round, shape) in SHAPES.iter().enumerate() {
        let (tree, made, built) = (
            format!("tree{round}"),
            format!("made{round}"),
            format!("built{round}"),
        );
        let rich: &[&str] = if round >= 3 { &WITH_ALL } else { &[] };
        weald(&[&["forest", "--quiet"], *shape, rich, &[&tree]].concat());
        weald(
            &[
                &["forest", "--quiet", "--image", "--level", "3"],
                *shape,
                rich,
                &[&made],
            ]
            .concat(),
        );
        weald(&["build", "--quiet", "--level", "3", &tree, &built]);
        assert_eq!(digest(&made), digest(&built), "{shape:?}");
        weald(&["check", &made]);
        let lens = [&made, &built].map(|name| fs::metadata(scratch.at(name)).unwrap().len());
        assert!(lens[0] <= lens[1] + lens[1] / 50, "{shape:?}: {lens:?}");
    }
}

/// Would catch: contents that are split wrongly if they come in several pieces.
#[test]
fn long_files_are_written_directly_into_an_image() {
    let scratch = Scratch::new("512m");
    let weald = |args: &[&str]| weald_in(&scratch, args);
    // A long file, and a file of several pieces.
    let long = ["--fanout", "1x2", "--sizes", "constant:9M"];
    weald(&[&["forest", "--quiet"], &long[..], &["long"]].concat());
    weald(
        &[
            &["forest", "--quiet", "--image", "--level", "1"],
            &long[..],
            &["long.weald"],
        ]
        .concat(),
    );
    weald(&["diff", "long.weald", "long"]);
}

/// Would catch: a page of time steps with a wrong length, lost nanoseconds, a reader that needs
/// memory for every time.
#[test]
fn times_in_equal_steps_take_little_space() {
    let scratch = Scratch::new("512m");
    for (round, step) in ["1", "1500000000"].into_iter().enumerate() {
        let rule = format!("affine:9000:{step}");
        let shape = ["--fanout", "2x20x1000", "--times", &rule];
        let image = format!("image{round}");
        done(&[&shape[..], &["--image"]].concat(), &scratch.at(&image));
        let len = fs::metadata(scratch.at(&image)).unwrap().len();
        assert!(len < 4000, "{len} bytes for 40,000 times");
        let script = format!(
            "{weald} forest {words} --stream tar - | {weald} build -q -l 1 - piped{round}; \
             {weald} check {image} > checked
             {weald} diff {image} piped{round}",
            weald = weald_bin(),
            words = shape.join(" "),
        );
        let output = bash(&scratch, &script);
        assert_eq!(
            (output.status.code(), stderr(&output)),
            (Some(0), String::new())
        );
    }
}

/// Would catch: a link count that is known too late, a wrong first name, contents of a file in a
/// later leaf.
#[test]
fn hard_links_are_written_directly_into_an_image() {
    let scratch = Scratch::new("512m");
    let hex = ["--fanout", "3x7x50", "--names", "hex", "--dir-names", "hex"];
    let links = ["--hard-links", "0.3", "--hard-links-across", "0.3"];
    let flat = ["--fanout", "60", "--hard-links", "0.4"];
    let full = [
        "--sizes",
        "log-normal:100:1",
        "--xattrs",
        "0.3",
        "--times",
        "random:1600000000:86400",
    ];
    let versions = [
        "--versions",
        "3",
        "--content-changes",
        "0.2",
        "--name-changes",
        "0.2",
    ];
    let shapes = [
        [&hex[..], &links].concat(),
        [&hex[..], &links, &full, &versions].concat(),
        [&flat[..], &full].concat(),
        RICH.to_vec(),
    ];
    for (round, shape) in shapes.iter().enumerate() {
        let (image, piped) = (format!("image{round}"), format!("piped{round}"));
        done(&[&shape[..], &["--image"]].concat(), &scratch.at(&image));
        let script = format!(
            "{weald} forest {words} --stream tar - | {weald} build -q -l 1 - {piped}; {weald} \
             check {image} > checked
             for image in {image} {piped}; do {weald} info --json $image | grep -o \
              '\"tree_digest\":\"[0-9a-f]*\"'; done | uniq | wc -l",
            weald = weald_bin(),
            words = shape.join(" "),
        );
        let output = bash(&scratch, &script);
        assert_eq!(
            String::from_utf8_lossy(&output.stdout).trim(),
            "1",
            "{shape:?}: {}",
            stderr(&output)
        );
    }
}

/// Would catch: a stream with another forest, links before their targets, names that mtree parses
/// differently.
#[test]
fn a_stream_has_the_same_forest() {
    let scratch = Scratch::new("512m");
    let sh = |script: &str| {
        let output = bash(&scratch, script);
        assert!(output.status.success(), "{script}: {}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let odd = [
        "--fanout",
        "3x40",
        "--names",
        "unicode",
        "--symlinks",
        "0.2",
    ];
    let flat = [
        "--fanout",
        "50",
        "--hard-links",
        "0.3",
        "--owners",
        "0:0,3000000:7",
    ];
    for (round, shape) in [&RICH[..], &odd, &flat].into_iter().enumerate() {
        let words = shape.join(" ");
        done(shape, &scratch.at(&format!("tree{round}")));
        sh(&format!(
            "$WEALD forest {words} --stream tar tar{round}
             mkdir out{round}; tar -xpf tar{round} --xattrs --xattrs-include='*' --numeric-owner \
              -C out{round}
             $WEALD forest {words} --verify out{round}
             $WEALD build -q -l 1 tree{round} built{round}; $WEALD forest {words} --stream tar - \
              | $WEALD build -q -l 1 - streamed{round}
             $WEALD diff built{round} streamed{round}
             [ $($WEALD info --json built{round} | jq_tree) = $($WEALD info --json \
              streamed{round} | jq_tree) ]"
        )
        .replace("jq_tree", "grep -o '\"tree_digest\":\"[^\"]*\"'"));
        let reported = sh(&format!(
            "$WEALD forest {words} --stream listing - | tr '\\0' '\\n' | sed 's,/$,,; s,^,./,; \
             s,^\\./\\.$,.,' | sort"
        ));
        assert_eq!(
            reported,
            sh(&format!("cd tree{round} && find . | sort")),
            "{words}"
        );
        // Compares the output of bsdtar for the description with that for the tree; mtree does not
        // describe hard links.
        let listed = sh(&format!(
            "$WEALD forest {words} --stream mtree - | bsdtar -tvf - | awk '{{print $1, $3, $4, \
             $5, $9, $10, $11}}' | tr h - | sort"
        ));
        assert!(listed.lines().count() > 50, "{listed}");
        let shown = sh(&format!(
            "cd tree{round} && bsdtar -cf - --format=mtree \
             --options='mtree:!all,mtree:type,mtree:mode,mtree:uid,mtree:gid,mtree:size,\
             mtree:link,mtree:time' . | bsdtar -tvf - | awk '{{print $1, $3, $4, $5, $9, $10, \
             $11}}' | tr h - | sort"
        ));
        assert_eq!(listed, shown, "{words}");
    }
    let error = refused(&["--stream", "tar"], &scratch.at("tar0"));
    assert!(error.contains("File exists"), "{error}");
}
