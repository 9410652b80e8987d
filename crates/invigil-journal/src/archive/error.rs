//! Why an archive is refused. Each tampering has a variant of its own.

use std::io;
use std::path::PathBuf;

use invigil_schema::{Digest, RunId};

use super::{MAX_NESTING, ManifestHead, Member, ViewError};
use crate::chain::Flaw;

/// Why an archive is refused.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// It could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The archive.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The file is larger than an archive may be.
    #[error("the file is larger than {limit} bytes, which is the most an archive may have")]
    SourceTooLarge {
        /// The limit.
        limit: u64,
    },
    /// It unpacks to more than an archive may.
    #[error("it unpacks to more than {limit} bytes, which is the most an archive may hold")]
    DecodedTooLarge {
        /// The limit.
        limit: u64,
    },
    /// A JSON document is larger than one may be.
    #[error("{member}: a JSON document is larger than {limit} bytes")]
    DocumentTooLarge {
        /// Where.
        member: String,
        /// The limit.
        limit: u64,
    },
    /// Not the file that was asked for.
    #[error("the file's SHA-256 is {found}, not {expected}")]
    FileDigest {
        /// What was asked for.
        expected: Digest,
        /// What it is.
        found: Digest,
    },
    /// It does not begin as an archive does.
    #[error("not an archive of Invigil: {0}")]
    GzipHeader(&'static str),
    /// The file ends before the gzip stream does.
    #[error("the file is cut off: the gzip stream has no end")]
    Truncated,
    /// The compressed bytes make no sense.
    #[error("the compressed bytes are damaged")]
    Deflate,
    /// The checksum of the gzip stream is wrong.
    #[error("the gzip stream has a wrong CRC")]
    Crc,
    /// The length of the gzip stream is wrong.
    #[error("the gzip stream states a wrong length")]
    GzipLength,
    /// Something follows the gzip stream.
    #[error("there is data after the end of the gzip stream")]
    TrailingData,
    /// The content is right, but it was compressed in another way than when it was sealed.
    #[error("the compressed bytes are not the ones that were sealed")]
    Seal,
    /// A header is no header of this format.
    #[error("bad tar header at byte {offset} of the unpacked archive: {what}")]
    TarHeader {
        /// Where.
        offset: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// A member that is not a plain file.
    #[error("{name:?} is {what}; an archive holds plain files only")]
    MemberType {
        /// Its name.
        name: String,
        /// What it is.
        what: &'static str,
    },
    /// A name that points elsewhere, or names a member in another way.
    #[error("{name:?} is not the name of a member: {what}")]
    MemberName {
        /// The name.
        name: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Owner, mode or time are not the fixed ones.
    #[error("{member}: its {field} is not the one that every member has")]
    Attribute {
        /// Which member.
        member: Member,
        /// What differs.
        field: &'static str,
    },
    /// Something is hidden behind a member.
    #[error("{member}: its padding is not zero")]
    Padding {
        /// Which member.
        member: Member,
    },
    /// The tar archive does not end as it must.
    #[error("the tar archive has no end: {0}")]
    MissingTarEnd(&'static str),
    /// Something follows the end of the tar archive.
    #[error("there is data after the end of the tar archive")]
    DataAfterTarEnd,
    /// Not JSON.
    #[error("{member}, line {line}: not JSON as it must be: {what}")]
    Json {
        /// Where.
        member: String,
        /// The line, from 1.
        line: u64,
        /// What is wrong.
        what: String,
    },
    /// A key that occurs twice in one object: readers differ in which one they take.
    #[error("{member}, line {line}: the key {key:?} is there twice in one object")]
    DuplicateKey {
        /// Where.
        member: String,
        /// The line, from 1.
        line: u64,
        /// The key.
        key: String,
    },
    /// Nested more deeply than is read.
    #[error("{member}, line {line}: nested more than {MAX_NESTING} deep")]
    TooDeep {
        /// Where.
        member: String,
        /// The line, from 1.
        line: u64,
    },
    /// The manifest is of another version.
    #[error("this version cannot read the archive: {0}")]
    Foreign(String),
    /// The manifest is JSON, but no manifest.
    #[error("manifest.json is not a manifest: {0}")]
    Manifest(String),
    /// Not the run that was asked for.
    #[error("the archive is of run {found}, not of {expected}")]
    WrongRun {
        /// What was asked for.
        expected: RunId,
        /// What it is of.
        found: RunId,
    },
    /// The journal inside is of another run than the manifest.
    #[error("the manifest is of run {manifest}, but the journal inside is of run {journal}")]
    ForeignJournal {
        /// What the manifest says.
        manifest: RunId,
        /// What the journal says.
        journal: RunId,
    },
    /// A member is there twice.
    #[error("{0} is there twice")]
    DuplicateMember(String),
    /// A member is not there.
    #[error("{0} is missing")]
    MissingMember(String),
    /// A member that nobody listed.
    #[error("{0:?} does not belong here")]
    ExtraMember(String),
    /// Members are not in their one order.
    #[error("members are out of order: {found} stands where {expected} belongs")]
    OutOfOrder {
        /// What belongs there.
        expected: String,
        /// What stands there.
        found: String,
    },
    /// A member's size is not the listed one.
    #[error("{member} has {found} bytes, but the manifest lists {listed}")]
    MemberSize {
        /// Which member.
        member: Member,
        /// What the manifest says.
        listed: u64,
        /// What it has.
        found: u64,
    },
    /// A member's bytes are not the listed ones.
    #[error("{member} was changed: its SHA-256 is {found}, but the manifest lists {listed}")]
    MemberChanged {
        /// Which member.
        member: Member,
        /// What the manifest says.
        listed: Digest,
        /// What it has.
        found: Digest,
    },
    /// The journal's chain is broken.
    #[error("journal.ndjson: record {seq} is bad: {what}")]
    Chain {
        /// The first bad record.
        seq: u64,
        /// What is wrong.
        what: String,
    },
    /// The journal ends elsewhere than the manifest says.
    #[error(
        "journal.ndjson ends in record {} ({}), but the manifest names record {} ({}) as its head",
        found.seq, found.hash, listed.seq, listed.hash
    )]
    Head {
        /// What the manifest says.
        listed: ManifestHead,
        /// What the journal has.
        found: ManifestHead,
    },
    /// A derived member is not what follows from the journal.
    #[error("{member} is not what the journal gives: recomputed, it has the SHA-256 {recomputed}")]
    ViewDiffers {
        /// Which member.
        member: Member,
        /// The digest of what the journal gives.
        recomputed: Digest,
    },
    /// A view could not be computed.
    #[error("a view cannot be computed: {0}")]
    Views(#[source] ViewError),
}

impl ArchiveError {
    pub(crate) fn chain(seq: u64, flaw: Flaw) -> Self {
        ArchiveError::Chain {
            seq,
            what: flaw.to_string(),
        }
    }
}
