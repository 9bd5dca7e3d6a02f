//! `weald build --script` with the examples of `docs/scripts.md`.
use crate::support::*;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use weald_testkit::mounts::{Server, eventually, finish};

/// The examples of the document, in order.
fn examples() -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/scripts.md");
    let text = fs::read_to_string(path).unwrap();
    let examples = text.split("```lua\n").skip(1);
    examples
        .map(|rest| rest.split("```").next().unwrap().to_owned())
        .collect()
}

fn listed(image: &Path) -> Vec<String> {
    let output = Command::new(weald_bin())
        .arg("find")
        .arg(image)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let mut names: Vec<String> = text
        .lines()
        .map(|line| line.trim_start_matches('/').to_owned())
        .collect();
    names.sort();
    names
}

fn script(scratch: &Scratch, text: &str) -> PathBuf {
    let path = scratch.at("script.lua");
    fs::write(&path, text).unwrap();
    path
}

/// Would catch: an example that does not do what the document says.
#[test]
fn the_examples_do_what_they_say() {
    let scratch = Scratch::new("512m");
    let source = scratch.dir("tree");
    for dir in ["v1", "v2", "v3", "latest"] {
        fs::create_dir(source.join(dir)).unwrap();
        for name in ["a.c", "b.h", "c.c"] {
            fs::write(source.join(dir).join(name), format!("{dir} {name}")).unwrap();
        }
    }
    fs::write(source.join("shared"), "x").unwrap();
    fs::set_permissions(source.join("shared"), PermissionsExt::from_mode(0o664)).unwrap();
    let large = fs::File::create(source.join("large")).unwrap();
    large.set_len(200 << 20).unwrap();
    let [small, newest, kinds, changes] = &examples()[..] else {
        panic!("four examples")
    };
    let built = |text: &str, options: &[&str]| {
        let image = scratch.at("image");
        let path = script(&scratch, text);
        let options = [options, &["--force", "--script", path.to_str().unwrap()]].concat();
        build(&options, &source, &image);
        check(&image);
        listed(&image)
    };
    let all = built("function filter() return true end", &[]);
    assert_eq!(all.len(), 1 + 4 + 12 + 2, "{all:?}");
    let kept = built(small, &[]);
    assert!(
        !kept.iter().any(|p| p == "shared" || p == "large"),
        "{kept:?}"
    );
    assert_eq!(kept.len(), all.len() - 2);
    let kept = built(newest, &["--exclude", "c.c"]);
    let is_kept = |path: &str| kept.iter().any(|p| p == path);
    assert!(is_kept("v3/a.c") && is_kept("latest/b.h"), "{kept:?}");
    assert!(
        !is_kept("v1") && !is_kept("v2/a.c") && !is_kept("v3/c.c"),
        "{kept:?}"
    );

    assert_eq!(built(changes, &[]), all);

    // Without compression and sharing, contents are stored one after the other.
    assert_eq!(built(kinds, &["--level", "0"]), all);
    let bytes = fs::read(scratch.at("image")).unwrap();
    let at = |what: &str| bytes.windows(what.len()).position(|w| w == what.as_bytes());
    let places: Vec<_> = [
        "latest a.c",
        "latest c.c",
        "v1 a.c",
        "v3 c.c",
        "latest b.h",
        "v3 b.h",
    ]
    .map(at)
    .to_vec();
    assert!(
        places.iter().all(Option::is_some) && places.is_sorted(),
        "{places:?}"
    );
}

