//! `weald info --reading`, compared with figures that follow from the layout of the image.
use crate::support::Bench;

const BLOCK: u64 = 64 << 10;

/// Four files of a little more than two blocks in all: `a` and `b` share the first block, `c` is in
/// the second, and `d/a` equals `a`.
fn bench() -> Bench {
    let bench = Bench::new();
    let script = "mkdir -p tree/d tree/none
        for i in 1 2 3; do seq -f \"$i line %06.0f of many\" 1 4000 > lines$i; done
        head -c 32768 lines1 > tree/a; head -c 32768 lines2 > tree/b; head -c 65536 lines3 > tree/c
        cp tree/a tree/d/a; truncate -s 1M tree/d/sparse; echo end >> tree/d/sparse
        ln -s a tree/d/link; : > tree/none/empty";
    bench.sh(script);
    let build = [
        "build",
        "-q",
        "--codec",
        "none",
        "--block-size",
        "64K",
        "--match-size",
        "0",
        "--categorize",
        "none",
        "tree",
        "image",
    ];
    bench.weald(build).expect(0, "");
    bench
}

/// Would catch: blocks that are counted twice, holes that have a cost, directories without files
/// that count as cheap.
#[test]
fn decoded_bytes_per_read_are_counted() {
    let bench = bench();
    let info = bench
        .weald(["info", "--reading", "--json", "image"])
        .expect(0, "");
    let reading = &info.json()[0]["reading"];
    let number = |what: &str, key: &str| reading[what][key].as_u64().unwrap();
    // The end of the sparse file is in a third block, 4 bytes long.
    assert_eq!(number("file", "count"), 4);
    assert_eq!(number("file", "max"), BLOCK);
    assert_eq!(number("file", "mean"), (3 * BLOCK + 4) / 4);
    // The files of the root are in two blocks, those of d in the first and the last; `none` has no
    // data.
    assert_eq!(number("directory", "count"), 2);
    assert_eq!(number("directory", "max"), 2 * BLOCK);
    assert_eq!(number("directory", "median"), BLOCK + 4);
    // Most of the content is a hole.
    assert_eq!(number("small_read", "median"), 0);
    assert_eq!(number("small_read", "max"), BLOCK);
    let text = bench
        .weald(["info", "--reading", "image"])
        .expect(0, "")
        .text();
    assert!(text.contains("4 KiB anywhere"), "{text}");
    let plain = bench.weald(["info", "--json", "image"]).expect(0, "");
    assert!(plain.json()[0].get("reading").is_none());
}

/// Would catch: the output or the input of recipes that is not counted.
#[test]
fn recipes_count_their_output_and_input() {
    let bench = Bench::new();
    bench.sh("mkdir tree; seq 1 20000 | gzip -9 > tree/n.gz");
    let build = ["build", "-q", "--categorize", "deflate", "tree", "image"];
    bench.weald(build).expect(0, "");
    let info = bench
        .weald(["info", "--reading", "--json", "image"])
        .expect(0, "");
    let made = std::fs::metadata(bench.at("tree/n.gz")).unwrap().len();
    let plain: u64 = (1..=20000)
        .map(|n: u32| n.to_string().len() as u64 + 1)
        .sum();
    // The block also contains the gzip header and trailer.
    let most = info.json()[0]["reading"]["file"]["max"].as_u64().unwrap();
    assert!(
        (plain + made - 18..plain + made + 18).contains(&most),
        "{most}, {plain} plain, {made} made"
    );
}

