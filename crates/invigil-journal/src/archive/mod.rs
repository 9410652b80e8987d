//! Archives: one file that holds the evidence of a run, and that anybody can check.
//!
//! `docs/archive-format.md` states the bytes and what is checked in which order. This module knows members, their
//! digests and the journal's chain. It does not know what a view means: whoever packs or checks hands in [`Views`],
//! which computes the derived members from the records as they go by, the same way both times.

mod error;
mod form;
mod gzip;
mod manifest;
mod open;
mod pack;
mod tar;
mod views;

pub use error::ArchiveError;
pub use manifest::{Entry, MANIFEST_SCHEMA, Manifest, ManifestHead, Member};
pub use open::{Expected, Verified, verify};
pub use pack::{Attachment, PackError, Packed, Packing, pack};
pub use views::{Derived, ViewError, Views};

/// How deeply arrays and objects may be nested, in the manifest and in every other JSON text of an archive.
pub const MAX_NESTING: usize = 64;

/// How large things may be. Whoever packs keeps to the same limits as whoever checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The archive as a file.
    pub source: u64,
    /// Everything that is in it, unpacked, headers included.
    pub decoded: u64,
    /// One JSON document, or one line of a member that has a document a line.
    pub document: u64,
}

impl Default for Limits {
    fn default() -> Self {
        const GIB: u64 = 1024 * 1024 * 1024;
        Limits {
            source: GIB,
            decoded: 8 * GIB,
            document: 64 * 1024 * 1024,
        }
    }
}
