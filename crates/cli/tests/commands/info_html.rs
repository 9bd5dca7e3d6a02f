//! `weald info --html`, compared with `weald info`, with a walk and with sizes that are known.
//! `lab/tests/test_image_page.py` opens pages in a browser.
use crate::support::Bench;
use serde_json::Value;

/// A row of a table of the page.
struct Row<'a> {
    tag: &'a str,
    cells: &'a str,
}

impl Row<'_> {
    fn number(&self, key: &str) -> u64 {
        let (_, after) = self.tag.split_once(&format!("data-{key}=\"")).expect(key);
        after.split_once('"').unwrap().0.parse().unwrap()
    }

    fn is(&self, class: &str) -> bool {
        self.tag.contains(&format!("class=\"{class}"))
    }
}

/// The rows of the table `id` of a page.
fn rows<'a>(page: &'a str, id: &str) -> Vec<Row<'a>> {
    let (_, table) = page.split_once(&format!("<table id=\"{id}\"")).expect(id);
    let (table, _) = table.split_once("</table>").unwrap();
    let rows = table.split("<tr ").skip(1);
    rows.map(|row| {
        let (tag, cells) = row.split_once("><td>").unwrap();
        Row { tag, cells }
    })
    .collect()
}

fn sum(rows: &[Row<'_>], class: &str, key: &str) -> u64 {
    let wanted = rows.iter().filter(|row| row.is(class));
    wanted.map(|row| row.number(key)).sum()
}

fn page_of(bench: &Bench, image: &str) -> String {
    bench
        .weald(["info", "--html", "-", image])
        .expect(0, "")
        .text()
}

/// Holds the figures of the page of `image` against those of other commands.
fn assert_adds_up(bench: &Bench, image: &str) -> String {
    let page = page_of(bench, image);
    let info = bench
        .weald(["info", "--json", "--stages", image])
        .expect(0, "");
    let info = info.json().remove(0);
    let image_len = info["image_len"].as_u64().unwrap();
    let sections = info["sections"].as_array().unwrap();
    let stored = |section: &&Value| section["stored_len"].as_u64().unwrap();
    let is_data = |section: &&Value| section["section"] == "data";
    let data_len: u64 = sections.iter().filter(is_data).map(|s| stored(&s)).sum();
    let all_len: u64 = sections.iter().map(|s| stored(&s)).sum();

    let directories = rows(&page, "directories");
    let root = &directories[0];
    assert!(root.is("node d0"), "{}", root.tag);
    assert_eq!(root.number("names"), info["name_count"].as_u64().unwrap());
    let walked =
        "$WEALD ls -R --json IMAGE | jq -s 'map(select(.type == \"file\") | .size) | add // 0'";
    let walked = bench.sh(&walked.replace("IMAGE", &format!("'{image}'")));
    assert_eq!(root.number("files"), walked.trim().parse::<u64>().unwrap());
    let unused = directories
        .iter()
        .find(|row| row.cells.contains("no file uses"));
    assert_eq!(
        root.number("stored") + unused.unwrap().number("stored"),
        data_len
    );
    assert_eq!(
        root.number("stored") + sum(&directories, "area", "stored"),
        image_len
    );
    assert_eq!(sum(&directories, "sum", "stored"), image_len);
    // Each level of the tree adds up to the one above it.
    for key in ["names", "files", "stored"] {
        let inner = sum(&directories, "node d1", key) + sum(&directories, "others d1", key);
        let own = u64::from(key == "names");
        assert!(
            inner == 0 || inner + own == root.number(key),
            "{key}: {inner}"
        );
    }

    let generations = rows(&page, "generations");
    assert_eq!(sum(&generations, "generation", "used"), all_len);
    assert_eq!(sum(&generations, "generation", "appended"), image_len);
    let codecs = rows(&page, "codecs");
    assert_eq!(sum(&codecs, "codec", "stored"), all_len);
    assert_eq!(all_len + sum(&codecs, "area", "stored"), image_len);
    page
}

/// Would catch: bytes that count twice or nowhere, with hard links, holes, recipes, equal
/// directories, several generations and base images.
#[test]
fn the_figures_of_a_page_add_up() {
    let bench = Bench::with_torture(7);
    bench
        .weald(["build", "-q", "source", "image"])
        .expect(0, "");
    assert_adds_up(&bench, "image");
    bench.sh(
        "mkdir more && cp -a source more/copy && seq 300000 > more/lines && gzip -k more/lines
        mkdir more/d && head -c 50000 /dev/urandom > more/d/x",
    );
    bench
        .weald(["build", "-q", "more", "recipes"])
        .expect(0, "");
    assert_adds_up(&bench, "recipes");
    bench.sh("rm -r more/d && seq 400000 | sort > more/sorted");
    bench
        .weald(["build", "-q", "--append", "more", "recipes"])
        .expect(0, "");
    let page = assert_adds_up(&bench, "recipes");
    let generations = rows(&page, "generations");
    assert_eq!(generations.len(), 2);
    assert!(generations[1].number("used") > 0, "nothing is shared");
    assert!(generations[1].number("used") < generations[1].number("appended"));
    bench
        .weald(["build", "-q", "--base", "recipes", "more", "based"])
        .expect(0, "");
    assert_adds_up(&bench, "based");
}

/// Would catch: bytes that go to the wrong directory, and equal files that take them again.
#[test]
fn directories_have_the_bytes_of_their_files() {
    let bench = Bench::new();
    bench.sh("mkdir -p tree/a/deep tree/b tree/c
        head -c 300000 /dev/urandom > tree/a/deep/one; head -c 100000 /dev/urandom > tree/a/two
        head -c 600000 /dev/urandom > tree/c/three; cp tree/a/two tree/b/again
        ln tree/a/two tree/b/link");
    let words = [
        "build",
        "-q",
        "--codec",
        "none",
        "--block-size",
        "64K",
        "tree",
        "image",
    ];
    bench.weald(words).expect(0, "");
    let page = assert_adds_up(&bench, "image");
    let directories = rows(&page, "directories");
    let row = |name: &str| {
        let cell = format!("{name}</td>");
        directories
            .iter()
            .find(|row| row.cells.starts_with(&cell))
            .expect(name)
    };
    for (name, len, files) in [
        ("a/", 400_000, 400_000),
        ("deep/", 300_000, 300_000),
        ("two", 100_000, 100_000),
        ("c/", 600_000, 600_000),
    ] {
        let stored = row(name).number("stored");
        assert!((len..len + len / 50).contains(&stored), "{name}: {stored}");
        assert_eq!(row(name).number("files"), files);
    }
    // All that is in b is stored in a.
    assert!(!page.contains("<td>b/</td>") && !page.contains("<td>again</td>"));
    let others = directories.iter().find(|row| row.is("others d1")).unwrap();
    assert_eq!(
        (others.number("names"), others.number("files")),
        (3, 200_000)
    );
    assert_eq!(others.number("stored"), 0);
}

/// Would catch: names that become markup, and a page that loads something.
#[test]
fn names_are_inert_and_nothing_is_loaded() {
    let bench = Bench::new();
    bench.sh(r#"mkdir tree && cd tree
        head -c 90000 /dev/urandom > '"><img src=x onerror=alert(1)>'
        head -c 90000 /dev/urandom > '<!--'
        head -c 90000 /dev/urandom > "$(printf 'new\nline')"
        head -c 90000 /dev/urandom > "$(printf 'rtl\342\200\256gpj')"
        head -c 90000 /dev/urandom > "$(printf 'bad\377byte')"
        mkdir 'x<' && head -c 90000 /dev/urandom > 'x</title><script>alert(2)<'"#);
    bench.sh("mv tree t && mkdir tree && mv t 'tree/<b>'; cp -r tree '<i>'");
    bench
        .weald(["build", "-q", "--label", "<u>&amp;", "tree", "<s>image"])
        .expect(0, "");
    let page = page_of(&bench, "<s>image");
    for bad in [
        "<img", "<!--", "<script", "<b>", "<s>", "<u>", "http:", "https:", "url(", "@import",
    ] {
        assert!(!page.contains(bad), "{bad}");
    }
    for good in [
        "&lt;img",
        "new\\x0aline",
        "rtl\\xe2\\x80\\xaegpj",
        "bad\\xffbyte",
        "&lt;u&gt;&amp;amp;",
    ] {
        assert!(page.contains(good), "{good}");
    }
    assert!(page.contains("default-src &#39;none&#39;"));
}

/// Would catch: a page that grows with the tree, and a walk that ends in a deep one.
#[test]
fn large_and_deep_trees_make_small_pages() {
    let bench = Bench::new();
    // Lines of mtree make the tree without 40,000 files on the disk.
    bench.sh("mkdir tree && head -c 200000 /dev/urandom > tree/data && {
        echo '#mtree'; for d in $(seq 200); do echo \"./<$d> type=dir\"
        seq -f \"./<$d>/%06.0f&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&& type=link link=x\" 200; done
        } > lines");
    bench
        .weald(["build", "-q", "--add", "lines", "tree", "image"])
        .expect(0, "");
    let page = assert_adds_up(&bench, "image");
    assert!(page.len() < 20_000, "{} bytes", page.len());
    // 400 directories, each in the one before, with a file in each.
    bench.sh("mkdir deep && cd deep && for n in $(seq 400); do
        head -c 3000 /dev/urandom > f; mkdir d; cd d; done; echo end > f");
    bench.weald(["build", "-q", "deep", "down"]).expect(0, "");
    let page = assert_adds_up(&bench, "down");
    assert!(page.contains("node d8") && !page.contains("node d9"));
}

/// Would catch: a page that replaces a file without a word, and parts that stay after a failure.
#[test]
fn a_page_is_written_whole_or_not() {
    let bench = Bench::with_image();
    bench.sh("mkdir out && echo mine > out/page");
    let refused = "weald: out/page: already exists; --force replaces it\n";
    bench
        .weald(["info", "--html", "out/page", "image"])
        .expect(2, refused);
    assert_eq!(bench.sh("cat out/page"), "mine\n");
    bench
        .weald(["info", "--html", "out/page", "--force", "image"])
        .expect(0, "");
    assert_eq!(
        std::fs::read_to_string(bench.at("out/page")).unwrap(),
        page_of(&bench, "image")
    );
    bench.sh("head -c $(($(stat -c %s image) / 2)) image > cut");
    let failed = bench.weald(["info", "--html", "out/new", "cut"]);
    assert_ne!(failed.code, Some(0));
    assert_eq!(bench.sh("ls -A out"), "page\n");
    // The option for replacing a page says nothing without one.
    assert_eq!(bench.weald(["info", "--force", "image"]).code, Some(2));
}
