//! Opening an image: options, the start of the image in its file, its generations, its directory,
//! its base images.

pub mod bases;
pub mod directory;
pub mod generations;
pub mod members;
pub mod options;
