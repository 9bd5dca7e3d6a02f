//! `weald` under fakeroot and pseudo. These libraries emulate owners, modes, devices and xattrs in
//! libc for users without privileges; Debian, Buildroot and Yocto build packages with them.
use crate::support::*;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::{Command, Output, Stdio};
use weald_testkit::command::copy_weald;

const NOBODY: u32 = 65_534;

/// A directory of an unprivileged user, with a binary that this user may run.
struct Place {
    scratch: Scratch,
    faker: &'static str,
}

impl Place {
    fn new(faker: &'static str) -> Self {
        let scratch = Scratch::new("512m");
        copy_weald(scratch.at("weald"));
        for dir in [scratch.path().to_owned(), scratch.dir("source")] {
            chown(dir, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        fs::set_permissions(scratch.path(), PermissionsExt::from_mode(0o755)).unwrap();
        Self { scratch, faker }
    }

    fn command(&self, words: &[&str]) -> Command {
        let id = NOBODY.to_string();
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid", &id, "--regid", &id, "--clear-groups"])
            .args(["--inh-caps=-all", "--"])
            .args(words)
            .current_dir(self.scratch.path())
            .env("PSEUDO_PREFIX", "/usr")
            .env("PSEUDO_LOCALSTATEDIR", self.scratch.at("state"))
            .env("LC_ALL", "C")
            .stdin(Stdio::null());
        if self.faker != "pseudo" {
            command.env_remove("PSEUDO_PREFIX");
        }
        command
    }

    /// Runs `script` in a shell under the emulation; returns its output.
    #[track_caller]
    fn pretend(&self, script: &str) -> String {
        let output = self.command(&[self.faker, "sh", "-ec", script]).output();
        self.stop();
        said(&output.unwrap())
    }

    /// Stops the server of pseudo, which would otherwise outlive its database.
    fn stop(&self) {
        if self.faker == "pseudo" {
            let stopped = self.command(&["pseudo", "-S"]).output().unwrap();
            assert!(stopped.status.success(), "{}", stderr(&stopped));
        }
    }

    /// Output of weald without emulation.
    #[track_caller]
    fn weald(&self, words: &[&str]) -> String {
        let mut command = Command::new(weald_bin());
        said(
            &command
                .args(words)
                .current_dir(self.scratch.path())
                .output()
                .unwrap(),
        )
    }
}

#[track_caller]
fn said(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(
        (output.status.code(), stderr(output)),
        (Some(0), String::new()),
        "{text}"
    );
    text
}

const FAKERS: [&str; 2] = ["fakeroot", "pseudo"];

/// Files that only root could create.
const MAKE: &str = "
    cd source
    echo text > f; chown 5:6 f; chmod 4711 f
    mkdir d; echo more > d/inner; chown -R 7:8 d; chmod 2750 d
    ln -s f l; chown -h 9:10 l
    ln d/inner again
    mknod dev c 1 3; chown 0:11 dev; chmod 660 dev
    mknod disk b 8 17
    setfattr -n trusted.weald -v secret f
    chown 12:13 .
    cd ..
";

/// Would catch: owners, modes, kinds and xattrs that are read past the emulating library.
#[test]
fn images_have_the_emulated_attributes() {
    for faker in FAKERS {
        let place = Place::new(faker);
        place.pretend(&format!("{MAKE} ./weald build --quiet source image"));
        check(&place.scratch.at("image"));
        let listed = place.weald(&["find", "--printf", "%p %y %m %U:%G\\n", "image"]);
        for line in [
            ". d 755 12:13",
            "f f 4711 5:6",
            "d d 2750 7:8",
            "d/inner f 644 7:8",
            "again f 644 7:8",
            "l l 777 9:10",
            "dev c 660 0:11",
            "disk b 644 0:0",
        ] {
            assert!(
                listed.lines().any(|l| l == line),
                "{faker}: {line}: {listed}"
            );
        }
        let long = place.weald(&["ls", "-l", "image", "/dev"]);
        assert!(
            long.contains("1,") && long.contains(" 3 "),
            "{faker}: {long}"
        );
        let stat = place.weald(&["stat", "image", "/f"]);
        assert!(stat.contains("trusted.weald"), "{faker}: {stat}");
        // Without the emulation, the files are ordinary.
        let real = fs::symlink_metadata(place.scratch.at("source/dev")).unwrap();
        assert!(real.is_file(), "{faker}");
    }
}

/// Would catch: an extraction that asks the kernel for what only the library grants.
#[test]
fn extraction_is_emulated_too() {
    for faker in FAKERS {
        let place = Place::new(faker);
        let digests = place.pretend(&format!(
            "{MAKE} ./weald build --quiet source image
             ./weald extract --quiet image out
             ./weald build --quiet out again
             stat -c '%u:%g %a %F %t:%T' out/dev out/f
             getfattr -n trusted.weald --only-values out/f"
        ));
        assert!(
            digests.starts_with("0:11 660 character special file 1:3\n5:6 4711 regular file"),
            "{faker}: {digests}"
        );
        assert!(digests.ends_with("secret"), "{faker}: {digests}");
        let diff = place.weald(&["diff", "image", "again"]);
        assert_eq!(diff, "", "{faker}");
    }
}

/// Would catch: outputs that belong to the real user, and symlinks that pseudo follows for us.
#[test]
fn outputs_belong_to_the_emulated_user() {
    for faker in FAKERS {
        let place = Place::new(faker);
        let stats = place.pretend(
            "echo text > source/f
             ./weald build --quiet source image; stat -c '%u:%g' image
             chown 5:6 image; chmod 640 image; ln -s image link
             ./weald build --quiet --force source link; stat -c '%u:%g %a %F' image link
             ./weald extract --quiet --no-same-owner image out; stat -c '%u:%g' out out/f
             ./weald build --quiet source - | cat > streamed
             ./weald check --quiet link streamed",
        );
        let expected = "0:0\n5:6 640 regular file\n0:0 777 symbolic link\n0:0\n0:0\n";
        assert_eq!(stats, expected, "{faker}");
    }
}

/// Would catch: an image with the real owners because the library was not loaded.
#[test]
fn a_library_that_is_not_loaded_is_an_error() {
    let scratch = Scratch::new("512m");
    scratch.dir("source");
    for words in [["build", "source", "image"], ["extract", "image", "out"]] {
        let output = Command::new(weald_bin())
            .args(words)
            .current_dir(scratch.path())
            .env("LD_PRELOAD", "/nowhere/libfakeroot-sysv.so")
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2));
        // The dynamic loader prints a line too.
        let text = stderr(&output);
        let expected =
            "weald: LD_PRELOAD names libfakeroot, which is not loaded into weald: owners";
        assert!(
            text.lines().any(|line| line.starts_with(expected)),
            "{text}"
        );
        assert!(!scratch.at("image").exists() && !scratch.at("out").exists());
    }
}
