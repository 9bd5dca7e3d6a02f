//! Storing each content once.
//!
//! `starting_images` opens the image that a build appends to and the base images, and computes the
//! digests of their contents. `contents` drops every content whose digest is known and passes the
//! others to the segmenter of their stream.

pub mod contents;
pub mod starting_images;
