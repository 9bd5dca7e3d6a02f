//! Permission changes as chmod(1) and rsync's `--chmod` write them.
