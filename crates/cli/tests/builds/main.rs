//! Builds as users call them: other users, full disks, scripts, generations.
#![allow(missing_docs)]

mod added;
mod append;
mod attributes;
mod ends;
mod faked;
mod followed;
mod generations;
mod listed;
mod scripts;
mod sources;
mod support;
mod users;
