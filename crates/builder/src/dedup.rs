//! Storing each content once.
//!
//! `streams` numbers the streams of a new image, one for each category of contents.
//! `starting_images` opens the image that a build appends to and the base images, and computes the
//! digests of their contents. `contents` drops every content whose digest is known and passes the
//! others to the segmenter of their stream. `prepared` is what reader threads find out for it.
//! `similar` chooses the old contents that a new one may repeat in part.

pub mod contents;
pub mod prepared;
pub mod similar;
pub mod starting_images;
pub mod streams;
