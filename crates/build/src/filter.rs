//! Include and exclude rules as rsync has them.