/// Would catch: recipes that are counted under another kind, or not at all.
#[test]
fn recipes_are_reported_by_kind() {
    let bench = Bench::new();
    let wav = "import math, random, struct, wave
random.seed(1)
w = wave.open('tree/a.wav', 'wb')
w.setparams((1, 2, 44100, 0, 'NONE', ''))
tone = lambda i: int(9000 * math.sin(i / 20) + random.uniform(-30, 30))
w.writeframes(b''.join(struct.pack('<h', tone(i)) for i in range(50000)))";
    std::fs::write(bench.at("wav.py"), wav).unwrap();
    bench.sh("mkdir tree; seq 1 20000 | gzip -9n > tree/n.gz; python3 wav.py");
    bench.weald(["build", "-q", "tree", "image"]).expect(0, "");
    let info = bench.weald(["info", "--json", "image"]).expect(0, "");
    let made = &info.json()[0]["made"];
    let gz = std::fs::metadata(bench.at("tree/n.gz")).unwrap().len();
    assert_eq!(made[0]["method"], "deflate");
    assert_eq!(made[0]["made_len"], gz - 18);
    assert_eq!(made[1]["method"], "pcm");
    assert_eq!(made[1]["made_len"], 100_000);
    assert!(made[1]["plain_len"].as_u64().unwrap() < 60_000);
    let text = bench.weald(["info", "image"]).expect(0, "").text();
    assert!(text.contains("made by recipes"), "{text}");
    bench
        .weald(["build", "-q", "--categorize", "none", "tree", "plain"])
        .expect(0, "");
    let info = bench.weald(["info", "--json", "plain"]).expect(0, "");
    assert_eq!(info.json()[0]["made"], serde_json::json!([]));
}

/// Would catch: a profile without effect, or one that overrides explicit options.
#[test]
fn the_interactive_profile_has_small_blocks() {
    let bench = bench();
    let block_len = |options: &[&str]| {
        let fixed = ["build", "-qf", "--profile", "interactive"];
        let arguments: Vec<&str> = fixed.iter().chain(options).copied().collect();
        bench
            .weald(arguments.into_iter().chain(["tree", "small"]))
            .expect(0, "");
        let info = bench.weald(["info", "--json", "small"]).expect(0, "");
        info.json()[0]["block_len_max"].as_u64().unwrap()
    };
    assert_eq!(block_len(&[]), 208 << 10);
    assert_eq!(block_len(&["--block-size", "1M"]), 1 << 20);
}

/// Would catch: a dictionary of contents that is counted as part of the tree.
#[test]
fn a_dictionary_of_contents_is_no_part_of_the_tree() {
    let bench = Bench::new();
    bench.sh("mkdir tree
        for n in $(seq 40); do seq -f \"file $n has a line %06.0f and goes on\" 1 2000 > tree/$n; \
         done");
    bench
        .weald(["build", "-q", "--profile", "interactive", "tree", "image"])
        .expect(0, "");
    let info = bench.weald(["info", "--json", "image"]).expect(0, "");
    let info = &info.json()[0];
    let sections = info["sections"].as_array().unwrap();
    let len_of = |is_wanted: &dyn Fn(&serde_json::Value) -> bool| -> u64 {
        let wanted = sections.iter().filter(|section| is_wanted(section));
        wanted.map(|s| s["stored_len"].as_u64().unwrap()).sum()
    };
    let dictionary_len = len_of(&|s| s["section"] == "dictionary" && s["category"] == "general");
    assert!(dictionary_len > 0, "{info}");
    let of_tree = |s: &serde_json::Value| {
        let section = s["section"].as_str().unwrap();
        s["stream"].is_null() && !matches!(section, "extents" | "recipes")
    };
    assert_eq!(info["tree_len"], len_of(&of_tree));
}

/// The stages of `image`.
fn stages_of(bench: &Bench) -> serde_json::Value {
    let output = bench.weald(["info", "--stages", "--json", "image"]);
    let mut info = output.expect(0, "").json().remove(0);
    info["stages"].take()
}

/// Compares the first and last rows of the text with the numbers.
fn assert_text_shows(bench: &Bench, stages: &serde_json::Value) {
    let text = bench
        .weald(["info", "--stages", "image"])
        .expect(0, "")
        .text();
    let remaining = |row: &str| -> String {
        let line = text.lines().rev().find(|line| line.starts_with(row));
        let line = line.unwrap_or_else(|| panic!("{row}: {text}"));
        line.split_whitespace()
            .nth_back(1)
            .unwrap()
            .replace(',', "")
    };
    assert_eq!(
        remaining("files, as named"),
        stages["named_len"].to_string()
    );
    assert_eq!(
        remaining("footers and older records"),
        stages["image_len"].to_string()
    );
    assert_eq!(remaining("image"), stages["image_len"].to_string());
}