/// Would catch: an example of what a script changes that does not do what the document says.
#[test]
fn the_last_example_changes_entries() {
    let scratch = Scratch::new("64m");
    fs::write(scratch.at("changes.lua"), &examples()[3]).expect("write");
    shell(
        scratch.path(),
        "mkdir -p src/home/me; for n in a home/me/b film.mkv long.mkv; do echo $n > src/$n; done
         yes compressible | head -c 90000 >> src/film.mkv; yes long | head -c 9000000 > src/long.mkv
         chown -hR 5:6 src; chmod 666 src/a; setfattr -n user.trash.x -v 1 src/a
         setfattr -n user.keep -v 1 src/a; cp -a src want; cd want; chown 0:0 . a home *.mkv
         chmod o-w . a home home/me home/me/b *.mkv; setfattr -x user.trash.x a
         find . -exec setfattr -n user.origin -v build {} +; touch -r ../src .",
    );
    printed(
        scratch.path(),
        "$WEALD build -q --script changes.lua src image; $WEALD diff image want >&2
         $WEALD build -q src plain; $WEALD rewrite -q --script changes.lua plain again
         $WEALD diff again want >&2; $WEALD build -q -t 1 --script changes.lua src one
         cmp one image >&2; $WEALD build -q --no-xattrs --script changes.lua src bare
         $WEALD diff --ignore xattrs bare want >&2; $WEALD stat bare a | grep -i origin >&2 || true
         $WEALD store create -q s; $WEALD store add -q s src --name n --script changes.lua
         $WEALD diff s:n want >&2",
    );
    for image in ["image", "again", "bare"] {
        check(&scratch.at(image));
    }
    // What is not to be compressed lies in the image as it is, long files, too.
    let lens = ["image", "plain"].map(|image| fs::metadata(scratch.at(image)).expect("stat").len());
    assert!(lens[1] < 60_000 && lens[0] > lens[1], "{lens:?}");
    let bytes = fs::read(scratch.at("image")).expect("read");
    let has = |text: &str| bytes.windows(text.len()).any(|w| w == text.as_bytes());
    assert!(has("film.mkv\ncompressible\n") && has("long\nlong\nlong\n"));
    let bytes = fs::read(scratch.at("plain")).expect("read");
    assert!(!bytes.windows(15).any(|w| w == b"long\nlong\nlong\n"));
}

/// The actions of mksquashfs, and the lines of `docs/scripts.md` for them.
const ACTIONS: &str = r#"
words=(-quiet -no-progress -xattrs -action 'exclude@name(*.o)')
words+=(-action 'guid(7,8)@name(*.c)&&depth(2)' -action 'uid(9)@type(d)')
mksquashfs src by.sqfs "${words[@]}" -action 'chmod(o-r)@name(*.h)' >&2
unsquashfs -quiet -no-progress -dest want by.sqfs >&2
# Versions before 4.6 have no actions for extended attributes.
find want -type f -exec setfattr -x user.t1 {} +
find want -type f -name a.c -exec setfattr -n user.x -v 1 {} +
cat > actions.lua <<'END'
local function depth(e) return select(2, e.path:gsub("/", "")) + 1 end
function filter(e) return not e.name:match("%.o$") end
function owner(e)
  if e.name:match("%.c$") and depth(e) == 2 then return 7, 8 end
  if e.type == "directory" then return 9 end
end
function mode(e) if e.name:match("%.h$") then return e.mode & ~4 end end
function xattrs(e)
  if e.type ~= "file" then return end
  for n in pairs(e.xattrs) do if n:find("^user%.t") then e.xattrs[n] = nil end end
  if e.name == "a.c" then e.xattrs["user.x"] = "1" end
  return e.xattrs
end
END
$WEALD build -q --script actions.lua src image
$WEALD diff image want
"#;

/// Would catch: a line of the table that does something else than the action of mksquashfs.
#[test]
fn scripts_do_what_actions_of_mksquashfs_do() {
    let scratch = Scratch::new("64m");
    printed(
        scratch.path(),
        "mkdir -p src/d/e; for n in a.c b.h c.o; do for d in src src/d src/d/e; do echo $d$n > \
         $d/$n; setfattr -n user.t1 -v x $d/$n; setfattr -n user.u -v y $d/$n; done; done
         ln -s a.c src/d/link.c; find src -exec touch -hd @1000000 {} +",
    );
    assert_eq!(printed(scratch.path(), ACTIONS), "");
}

