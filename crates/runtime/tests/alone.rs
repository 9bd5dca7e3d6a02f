//! The program without an image behind it: `crates/cli/tests/mounts/self_mounting.rs` has the rest.

use std::process::{Command, Output};

fn run(words: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_weald-runtime");
    Command::new(program)
        .args(words)
        .output()
        .expect("it starts")
}

/// Would catch: a runtime that fails without a word, or takes words for those of another command.
#[test]
fn it_says_what_it_is() {
    let version = run(&["--version"]);
    let said = String::from_utf8(version.stdout).expect("UTF-8");
    assert_eq!(
        said,
        concat!("weald-runtime ", env!("CARGO_PKG_VERSION"), "\n")
    );
    let help = String::from_utf8(run(&["--help"]).stdout).expect("UTF-8");
    assert!(help.contains("weald build --self-mounting"), "{help}");
    for words in [&[][..], &["mount", "a", "b"], &["--appimage-help"]] {
        let refused = run(words);
        assert_eq!(refused.status.code(), Some(2), "{words:?}");
        let told = String::from_utf8(refused.stderr).expect("UTF-8");
        assert!(told.contains("no image is behind this program"), "{told}");
    }
}
