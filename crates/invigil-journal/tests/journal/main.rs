//! The journal, shown on real files, real processes and a medium that fails on demand.

mod blobs;
mod index;
mod store;