/// Would catch: an error in a script that is ignored, or that leaves an image behind.
#[test]
fn script_errors_end_the_build() {
    let scratch = Scratch::new("64m");
    let source = scratch.dir("tree");
    fs::write(source.join("file"), "x").unwrap();
    for (text, words) in [
        (
            "function filter(entry) return entry.sise > 3 end",
            "script.lua:1",
        ),
        (
            "function filter(entry) return nil end",
            "expected true or false for file",
        ),
        (
            "function order(entries) return {} end",
            "expected 1 entries back, found 0",
        ),
        ("os.exit(0)", "script.lua:1"),
    ] {
        let path = script(&scratch, text);
        let options = ["--script", path.to_str().unwrap()];
        let output = build_command(&options, &source, &scratch.at("image"))
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(
            stderr(&output).contains(words),
            "{text}: {}",
            stderr(&output)
        );
        assert!(!scratch.at("image").exists());
    }
}

/// A script that never ends, inside a library function that executes no Lua instruction.
const ENDLESS: &str =
    "function filter() return ('a'):rep(40):find(('a-'):rep(40) .. 'b') == nil end";

/// Would catch: a build that blocks because of its script, or that leaves files behind.
#[test]
fn a_script_that_hangs_ends_the_build() {
    let scratch = Scratch::new("64m");
    let source = scratch.dir("source");
    for name in ["a", "b", "c"] {
        fs::create_dir(source.join(name)).unwrap();
    }
    let hang = "string.rep('', 1 << 60)";
    for text in [
        ENDLESS,
        &format!("function order() {hang} end"),
        &format!("{hang} function filter() return true end"),
        "local m = getmetatable('') m.__len, m.__index = string.len, string.sub
         function filter() return table.concat('', '', 1, 1 << 60) end",
    ] {
        let path = script(&scratch, text);
        let options = ["--script-timeout", "1", "--script", path.to_str().unwrap()];
        fs::write(source.join("file"), text).unwrap();
        let output = finish(&mut build_command(&options, &source, &scratch.at("image")));
        let said = output.stderr;
        assert_eq!(output.code, Some(2), "{text}: {said}");
        let words = "script.lua: the script has run for 1 s, which is the limit; expected a faster \
                     script, or a longer --script-timeout";
        assert!(said.contains(words), "{text}: {said}");
        assert_eq!(names(scratch.path()), ["script.lua", "source"]);
    }
}

/// Would catch: SIGINT that waits for a script, at any point of the script.
#[test]
fn sigint_ends_a_build_whose_script_hangs() {
    let scratch = Scratch::new("64m");
    let source = scratch.dir("source");
    fs::write(source.join("file"), "x").unwrap();
    fs::create_dir(source.join("dir")).unwrap();
    fs::write(source.join("dir/inner"), "x").unwrap();
    for text in [
        ENDLESS,
        // Below the root, other threads call the filter.
        "function filter(e) return e.name ~= 'inner' or string.rep('', 1 << 60) end",
        "function order() string.rep('', 1 << 60) end",
    ] {
        let path = script(&scratch, text);
        let options = ["--script", path.to_str().unwrap()];
        let mut command = build_command(&options, &source, &scratch.at("image"));
        let mut child = Server::start(&mut command);
        wait_for_thread_time(child.id());
        interrupt(&child);
        assert_eq!(child.wait().code(), Some(2), "{text}");
        assert_eq!(child.log(), "weald: interrupted\n", "{text}");
        assert_eq!(names(scratch.path()), ["script.lua", "source"]);
    }
}

/// A FUSE file system that answers no request, because this process never reads them.
struct SilentMount {
    dir: PathBuf,
    device: Option<fs::File>,
}

impl SilentMount {
    fn new(dir: PathBuf) -> Self {
        use rustix::mount::{MountFlags, mount};
        let device = fs::File::options()
            .read(true)
            .write(true)
            .open("/dev/fuse")
            .unwrap();
        let fd = device.as_raw_fd();
        let options = format!("fd={fd},rootmode=40000,user_id=0,group_id=0");
        let options = std::ffi::CString::new(options).unwrap();
        mount(
            "silent",
            &dir,
            "fuse",
            MountFlags::empty(),
            Some(options.as_c_str()),
        )
        .unwrap();
        let device = Some(device);
        Self { dir, device }
    }
}

