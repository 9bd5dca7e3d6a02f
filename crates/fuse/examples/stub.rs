//! Mounts the computed tree: `stub DIR [DIR_COUNT [FILE_COUNT [FILE_LEN_MAX]]] [-o OPTIONS]…`;
//! serves until it is unmounted.
//!
//! The floor of every benchmark of mounts: the cost of the kernel and of the session without any
//! image behind them.
#![allow(missing_docs)]

#[allow(dead_code)]
#[path = "../tests/support/stub.rs"]
mod stub;

use std::error::Error;
use std::ffi::OsStr;
use std::path::Path;
use weald_fuse::{Features, MountOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let (mut plain, mut options, mut words) = (Vec::new(), Vec::new(), std::env::args().skip(1));
    while let Some(word) = words.next() {
        match word.as_str() {
            "-o" => options.push(words.next().ok_or("-o needs an argument")?),
            _ => plain.push(word),
        }
    }
    let count = |at: usize| plain.get(at).map_or(Ok(1000), |word| word.parse::<u64>());
    let dir = plain
        .first()
        .ok_or("usage: stub DIR [DIR_COUNT [FILE_COUNT [FILE_LEN_MAX]]] [-o OPTIONS]")?;
    let mut tree = stub::Stub::new(count(1)?, count(2)?);
    if plain.len() > 3 {
        tree.file_len_max = count(3)?;
    }
    tree.features = Features {
        has_xattrs: false,
        has_acls: false,
        has_holes: false,
        has_btimes: false,
        is_plain: true,
    };
    let options = MountOptions::parse(options)?;
    let mount = weald_fuse::mount(tree, OsStr::new("stub"), Path::new(dir), &options)?;
    println!("mounted");
    Ok(mount.wait()?)
}
