//! Makes the fuzzers' initial corpus with the builder: `seeds CORPUS_DIR`.

mod codecs;
mod images;
mod inputs;
mod pages;
mod volumes;

use std::fs;
use std::path::PathBuf;
use weald_format::Digest;

/// Directory with a directory of seeds for each target.
struct Corpus(PathBuf);

impl Corpus {
    /// Adds `bytes` to the seeds of `target`.
    fn put(&self, target: &str, bytes: &[u8]) {
        let dir = self.0.join(target);
        fs::create_dir_all(&dir).expect("corpus directory");
        fs::write(dir.join(&Digest::of(bytes).to_string()[..16]), bytes).expect("seed");
    }
}

fn main() {
    let corpus = Corpus(
        std::env::args_os()
            .nth(1)
            .expect("usage: seeds CORPUS_DIR")
            .into(),
    );
    let dir = tempfile::tempdir().expect("temporary directory");
    inputs::erofs(&corpus, dir.path());
    images::images(&corpus, dir.path());
    pages::times(&corpus);
    pages::columns(&corpus);
    pages::names(&corpus);
    pages::base_runs(&corpus);
    volumes::row_groups(&corpus);
    volumes::sync_log(&corpus);
    codecs::codecs(&corpus);
    codecs::deflate(&corpus, dir.path());
    codecs::pictures(&corpus);
    codecs::samples(&corpus);
    inputs::rules(&corpus);
    inputs::streams(&corpus, dir.path());
    inputs::containers(&corpus);
    inputs::dumps(&corpus);
}