impl Drop for SilentMount {
    fn drop(&mut self) {
        // When the device is closed, all requests end.
        drop(self.device.take());
        let unmounted = Command::new("umount").arg("-l").arg(&self.dir).status();
        assert!(unmounted.is_ok_and(|s| s.success()) || std::thread::panicking());
    }
}

/// Would catch: a build that only SIGKILL ends, because its script hangs and the file system of
/// its source does not answer.
#[test]
fn a_second_sigint_kills_a_build_whose_script_hangs() {
    let scratch = Scratch::new("64m");
    let source = scratch.dir("source");
    for dir in ["a", "silent"] {
        fs::create_dir(source.join(dir)).unwrap();
    }
    fs::write(source.join("a/inner"), "x").unwrap();
    let text = "function filter(e) return e.name ~= 'inner' or string.rep('', 1 << 60) end";
    let path = script(&scratch, text);
    let silent = SilentMount::new(source.join("silent"));
    // Reading extended attributes would precede the call of the script.
    let shape = ["--no-xattrs", "--threads", "2", "--script"];
    let options = [&shape[..], &[path.to_str().unwrap()]].concat();
    let mut command = build_command(&options, &source, &scratch.at("image"));
    let mut child = Server::start(&mut command);
    wait_for_thread_time(child.id());
    eventually("a thread that waits for the file system", || {
        threads(child.id()).iter().any(|stat| stat.starts_with('D'))
    });
    let thread_count = threads(child.id()).len();
    interrupt(&child);
    // The thread in the script ends; the thread that waits in the kernel cannot.
    eventually("the end of a thread", || {
        threads(child.id()).len() < thread_count
    });
    assert!(child.is_running(), "the first signal cannot end it");
    interrupt(&child);
    assert_eq!((child.wait().signal(), &*child.log()), (Some(2), ""));
    drop(silent);
    assert_eq!(names(scratch.path()), ["script.lua", "source"]);
}

/// Sends SIGINT, as a terminal does.
fn interrupt(child: &Server) {
    let sent = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(sent.unwrap().success());
}

/// The fields from the state on, of each thread of process `pid` (proc(5), `stat`).
fn threads(pid: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten();
    let stats = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("stat")).ok());
    stats
        .filter_map(|stat| Some(stat.rsplit_once(") ")?.1.to_owned()))
        .collect()
}

/// Waits until the script's thread of process `pid` has used a tenth of a CPU second.
fn wait_for_thread_time(pid: u32) {
    let start = std::time::Instant::now();
    let is_busy = || {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
        tasks.flatten().find_map(|task| {
            let name = fs::read_to_string(task.path().join("comm")).ok()?;
            let stat = fs::read_to_string(task.path().join("stat")).ok()?;
            // Fields after the name in parentheses; the twelfth is the user time in ticks.
            let fields = stat.rsplit(") ").next()?.to_owned();
            let ticks: u64 = fields.split(' ').nth(11)?.parse().ok()?;
            (name.trim() == "script" && ticks >= 10).then_some(())
        })
    };
    while is_busy().is_none() {
        assert!(start.elapsed().as_secs() < 120, "the script does not run");
        std::thread::yield_now();
    }
}

/// Would catch: a script that is a device without an end, which fills the memory.
#[test]
fn a_script_without_end_is_refused() {
    let scratch = Scratch::new("64m");
    let source = scratch.dir("source");
    let options = ["--script", "/dev/zero"];
    let output = finish(&mut build_command(&options, &source, &scratch.at("image")));
    assert_eq!(output.code, Some(2));
    assert!(
        output
            .stderr
            .contains("/dev/zero: a script may have 1 MiB at most")
    );
}