/// Would catch: stages that do not add up, count twice, or are not measured.
#[test]
fn stages_add_up_from_files_to_image() {
    let bench = Bench::new();
    bench.sh("mkdir -p tree/v1 tree/v2
        seq -f 'line %06.0f of many' 1 30000 > lines
        cp lines tree/v1/lines; ln tree/v1/lines tree/v1/linked; cp lines tree/v2/copy
        (head -c 200000 lines; echo other; tail -c 300000 lines) > tree/v2/edited
        truncate -s 1M tree/v1/sparse; echo end >> tree/v1/sparse
        seq 100000 140000 | gzip -9 > tree/v2/numbers.gz
        head -c 300000 /dev/urandom > tree/v2/noise
        cp /bin/ls tree/v1/program; cp -r tree/v1 tree/v3");
    bench.weald(["build", "-q", "tree", "image"]).expect(0, "");
    let stages = &stages_of(&bench);
    let number = |key: &str| stages[key].as_u64().unwrap();
    let named = bench.sh("find tree -type f -printf '%s\\n' | paste -sd+ | bc");
    assert_eq!(number("named_len").to_string(), named.trim());
    let file_len = |path: &str| std::fs::metadata(bench.at(path)).unwrap().len();
    // The link and the copy, and the files that the other version has unchanged, except the copy.
    let (lines, program) = (file_len("lines"), file_len("tree/v1/program"));
    let sparse = file_len("tree/v1/sparse");
    assert_eq!(number("shared_len"), 4 * lines + program + sparse);
    assert_eq!(number("hole_len"), 1 << 20);
    let plain_len = bench.sh("seq 100000 140000 | wc -c");
    assert_eq!(number("unnamed_len").to_string(), plain_len.trim());
    let made_len = number("made_len");
    assert!(
        (1..=file_len("tree/v2/numbers.gz")).contains(&made_len),
        "{made_len}"
    );
    assert_eq!(number("base_len"), 0);
    let streams = stages["streams"].as_array().unwrap();
    let of = |stream: &serde_json::Value, key: &str| stream[key].as_u64().unwrap();
    let sum = |key: &str| streams.iter().map(|stream| of(stream, key)).sum::<u64>();
    let remaining = number("named_len") - number("shared_len") + number("unnamed_len");
    let remaining = remaining - number("hole_len") - made_len;
    assert_eq!(remaining, sum("extent_len"));
    assert!(sum("repeated_len") > 400_000, "{}", sum("repeated_len"));
    let (mut stored_len, mut categories) = (0, Vec::new());
    for stream in streams {
        let codecs = stream["codecs"].as_array().unwrap();
        let total = |key: &str| codecs.iter().map(|codec| of(codec, key)).sum::<u64>();
        let used = of(stream, "extent_len") - of(stream, "repeated_len");
        assert_eq!(used + of(stream, "unreferenced_len"), total("raw_len"));
        stored_len += total("stored_len");
        categories.push(stream["category"].as_str().unwrap());
    }
    assert!(categories.contains(&"general") && categories.contains(&"incompressible"));
    assert_eq!(number("image_len"), file_len("image"));
    let rest = number("metadata_len") + number("other_len");
    assert_eq!(stored_len + rest, number("image_len"));
    // Superblock, footer and second copies; there are no older records.
    assert_eq!(number("other_len"), 64 + 128 + 4096);

    assert_text_shows(&bench, stages);

    // Data that only older generations refer to is not part of the stages.
    bench.sh("rm -r tree/v2 tree/v3; echo new > tree/v1/new");
    bench
        .weald([
            "build",
            "-q",
            "--append",
            "--allow-removal",
            "tree",
            "image",
        ])
        .expect(0, "");
    let stages = stages_of(&bench);
    let named = bench.sh("find tree -type f -printf '%s\\n' | paste -sd+ | bc");
    assert_eq!(stages["named_len"].to_string(), named.trim());
    assert_eq!(stages["shared_len"], lines);
    assert_eq!(stages["image_len"], file_len("image"));
    assert!(stages["other_len"].as_u64().unwrap() > 64 + 128 + 4096);
}
